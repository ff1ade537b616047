r"""The concentration of a Dirichlet process: what partitions say about it, and how it is drawn.

A larger concentration means more clusters. Given the number of clusters K and of rows N, all
that a partition says about it is

.. math:: \alpha^K \Gamma(\alpha) / \Gamma(\alpha + N),

times its Gamma prior. `EscobarWest` draws from this exactly and is the default. `FittedGamma`
proposes from a Gamma distribution with the same mean and variance. Truncated mixtures have
likelihoods of their own; their draws are functions at the end.

All is computed in the logarithm of the concentration, so that neither tiny nor huge values
lose digits. N may be a sum of weights.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.special import digamma, gammaln

from distclust.errors import InputError
from distclust.validation import check_real

Floats = npt.NDArray[np.float64]

_FURTHEST = 690.0  # logarithms of concentrations stay within this: exp is a normal number
_STIRLING_FROM = 16.0  # the series below is exact to the last bits from here
_DROP = 40.0  # densities below exp(-40) of their peak add nothing
_POINTS = 512
_WALK_STEP = 0.5
_SLICE_WIDTH = 1.0


@dataclass(frozen=True)
class GammaPrior:
    """Gamma prior of a concentration; its mean is ``shape / rate``."""

    shape: float = 1.0
    rate: float = 1.0

    def __post_init__(self) -> None:
        for name in ("shape", "rate"):
            value = check_real(getattr(self, name), f"GammaPrior({name})", above=0.0)
            object.__setattr__(self, name, value)


class Concentration(ABC):
    """How the concentration of a Dirichlet process is drawn, given a partition.

    Attributes
    ----------
    prior
        What is believed beforehand, or None where the value is given.
    """

    prior: GammaPrior | None

    @abstractmethod
    def start(self) -> float:
        """Return the value that a chain starts with."""

    @abstractmethod
    def draw(
        self, value: float, n_clusters: int, n_rows: float, generator: np.random.Generator
    ) -> float:
        """Return the next value, given the present one and the partition's sizes."""


@dataclass(frozen=True)
class FixedConcentration(Concentration):
    """A concentration that is given and stays as it is."""

    value: float
    prior: None = field(default=None, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_real(self.value, "concentration", above=0.0))

    def start(self) -> float:
        """Return the value."""
        return self.value

    def draw(
        self, value: float, n_clusters: int, n_rows: float, generator: np.random.Generator
    ) -> float:
        """Return the value; nothing is drawn."""
        return self.value


@dataclass(frozen=True)
class EscobarWest(Concentration):
    r"""Exact draws by an auxiliary variable.

    With :math:`\eta \sim Beta(\alpha + 1, N)` the concentration is one of two Gamma
    distributions with rate :math:`b - \ln \eta`, and shapes a + K and a + K - 1.
    """

    prior: GammaPrior = GammaPrior()

    def start(self) -> float:
        """Return the prior mean."""
        return self.prior.shape / self.prior.rate

    def draw(
        self, value: float, n_clusters: int, n_rows: float, generator: np.random.Generator
    ) -> float:
        """Return a draw given the auxiliary variable, which is drawn first."""
        rest = generator.standard_gamma(n_rows) / generator.standard_gamma(value + 1.0)
        rate = self.prior.rate + math.log1p(rest)  # the auxiliary variable is 1 / (1 + rest)
        shape = self.prior.shape + n_clusters - 1.0
        odds = shape / (n_rows * rate)
        if generator.random() * (1.0 + odds) < odds:
            shape += 1.0
        return _from_log(log_gamma_draw(shape, generator) - math.log(rate))


@dataclass(frozen=True)
class FittedGamma(Concentration):
    """Metropolis-Hastings with a Gamma proposal that has the posterior's mean and variance.

    The posterior falls off as its prior does, more slowly than the proposal. So one step in
    ten is a random walk of the logarithm: a value far out is left again.

    Attributes
    ----------
    prior
        Of the concentration.
    walk
        Share of the steps that are random walks.
    """

    prior: GammaPrior = GammaPrior()
    walk: float = 0.1

    def start(self) -> float:
        """Return the prior mean."""
        return self.prior.shape / self.prior.rate

    def draw(
        self, value: float, n_clusters: int, n_rows: float, generator: np.random.Generator
    ) -> float:
        """Return the proposed value, or the present one."""
        key = (n_clusters, n_rows, self.prior.shape, self.prior.rate)
        now = math.log(value)
        if generator.random() < self.walk:
            then = now + _WALK_STEP * generator.standard_normal()
            gain = 0.0
        else:
            shape, rate = fitted_gamma(*key)
            then = log_gamma_draw(shape, generator) - math.log(rate)
            gain = _log_gamma_density(now, shape, rate) - _log_gamma_density(then, shape, rate)
        then = min(max(then, -_FURTHEST), _FURTHEST)
        gain += _log_density(then, *key) - _log_density(now, *key)
        accepted = math.log1p(-generator.random()) < gain
        return math.exp(then) if accepted else value


def concentration_of(value: object, where: str) -> Concentration:
    """Return how a concentration is drawn: "gamma", a positive number, or a prior.

    "gamma" stands for a Gamma prior with shape and rate 1, drawn exactly.
    """
    if isinstance(value, Concentration):
        return value
    if isinstance(value, GammaPrior):
        return EscobarWest(value)
    if isinstance(value, str) and value == "gamma":
        return EscobarWest()
    if isinstance(value, str):
        raise InputError(where, "'gamma' or a positive number", repr(value), "Pass one of the two.")
    return FixedConcentration(check_real(value, where, above=0.0))


def log_partition(n_rows_by_cluster: npt.ArrayLike, concentration: float) -> float:
    r"""Return the log probability of a partition under the Chinese restaurant process.

    .. math:: K \ln\alpha + \ln\Gamma(\alpha) - \ln\Gamma(\alpha + N)
              + \sum_k \ln\Gamma(N_k)

    Clusters of size 0 are left out. Sizes may be sums of weights.
    """
    sizes = np.asarray(n_rows_by_cluster, dtype=np.float64)
    sizes = sizes[sizes > 0]
    clusters = len(sizes) * math.log(concentration) + float(np.sum(gammaln(sizes)))
    return clusters - log_rising(concentration, float(np.sum(sizes)))


def expected_clusters(concentration: float, n_rows: float) -> float:
    r"""Return how many clusters a Dirichlet process makes of so many rows, on average.

    :math:`\sum_{i<N} \alpha / (\alpha + i) = \alpha (\psi(\alpha + N) - \psi(\alpha))`.
    """
    if concentration < _STIRLING_FROM:
        # psi(a) = psi(a + 1) - 1 / a, where a tiny a takes no digits away.
        later = digamma(concentration + n_rows) - digamma(concentration + 1.0)
        return float(1.0 + concentration * later)
    small, large = concentration, concentration + n_rows
    change = math.log1p(n_rows / small) + _digamma_rest(large) - _digamma_rest(small)
    return float(concentration * change)


def fitted_gamma(
    n_clusters: int, n_rows: float, prior_shape: float, prior_rate: float
) -> tuple[float, float]:
    """Return shape and rate of the Gamma distribution with the posterior's mean and variance.

    ``prior_shape=1, prior_rate=0`` gives the bare likelihood, whose mean and variance exist
    only with four rows more than clusters. Fits are remembered.
    """
    mean, variance = posterior_moments(n_clusters, n_rows, prior_shape, prior_rate)
    return mean**2 / variance, mean / variance


@functools.lru_cache(maxsize=4096)
def posterior_moments(
    n_clusters: int, n_rows: float, prior_shape: float, prior_rate: float
) -> tuple[float, float]:
    """Return mean and variance of the posterior, by the trapezoid rule in the logarithm."""
    key = (n_clusters, n_rows, prior_shape, prior_rate)

    def slope(u: float) -> float:
        value = math.exp(u)
        pull = prior_rate * value + expected_clusters(value, n_rows)
        return prior_shape + n_clusters - pull

    peak = _falls_below(slope, 0.0, -_FURTHEST, _FURTHEST)
    floor = _log_density(peak, *key) - _DROP
    low = -_falls_below(lambda v: _log_density(-v, *key), floor, -peak, _FURTHEST)
    high = _falls_below(lambda u: _log_density(u, *key), floor, peak, _FURTHEST)
    logs = np.linspace(low, high, max(_POINTS, math.ceil((high - low) / 0.1)))
    weights = np.exp([_log_density(u, *key) - floor - _DROP for u in logs])
    weights /= np.sum(weights)
    values = np.exp(logs)
    mean = float(weights @ values)
    return mean, float(weights @ (values - mean) ** 2)


def log_rising(value: float, n: float) -> float:
    r"""Return :math:`\ln\Gamma(x + n) - \ln\Gamma(x)`, without cancellation for large x."""
    if min(value, value + n) < _STIRLING_FROM:
        return math.lgamma(value + n) - math.lgamma(value)
    total = value + n
    rest = _stirling_rest(total) - _stirling_rest(value)
    return (value - 0.5) * math.log1p(n / value) + n * (math.log(total) - 1.0) + rest


def log_gamma_draw(shape: float, generator: np.random.Generator) -> float:
    """Return the logarithm of a draw from the Gamma distribution with rate 1.

    For a small shape the draw itself would often be zero, its logarithm is not.
    """
    if shape >= 1.0:
        return math.log(generator.standard_gamma(shape))
    lift = math.log1p(-generator.random()) / shape
    return math.log(generator.standard_gamma(shape + 1.0)) + lift


# ---- truncated mixtures ------------------------------------------------------------------


def log_symmetric_partition(sizes: npt.ArrayLike, concentration: float, n_components: int) -> float:
    r"""Return the log probability of a partition under a symmetric Dirichlet prior.

    With M components of weight :math:`\alpha / M` each, K of them occupied,

    .. math:: \ln\frac{M!}{(M - K)!} + \ln\Gamma(\alpha) - \ln\Gamma(\alpha + N)
              + \sum_{k: n_k > 0} [\ln\Gamma(\alpha/M + n_k) - \ln\Gamma(\alpha/M)].

    It tends to `log_partition` as M grows. The first term counts the ways to name the
    clusters; the partition does not tell them apart.
    """
    occupied = _occupied(sizes)
    names = math.lgamma(n_components + 1.0) - math.lgamma(n_components - len(occupied) + 1.0)
    return names + _log_symmetric(math.log(concentration), occupied, n_components)


def log_stick_labels(sizes: npt.ArrayLike, concentration: float) -> float:
    r"""Return the log probability of labels under a truncated Dirichlet process.

    With n_j rows in component j of M,
    :math:`\sum_{j<M} [\ln B(1 + n_j, \alpha + \sum_{l>j} n_l) - \ln B(1, \alpha)]`. Components
    have names here: their order matters.
    """
    counts = np.asarray(sizes, dtype=np.float64)
    later = float(np.sum(counts))
    total = 0.0
    for size in counts[:-1].tolist():
        later -= size
        base = concentration + later
        total += math.log(concentration) - math.log(base)
        total += math.lgamma(1.0 + size) - log_rising(1.0 + base, size)
    return total


def draw_symmetric_concentration(
    value: float,
    sizes: npt.ArrayLike,
    n_components: int,
    prior: GammaPrior,
    generator: np.random.Generator,
) -> float:
    """Return a draw of the concentration of a symmetric Dirichlet prior, given group sizes.

    By slice sampling of its logarithm. The weights of the components are integrated out:
    given them the draw would be hopeless, since some weights are zero in floating point.
    """
    occupied = _occupied(sizes)

    def log_density(u: float) -> float:
        likelihood = _log_symmetric(u, occupied, n_components)
        return likelihood + prior.shape * u - prior.rate * math.exp(u)

    return math.exp(_slice(math.log(value), log_density, generator))


def draw_stick_concentration(
    log_rest: float, n_components: int, prior: GammaPrior, generator: np.random.Generator
) -> float:
    r"""Return a draw of the concentration, given the sticks of a truncated process.

    `log_rest` is :math:`\sum_{j<M} \ln(1 - V_j)`; the draw is from
    Gamma(shape + M - 1, rate - log_rest).
    """
    shape = prior.shape + n_components - 1.0
    return _from_log(log_gamma_draw(shape, generator) - math.log(prior.rate - log_rest))


def _occupied(sizes: npt.ArrayLike) -> list[float]:
    return [float(size) for size in np.asarray(sizes, dtype=np.float64) if size > 0]


def _log_symmetric(u: float, occupied: list[float], n_components: int) -> float:
    """Return the log probability of named groups, given the logarithm of the concentration.

    Gamma functions of tiny numbers are written as Gamma(x) = Gamma(x + 1) / x.
    """
    value = math.exp(u)
    share = value / n_components
    total = (len(occupied) - 1.0) * u - len(occupied) * math.log(n_components)
    total -= log_rising(1.0 + value, sum(occupied) - 1.0)
    return total + sum(log_rising(1.0 + share, size - 1.0) for size in occupied)


def _slice(
    now: float, log_density: Callable[[float], float], generator: np.random.Generator
) -> float:
    """Return one step of slice sampling, stepping out and shrinking (Neal, 2003)."""
    level = log_density(now) + math.log1p(-generator.random())
    low = now - _SLICE_WIDTH * generator.random()
    high = low + _SLICE_WIDTH
    while low > -_FURTHEST and log_density(low) > level:
        low -= _SLICE_WIDTH
    while high < _FURTHEST and log_density(high) > level:
        high += _SLICE_WIDTH
    low, high = max(low, -_FURTHEST), min(high, _FURTHEST)
    while True:
        then = low + (high - low) * generator.random()
        if log_density(then) >= level:
            return then
        if then < now:
            low = then
        else:
            high = then


# ---- posterior of the logarithm ----------------------------------------------------------


def _log_density(
    u: float, n_clusters: int, n_rows: float, prior_shape: float, prior_rate: float
) -> float:
    """Return the log posterior density of the logarithm `u`, up to a constant.

    Gamma(x) is written as Gamma(x + 1) / x, which has no pole where x becomes zero.
    """
    value = math.exp(u)
    powers = (prior_shape + n_clusters - 1.0) * u
    return powers - prior_rate * value - log_rising(1.0 + value, n_rows - 1.0)


def _log_gamma_density(u: float, shape: float, rate: float) -> float:
    return shape * u - rate * math.exp(u)


def _falls_below(
    function: Callable[[float], float], level: float, low: float, high: float
) -> float:
    """Return where a falling function meets a level, by bisection; an end if it never does."""
    for _ in range(60):
        middle = 0.5 * (low + high)
        if function(middle) > level:
            low = middle
        else:
            high = middle
    return high


def _from_log(u: float) -> float:
    return math.exp(min(max(u, -_FURTHEST), _FURTHEST))


def _stirling_rest(x: float) -> float:
    """Return what Stirling's formula for the log Gamma function leaves, for large x."""
    y = 1.0 / (x * x)
    return (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y / 1188)))) / x


def _digamma_rest(x: float) -> float:
    """Return the digamma function less the logarithm, for large x."""
    y = 1.0 / (x * x)
    return -0.5 / x - y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y / 240)))
