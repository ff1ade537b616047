"""Mixtures of one race, each in a process of its own on one core: ``METHOD DATA OUT``.

A method yields, after every step, the densities that it predicts for held-out rows. Looking at
them is not on its clock, and neither is compiling. Samplers predict with the mean of their draws,
without the first half of them; variational methods with what they have at the moment.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Race:
    """Rows to fit, rows to predict, and how long.

    Attributes
    ----------
    rows, held_out
        Shapes (n, d) and (m, d).
    truncation
        Components of methods that need a number.
    budget
        Seconds on the clock.
    steps
        Steps at most.
    """

    rows: Doubles
    held_out: Doubles
    truncation: int
    budget: float
    steps: int


@dataclass(frozen=True)
class Step:
    """One step: its seconds, and a function that returns log densities, shape (m,)."""

    seconds: float
    predict: Callable[[], Doubles]
    n_clusters: Callable[[], int]


Method = Callable[[Race], Iterator[Step]]


def follow(method: Method, race: Race, *, is_sampler: bool) -> dict[str, Any]:
    """Run a method; return its steps, seconds and the curve of its predictions."""
    seconds: list[float] = []
    curve: list[tuple[float, float]] = []
    draws: list[Doubles] = []
    n_clusters = 0
    for step in method(race):
        seconds.append(step.seconds)
        total = sum(seconds)
        is_last = total >= race.budget or len(seconds) >= race.steps
        if is_last or _is_looked_at(len(seconds)):
            found = step.predict()
            draws.append(found)
            n_clusters = step.n_clusters()
            if is_sampler:
                found = _log_mean(draws[len(draws) // 2 :])
            curve.append((total, float(found.mean())))
        if is_last:
            break
    half = seconds[len(seconds) // 2 :]
    return {
        "steps": len(seconds),
        "seconds": sum(seconds),
        "step_seconds": float(np.median(half)),
        "curve": curve,
        "n_clusters": n_clusters,
        "is_sampler": is_sampler,
    }


def _is_looked_at(step: int) -> bool:
    """Return whether a step is looked at: all at first, then about every tenth part more."""
    return step <= 20 or step % max(1, 10 ** int(math.log10(step)) // 10) == 0


def _log_mean(draws: list[Doubles]) -> Doubles:
    found: Doubles = np.logaddexp.reduce(np.stack(draws), axis=0) - math.log(len(draws))
    return found


# ---- ours ----------------------------------------------------------------------------------------


def urn(race: Race) -> Iterator[Step]:
    """Collapsed Gibbs sampling, splits and merges included."""
    from distclust.mixtures.concentration import EscobarWest
    from distclust.mixtures.urn import UrnSampler

    family = resolved(race.rows)
    yield from _ours(race, family, UrnSampler(race.rows, family, EscobarWest()))


def blocked_tdp(race: Race) -> Iterator[Step]:
    """Blocked Gibbs sampling of truncated stick-breaking."""
    yield from _blocked(race, "tdp")


def blocked_dma(race: Race) -> Iterator[Step]:
    """Blocked Gibbs sampling of a finite Dirichlet mixture."""
    yield from _blocked(race, "dma")


def _blocked(race: Race, variant: str) -> Iterator[Step]:
    from distclust.mixtures.blocked import BlockedSampler
    from distclust.mixtures.concentration import EscobarWest

    family = resolved(race.rows)
    sampler = BlockedSampler(race.rows, family, EscobarWest(), race.truncation, variant, "mixed")
    yield from _ours(race, family, sampler)


def resolved(rows: Doubles) -> Any:
    """Diagonal Gaussians with the priors that the estimator gives them."""
    from distclust.engine import as_matrix
    from distclust.trees.data import first_look, resolve_family

    matrix = as_matrix(rows)
    family, _ = resolve_family("diagonal_gaussian", matrix, first_look(matrix), "benchmark", None)
    return family


def _ours(race: Race, family: Any, sampler: Any) -> Iterator[Step]:
    from distclust.seeding import generator

    place = sampler.open()
    sampler.sweep(place, sampler.begin(0, generator(1, "warm", 0)))  # compiled functions
    begun = time.perf_counter()
    state = sampler.begin(0, generator(0, "chain", 0))
    extra = time.perf_counter() - begun  # where a chain starts is on its clock
    while True:
        begun = time.perf_counter()
        state = sampler.sweep(place, state)
        spent = time.perf_counter() - begun + extra
        extra = 0.0
        labels, concentration = sampler.labels(state).copy(), state.concentration

        def predict(labels: Any = labels, concentration: float = concentration) -> Doubles:
            return partition_density(race, family, labels, concentration)

        def count(labels: Any = labels) -> int:
            return len(np.unique(labels))

        yield Step(spent, predict, count)


def partition_density(race: Race, family: Any, labels: Any, concentration: float) -> Doubles:
    """What a partition predicts: its clusters by their sizes, and a new one."""
    from distclust.trees.prediction import log_density

    _, numbers = np.unique(labels, return_inverse=True)
    n_clusters = int(numbers.max()) + 1
    stats = np.zeros((n_clusters + 1, family.n_statistics))
    stats[:-1] = family.accumulate(race.rows, numbers, n_clusters)
    sizes = np.append(stats[:-1, 0], concentration)
    return log_density(race.held_out, 0, family, stats, np.log(sizes / sizes.sum()))


# ---- scikit-learn --------------------------------------------------------------------------------


def sklearn_variational(race: Race) -> Iterator[Step]:
    """BayesianGaussianMixture, diagonal, Dirichlet process; its Student-t predictive."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import BayesianGaussianMixture

    steps: list[Step] = []

    class Watched(BayesianGaussianMixture):  # type: ignore[misc]
        """Tells of every iteration."""

        begun = 0.0

        def _print_verbose_msg_iter_end(self, *arguments: Any) -> None:
            now = time.perf_counter()
            kept = _student_mixture(self)
            steps.append(
                Step(now - self.begun, lambda: _student_density(race.held_out, *kept),
                     lambda: int((kept[0] > 1.0 / len(race.rows)).sum()))
            )  # fmt: skip
            self.begun = time.perf_counter()

    model = Watched(
        n_components=race.truncation,
        covariance_type="diag",
        weight_concentration_prior_type="dirichlet_process",
        max_iter=race.steps,
        tol=1e-6,
        random_state=0,
    )
    model.begun = time.perf_counter()  # k-means, where it starts from, is on its clock
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(race.rows)
    yield from steps


def _student_mixture(model: Any) -> tuple[Doubles, ...]:
    first, second = model.weight_concentration_
    shares = first / (first + second)
    weights = shares * np.cumprod(np.append(1.0, (second / (first + second))[:-1]))
    spread = model.covariances_ * (1.0 + 1.0 / model.mean_precision_)[:, None]
    return weights, model.means_.copy(), spread, model.degrees_of_freedom_.copy()


def _student_density(
    rows: Doubles, weights: Doubles, means: Doubles, spread: Doubles, freedom: Doubles
) -> Doubles:
    from scipy.special import gammaln

    total = np.full(len(rows), -np.inf)
    for weight, mean, square, nu in zip(weights, means, spread, freedom, strict=True):
        constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi * square)
        terms = constant - (nu + 1) / 2 * np.log1p((rows - mean) ** 2 / (nu * square))
        total = np.logaddexp(total, np.log(weight + 1e-300) + terms.sum(axis=1))
    return total


# ---- NumPyro -------------------------------------------------------------------------------------


def numpyro_nuts(race: Race) -> Iterator[Step]:
    """NUTS on the mixture with memberships summed out."""
    from numpyro.infer import NUTS, init_to_value

    parts = _NumPyroParts(race)
    kernel = NUTS(parts.summed_out, init_strategy=init_to_value(values=parts.start()))
    yield from parts.steps_of(kernel, lambda state: state.z)


def numpyro_gibbs(race: Race) -> Iterator[Step]:
    """Memberships all at once from their conditional, the rest by NUTS (HMCGibbs)."""
    from numpyro.infer import NUTS, HMCGibbs, init_to_value

    parts = _NumPyroParts(race)
    start = parts.start()
    inner = NUTS(parts.with_memberships, init_strategy=init_to_value(values=start))
    kernel = HMCGibbs(inner, gibbs_fn=parts.draw_memberships, gibbs_sites=["z"])
    yield from parts.steps_of(kernel, lambda state: state.z, is_gibbs=True)


def numpyro_svi(race: Race) -> Iterator[Step]:
    """Stochastic variational inference with independent normals, ten steps of Adam each."""
    import jax
    from numpyro.infer import SVI, Trace_ELBO, init_to_value
    from numpyro.infer.autoguide import AutoNormal
    from numpyro.optim import Adam

    parts = _NumPyroParts(race)
    guide = AutoNormal(parts.summed_out, init_loc_fn=init_to_value(values=parts.start()))
    svi = SVI(parts.summed_out, guide, Adam(0.01), Trace_ELBO())
    state = svi.init(jax.random.PRNGKey(0), parts.x)

    def ten(state: Any) -> Any:
        return jax.lax.fori_loop(0, 10, lambda _, s: svi.update(s, parts.x)[0], state)

    step = jax.jit(ten).lower(state).compile()
    sample = jax.jit(lambda v: guide.sample_posterior(jax.random.PRNGKey(1), v, sample_shape=(10,)))
    while True:
        begun = time.perf_counter()
        state = jax.block_until_ready(step(state))
        spent = time.perf_counter() - begun
        values = svi.get_params(state)

        def predict(values: Any = values) -> Doubles:
            draws = sample(values)
            each = [{name: value[i] for name, value in draws.items()} for i in range(10)]
            return _log_mean([parts.density(draw) for draw in each])

        def count(values: Any = values) -> int:
            return parts.count({name: value[0] for name, value in sample(values).items()})

        yield Step(spent, predict, count)


class _NumPyroParts:
    """A truncated stick-breaking mixture with the priors that ours has."""

    def __init__(self, race: Race) -> None:
        import jax
        import jax.numpy as jnp
        import numpyro

        numpyro.enable_x64()
        family = resolved(race.rows)
        self.race = race
        self.x = jnp.asarray(race.rows)
        self.jax, self.jnp = jax, jnp
        n_columns = race.rows.shape[1]
        self.shape, self.rate, self.strength, self.mean = (
            jnp.asarray(np.broadcast_to(np.asarray(value, np.float64), (n_columns,)))
            for value in (family.shape, family.rate, family.strength, family.mean)
        )

    def _parameters(self) -> tuple[Any, Any, Any]:
        import numpyro
        import numpyro.distributions as dist

        n = self.race.truncation
        concentration = numpyro.sample("concentration", dist.Gamma(1.0, 1.0))
        sticks = numpyro.sample("sticks", dist.Beta(1.0, concentration).expand([n - 1]).to_event(1))
        gamma = dist.Gamma(self.shape, self.rate).expand([n, len(self.shape)])
        precision = numpyro.sample("precision", gamma.to_event(2))
        width = 1.0 / self.jnp.sqrt(self.strength * precision)
        means = numpyro.sample("means", dist.Normal(self.mean, width).to_event(2))
        return self.weights(sticks), means, 1.0 / self.jnp.sqrt(precision)

    def weights(self, sticks: Any) -> Any:
        """Weights of components from sticks."""
        rest = self.jnp.concatenate([self.jnp.ones(1), self.jnp.cumprod(1.0 - sticks)])
        return self.jnp.concatenate([sticks, self.jnp.ones(1)]) * rest

    def summed_out(self, x: Any) -> None:
        """The model without memberships."""
        import numpyro
        import numpyro.distributions as dist

        weights, means, width = self._parameters()
        parts = dist.Normal(means, width).to_event(1)
        mixture = dist.MixtureSameFamily(dist.Categorical(weights), parts)
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("x", mixture, obs=x)

    def with_memberships(self, x: Any) -> None:
        """The model with memberships, which somebody else draws."""
        import numpyro
        import numpyro.distributions as dist

        weights, means, width = self._parameters()
        with numpyro.plate("rows", x.shape[0]):
            z = numpyro.sample("z", dist.Categorical(weights))
            numpyro.sample("x", dist.Normal(means[z], width[z]).to_event(1), obs=x)

    def draw_memberships(self, rng_key: Any, gibbs_sites: Any, hmc_sites: Any) -> Any:
        """Draw memberships given the rest."""
        precision, means = hmc_sites["precision"], hmc_sites["means"]
        scores = self.jnp.log(self.weights(hmc_sites["sticks"]))
        scores += 0.5 * self.jnp.log(precision).sum(axis=1)
        scores -= 0.5 * (precision * means**2).sum(axis=1)
        scores = scores - 0.5 * self.x**2 @ precision.T + self.x @ (precision * means).T
        return {"z": self.jax.random.categorical(rng_key, scores)}

    def start(self) -> dict[str, Any]:
        """Values of k-means: a start that the model would hardly find by itself."""
        from sklearn.cluster import KMeans

        n = self.race.truncation
        rows = self.race.rows
        found = KMeans(n, n_init=1, random_state=0).fit(rows)
        order = np.argsort(-np.bincount(found.labels_, minlength=n))
        labels = np.argsort(order)[found.labels_]
        sizes = np.bincount(labels, minlength=n)
        spread = np.stack(
            [rows[labels == k].var(axis=0) if sizes[k] > 1 else rows.var(axis=0) for k in range(n)]
        )
        left = sizes[::-1].cumsum()[::-1]
        sticks = np.clip(sizes[:-1] / left[:-1], 1e-3, 1.0 - 1e-3)
        return {
            "concentration": self.jnp.asarray(1.0),
            "sticks": self.jnp.asarray(sticks),
            "means": self.jnp.asarray(found.cluster_centers_[order]),
            "precision": self.jnp.asarray(1.0 / np.maximum(spread, 1e-3)),
            "z": self.jnp.asarray(labels),
        }

    def steps_of(
        self, kernel: Any, values_of: Callable[[Any], Any], *, is_gibbs: bool = False
    ) -> Iterator[Step]:
        """Steps of a kernel; half of the steps adapt it."""
        key = self.jax.random.PRNGKey(0)
        state = kernel.init(key, self.race.steps // 2, None, (self.x,), {})
        step = self.jax.jit(lambda s: kernel.sample(s, (self.x,), {})).lower(state).compile()
        constrain = self.jax.jit(kernel.postprocess_fn((self.x,), {}))
        while True:
            begun = time.perf_counter()
            state = self.jax.block_until_ready(step(state))
            spent = time.perf_counter() - begun
            values = values_of(state)

            def predict(values: Any = values) -> Doubles:
                return self.density(constrain(values))

            def count(values: Any = values) -> int:
                found = constrain(values)
                return len(np.unique(found["z"])) if is_gibbs else self.count(found)

            yield Step(spent, predict, count)

    def density(self, values: Any) -> Doubles:
        """Log density of held-out rows given parameters."""
        weights = np.asarray(self.weights(self.jnp.asarray(values["sticks"])))
        precision, means = np.asarray(values["precision"]), np.asarray(values["means"])
        total = np.full(len(self.race.held_out), -np.inf)
        for weight, tau, mean in zip(weights, precision, means, strict=True):
            square = (tau * (self.race.held_out - mean) ** 2).sum(axis=1)
            constant = 0.5 * np.log(tau / (2 * np.pi)).sum() + np.log(max(weight, 1e-300))
            total = np.logaddexp(total, constant - 0.5 * square)
        return total

    def count(self, values: Any) -> int:
        """How many components have the weight of a row."""
        weights = np.asarray(self.weights(self.jnp.asarray(values["sticks"])))
        return int((weights > 1.0 / len(self.race.rows)).sum())


# ---- all of them ---------------------------------------------------------------------------------

#: Name, what runs it, whether it samples, and the package that it needs.
METHODS: dict[str, tuple[Method, bool, str]] = {
    "distclust, collapsed": (urn, True, "distclust"),
    "distclust, blocked-tdp": (blocked_tdp, True, "distclust"),
    "distclust, blocked-dma": (blocked_dma, True, "distclust"),
    "scikit-learn, variational": (sklearn_variational, False, "sklearn"),
    "NumPyro, NUTS": (numpyro_nuts, True, "numpyro"),
    "NumPyro, HMCGibbs": (numpyro_gibbs, True, "numpyro"),
    "NumPyro, SVI": (numpyro_svi, False, "numpyro"),
}


def is_installed(name: str) -> bool:
    """Whether the package of a method is there."""
    return importlib.util.find_spec(METHODS[name][2]) is not None


def main() -> None:
    """Run one method and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=list(METHODS))
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before pools of threads are made
    with np.load(options.data) as file:
        race = Race(
            file["rows"], file["held_out"], int(file["truncation"]),
            float(file["budget"]), int(file["steps"]),
        )  # fmt: skip
    method, is_sampler, _ = METHODS[options.method]
    options.out.write_text(json.dumps(follow(method, race, is_sampler=is_sampler)))


if __name__ == "__main__":
    main()
