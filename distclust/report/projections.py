"""What a projection found and how exact it is, and what a fit will cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from distclust.report.plan import ASSUMED_SPARSE_VALUES, FLOAT, Plan
from distclust.report.terminal import count, duration, size

if TYPE_CHECKING:
    from rich.console import Console

    from distclust.projections import PPCA, KernelPCA
    from distclust.store import Matrix

    Model = KernelPCA | PPCA

# Measured on one core of an ordinary machine.
MULTIPLY_ADDS = 1.2e10  # a second, of float64; float32 does twice as many
VALUE_SECONDS = 2.5e-9  # of a kernel value beside its products: the exponential
START_SECONDS = 2.0
# How many products there are only the spectrum knows: 4 to 35 were seen with 5 to 20
# components; EM takes as many as λ_{q+1} / λ_q says.
KRYLOV_PRODUCTS = 25
EM_PRODUCTS = 150
SHARE = 0.5  # of the memory there is goes to tiles if no budget is given
BASES = 24  # blocks of a basis, and of its product, at most


# ---- what was found ------------------------------------------------------------------------------


def describe(model: Model) -> dict[str, Any]:
    """Return a fitted projection as plain values, ready for JSON.

    ``share`` of a component is its part of the variance of all rows; in the space of features
    for kernel PCA, and for PPCA under the model.
    """
    facts = _of_kernel_pca(model) if hasattr(model, "eigenvalues_") else _of_ppca(model)
    return {
        "method": type(model).__name__,
        "n_features": int(model.n_features_in_),
        "n_components": len(model.components_),
        **facts,
        "n_iter": int(model.n_iter_),
        "noise_variance": float(model.noise_variance_),
        "log_likelihood": float(model.log_likelihood_),
        "version": getattr(model, "version_", None),
    }


def _of_kernel_pca(model: Any) -> dict[str, Any]:
    n_rows = model.components_.shape[1]
    total = float(model._kernel.diagonal(model._rows).sum() - model._row_sums.sum() / n_rows)
    return {
        "n_rows": n_rows,
        "kernel": _kernel(model._kernel),
        "solver": model.solver,
        "dtype": model.dtype,
        "tolerance": float(model._tolerance()),
        "largest_residual": float(model.residuals_.max()),
        "components": [
            {**component, "residual": float(residual)}
            for component, residual in zip(
                _components(model.eigenvalues_, total), model.residuals_, strict=True
            )
        ],
    }


def _of_ppca(model: Any) -> dict[str, Any]:
    variances = model.explained_variance_
    n_left = int(model.n_features_in_) - len(variances)
    total = float(variances.sum() + n_left * model.noise_variance_)
    return {"n_rows": None, "components": _components(variances, total)}


def _components(values: Any, total: float) -> list[dict[str, Any]]:
    found, so_far = [], 0.0
    for number, value in enumerate(values.tolist(), start=1):
        share = value / total if total > 0 else math.nan
        so_far += share
        found.append(
            {"component": number, "eigenvalue": value, "share": share, "share_so_far": so_far}
        )
    return found


def _kernel(kernel: Any) -> dict[str, Any]:
    """Return the kernel with the numbers that it uses."""
    used = {"rbf": ("gamma",), "poly": ("gamma", "degree", "coef0")}.get(kernel.name, ())
    return {"name": kernel.name, **{name: getattr(kernel, name) for name in used}}


def print_projection(console: Console, facts: Mapping[str, Any]) -> None:
    """Print the components of a projection, and how exact they are."""
    for line in _headline(facts):
        console.print(line, highlight=False)
    console.print()
    console.print(_table(facts["components"]))
    if "largest_residual" in facts:
        legend = "An eigenvalue of the kernel matrix lies within the residual of each."
        console.print(legend, style="dim", highlight=False)


def _headline(facts: Mapping[str, Any]) -> list[str]:
    rows = "" if facts["n_rows"] is None else f"{count(facts['n_rows'], 'row')} and "
    method = facts["method"]
    if "kernel" in facts:
        numbers = {**facts["kernel"]}
        name = numbers.pop("name")
        method += f"; {name}" + "".join(f", {n} {value:.6g}" for n, value in numbers.items())
    carried = 100 * facts["components"][-1]["share_so_far"]
    likelihood = facts["log_likelihood"]
    known = f"{likelihood:,.2f}" if math.isfinite(likelihood) else "without bound: nothing is left"
    lines = [
        f"[bold]{count(facts['n_components'], 'component')}[/bold] of {rows}"
        f"{count(facts['n_features'], 'feature')} ({method}).",
        f"They carry {carried:.3g} % of the variance; noise variance "
        f"{facts['noise_variance']:.4g}; log-likelihood {known}.",
    ]
    if "largest_residual" in facts:
        largest = facts["components"][0]["eigenvalue"]
        worst = facts["largest_residual"] / largest if largest > 0 else math.nan
        lines.append(
            f"{count(facts['n_iter'], 'kernel product')}; residuals up to {worst:.2g} of the "
            f"largest eigenvalue (asked for: {facts['tolerance']:.2g})."
        )
    else:
        lines.append(f"{count(facts['n_iter'], 'iteration')} of EM.")
    return lines


def _table(components: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    has_residuals = "residual" in components[0]
    for name in ("component", "eigenvalue", "share", "so far", *["residual"] * has_residuals):
        table.add_column(name, justify="right", no_wrap=True)
    for each in components:
        cells = [f"{each['component']}", f"{each['eigenvalue']:,.6g}"]
        cells += [f"{100 * each[name]:.2f} %" for name in ("share", "share_so_far")]
        cells += [f"{each['residual']:.1e}"] if has_residuals else []
        table.add_row(*cells)
    return table


# ---- what it will cost ---------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelPlan:
    """Cost of a fit of kernel PCA, from the shape alone.

    With N rows of D values, blocks of w columns, P products and T threads:

        seconds = start + [N² (D + e) (P or once) + P N² w] / (rate T)

    where e stands for the exponential, and kernel values that are kept are evaluated once.
    Linear and cosine kernels never form the matrix: P N D w.
    """

    n_rows: int
    n_features: int
    row_values: int  # stored of a row; fewer than features where rows are sparse
    n_shards: int
    kernel: str
    is_product: bool
    itemsize: int  # of kernel values
    width: int  # columns of a block
    products: int
    n_processes: int
    n_threads: int
    budget_bytes: float
    assumed: str

    @property
    def rows_bytes(self) -> float:
        """Bytes of the rows, once."""
        per_value = 1.5 * FLOAT if self.row_values < self.n_features else FLOAT  # with indices
        return float(self.n_rows) * self.row_values * per_value

    @property
    def kernel_bytes(self) -> float:
        """Bytes of the kernel matrix in full."""
        return float(self.n_rows) ** 2 * self.itemsize

    @property
    def kept_bytes(self) -> float:
        """Bytes of it that stay in memory."""
        return 0.0 if self.is_product else min(self.kernel_bytes, self.budget_bytes)

    @property
    def messages(self) -> int:
        """Messages of a round: an order to each process, and its reports."""
        return 2 * self.n_processes

    @property
    def round_bytes(self) -> float:
        """Bytes that a round moves: the block to every process, its product back."""
        return float(FLOAT) * self.n_rows * self.width * (self.n_processes + 1)

    @property
    def seconds(self) -> float:
        """Time of the fit."""
        return START_SECONDS + self.products * self._product_seconds + self._first_seconds

    @property
    def memory_bytes(self) -> float:
        """Memory of all processes: rows here and in each, tiles, the basis."""
        basis = float(FLOAT) * self.n_rows * self.width * BASES
        return self.rows_bytes * (1 + 2 * self.n_processes) + self.kept_bytes + basis

    @property
    def _rate(self) -> float:
        return MULTIPLY_ADDS * (8 / self.itemsize) * max(1, self.n_threads)

    @property
    def _evaluation_seconds(self) -> float:
        """Time of all kernel values once."""
        value = VALUE_SECONDS / max(1, self.n_threads)
        return float(self.n_rows) ** 2 * (self.row_values / self._rate + value)

    @property
    def _first_seconds(self) -> float:
        """Time of what is evaluated once and kept."""
        return 0.0 if self.is_product else self._kept_share * self._evaluation_seconds

    @property
    def _product_seconds(self) -> float:
        if self.is_product:
            return 2.0 * self.n_rows * self.row_values * self.width / self._rate
        again = (1.0 - self._kept_share) * self._evaluation_seconds
        return again + float(self.n_rows) ** 2 * self.width / self._rate

    @property
    def _kept_share(self) -> float:
        return self.kept_bytes / self.kernel_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, ready for JSON."""
        figures = ("rows_bytes", "kernel_bytes", "kept_bytes", "memory_bytes", "messages")
        return {
            "what": "fit KernelPCA",
            "kernel": self.kernel,
            "n_rows": self.n_rows,
            "n_features": self.n_features,
            "n_shards": self.n_shards,
            "n_processes": self.n_processes,
            "n_threads": self.n_threads,
            **{name: getattr(self, name) for name in figures},
            "round_bytes": self.round_bytes,
            "products": self.products,
            "seconds": self.seconds,
            "assumed": self.assumed,
        }

    def facts(self) -> Mapping[str, str]:
        """Return the plan in words."""
        kept = f"{size(self.kept_bytes)} of it ({100 * self._kept_share:.0f} %)"
        if self._kept_share < 1:
            kept += "; the rest is evaluated again for every product"
        full = size(self.kernel_bytes)
        if self.is_product:
            full, kept = "never formed: products with the rows do", "nothing"
        return {
            "plan": f"fit KernelPCA, {self.kernel}",
            "rows and features": f"{self.n_rows:,} x {self.n_features:,}",
            "shards": f"{self.n_shards:,}, in {_processes(self.n_processes)}",
            "bytes of the rows": size(self.rows_bytes),
            "kernel in full": full,
            "kernel kept": kept,
            "memory": f"{size(self.memory_bytes)} in all processes together",
            "a round": f"{self.messages:,} messages, {size(self.round_bytes)}",
            "products": f"about {self.products}",
            "time": f"{duration(self.seconds)} on {count(self.n_threads, 'thread')}",
            "assumed": self.assumed,
        }


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number:,} processes"


def plan_kernel_pca(
    model: KernelPCA, matrix: Matrix, n_processes: int, n_threads: int, memory: float
) -> KernelPlan:
    """Estimate a fit from the shape alone: no row is read.

    Parameters
    ----------
    model
        Not yet fitted; its parameters have been checked.
    matrix
        Its shape is looked at.
    n_processes, n_threads, memory
        Of all that would work: processes, threads together, and their memory in bytes.
    """
    from distclust.projections.krylov import block_width
    from distclust.projections.shards import n_shards
    from distclust.validation import check_bytes

    n_rows, n_features = matrix.shape
    kernel = model._resolved_kernel(n_features, "KernelPCA.fit")
    is_em = model.solver == "em"
    is_auto = model.memory_budget == "auto"
    budget = SHARE * memory if is_auto else check_bytes(model.memory_budget, "memory_budget")
    row_values = min(n_features, ASSUMED_SPARSE_VALUES) if matrix.is_sparse else n_features
    products = EM_PRODUCTS if is_em else KRYLOV_PRODUCTS
    rate = f"{MULTIPLY_ADDS:.2g} multiply-adds a second and thread (twice in float32)"
    told = [f"{products} products: only the spectrum knows how many", rate]
    if matrix.is_sparse:
        told.append(f"{row_values} values other than zero a row")
    return KernelPlan(
        n_rows=n_rows,
        n_features=n_features,
        row_values=row_values,
        n_shards=n_shards(n_rows),
        kernel=kernel.name,
        is_product=kernel.is_product,
        itemsize=4 if model.dtype == "float32" else 8,
        width=int(model.n_components) if is_em else block_width(model.n_components, n_rows),
        products=min(products, int(model.max_iter)),
        n_processes=n_processes,
        n_threads=n_threads,
        budget_bytes=float(budget),
        assumed="; ".join(told),
    )


def plan_transform(model: Model, matrix: Matrix) -> Plan:
    """Estimate the projection of rows, on one thread."""
    n_rows, n_features = matrix.shape
    q = len(model.components_)
    a_row = float(n_features) * q
    if hasattr(model, "eigenvalues_") and not model._kernel.is_product:
        n_known = model.components_.shape[1]
        a_row = n_known * (n_features + q + VALUE_SECONDS * MULTIPLY_ADDS)
    block = FLOAT * min(n_rows, 65_536) * (n_features + q)
    return Plan(
        what=f"transform by {type(model).__name__}",
        n_rows=n_rows,
        n_features=n_features,
        passes=1,
        memory_bytes=4.0 * block,
        disk_bytes=float(FLOAT) * n_rows * q,
        seconds=START_SECONDS + n_rows * a_row / MULTIPLY_ADDS,
    )
