"""``fit``: methods whose options are not those of trees are commands of their own."""

from __future__ import annotations

from typing import Any

import click

from distclust.cli.mixtures import dpmixture, ensemble
from distclust.cli.projections import kpca

METHODS: dict[str, click.Command] = {
    str(command.name): command for command in (kpca, dpmixture, ensemble)
}


class Fit(click.Command):
    """``fit`` of trees, which hands over to the command of another method that is named first."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of the method that the first argument names."""
        if args and args[0] in METHODS:
            name = f"{info_name} {args[0]}"
            return METHODS[args[0]].make_context(name, args[1:], parent, **extra)
        late = next((word for word in args if word in METHODS), None)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError:
            if late is not None:  # most likely why the options of trees do not fit
                raise click.UsageError(_comes_first(late)) from None
            raise

    def invoke(self, context: click.Context) -> Any:
        """Fit a tree."""
        method = context.params.get("method")
        if method in METHODS:
            raise click.UsageError(_comes_first(str(method)), context)
        return super().invoke(context)


def _comes_first(method: str) -> str:
    return f"'{method}' comes before all options"
