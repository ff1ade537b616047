"""List and run benchmarks: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks import (
    data,
    ensembles,
    ensembles_tables,
    ingest,
    jobs,
    jobs_quality,
    kpca,
    large,
    large_plan,
    large_quality,
    mixtures,
    quality_bhc,
    quality_rose,
    sets,
    sets_load,
    sets_quality,
    speed,
    stores,
)
from benchmarks.problem import Problem, measure, to_markdown, update_page, write_json

EXAMPLES = """examples:
  python -m benchmarks                                  list the problems
  python -m benchmarks quality-bhc --markdown           run one and print its tables
  python -m benchmarks speed-linkage --json out/        run one and keep the figures
  python -m benchmarks --from benchmarks/results --update docs/benchmarks.md
                                                        write kept figures into the page
"""


def all_problems() -> dict[str, Problem]:
    """Every problem by name."""
    modules = (
        quality_bhc,
        quality_rose,
        speed,
        stores,
        ingest,
        jobs,
        jobs_quality,
        kpca,
        large,
        large_plan,
        large_quality,
        sets,
        sets_load,
        sets_quality,
        mixtures,
        ensembles,
        ensembles_tables,
    )
    return {problem.name: problem for module in modules for problem in module.problems()}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("names", nargs="*", metavar="NAME", help="problems to run; none lists them")
    found.add_argument("--toy", action="store_true", help="run at the size of a test")
    found.add_argument("--json", type=Path, metavar="FOLDER", help="keep NAME.json here")
    found.add_argument("--from", type=Path, metavar="FOLDER", dest="source",
                       help="take kept results from here instead of running")  # fmt: skip
    found.add_argument("--markdown", action="store_true", help="print tables")
    found.add_argument("--update", type=Path, metavar="PAGE", help="put tables into a page")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked; return the exit code."""
    options = parser().parse_args(arguments)
    known = all_problems()
    names = options.names
    if options.source is not None and not names:
        names = [name for name in known if (options.source / f"{name}.json").is_file()]
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"No benchmark is called {unknown[0]!r}; the list is:", file=sys.stderr)
    if unknown or not names:
        _list(known)
        return 2 if unknown else 0
    try:
        for name in names:
            _one(known[name], options)
    except data.DataNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _list(known: dict[str, Problem]) -> None:
    width = max(len(name) for name in known)
    for name, problem in known.items():
        print(f"{name:<{width}}  {problem.about}")


def _one(problem: Problem, options: argparse.Namespace) -> None:
    if options.source is not None:
        text = (options.source / f"{problem.name}.json").read_text(encoding="utf-8")
        record = json.loads(text)
    else:
        start = time.perf_counter()
        record = measure(problem, "toy" if options.toy else "full")
        seconds = time.perf_counter() - start
        print(f"{problem.name}: done in {seconds:.1f} s", file=sys.stderr)
    if options.json is not None:
        options.json.mkdir(parents=True, exist_ok=True)
        write_json(options.json / f"{problem.name}.json", record)
    markdown = to_markdown(record, problem)
    if options.update is not None:
        update_page(options.update, problem.name, markdown)
    elif options.markdown or options.json is None:
        print(markdown)


if __name__ == "__main__":
    sys.exit(main())
