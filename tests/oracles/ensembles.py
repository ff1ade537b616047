"""Consensus models of label rows, slow and obvious: every probability as a sum or a ratio.

Nothing here is shared with the package. Label matrices hold -1 where a label is missing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from math import lgamma

import numpy as np


def partitions(n: int) -> Iterator[tuple[int, ...]]:
    """Yield every partition of n items as labels in order of first appearance."""

    def grow(labels: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(labels) == n:
            yield labels
            return
        for k in range(max(labels, default=-1) + 2):
            yield from grow((*labels, k))

    yield from grow(())


def canonical(labels) -> tuple[int, ...]:
    """Return labels in order of first appearance."""
    seen: dict[int, int] = {}
    return tuple(seen.setdefault(int(k), len(seen)) for k in labels)


def log_dirichlet_multinomial(counts, pseudo) -> float:
    """Return the log probability of an ordered sequence with such counts."""
    total = lgamma(sum(pseudo)) - lgamma(sum(pseudo) + sum(counts))
    return total + sum(lgamma(a + c) - lgamma(a) for c, a in zip(counts, pseudo, strict=True))


def dpce_log_labels(labels, codes, n_labels, betas) -> float:
    """Return log p(Y | z)."""
    total = 0.0
    for k in set(labels):
        for m, n in enumerate(n_labels):
            counts = [0] * n
            for z, row in zip(labels, codes, strict=True):
                if z == k and row[m] >= 0:
                    counts[row[m]] += 1
            total += log_dirichlet_multinomial(counts, [betas[m] / n] * n)
    return total


def log_eppf(labels, alpha) -> float:
    """Return log p(z | alpha), one item after another as in the Chinese restaurant."""
    total, sizes = 0.0, {}
    for i, k in enumerate(labels):
        total += math.log(sizes.get(k, 0) or alpha) - math.log(alpha + i)
        sizes[k] = sizes.get(k, 0) + 1
    return total


def dpce_log_joint(labels, codes, n_labels, betas, alpha) -> float:
    """Return log p(z | alpha) p(Y | z)."""
    return log_eppf(labels, alpha) + dpce_log_labels(labels, codes, n_labels, betas)


def dpce_posterior(codes, n_labels, betas, alpha) -> dict[tuple[int, ...], float]:
    """Return the posterior of every partition."""
    logs = {
        labels: dpce_log_joint(labels, codes, n_labels, betas, alpha)
        for labels in partitions(len(codes))
    }
    top = max(logs.values())
    total = sum(math.exp(value - top) for value in logs.values())
    return {labels: math.exp(value - top) / total for labels, value in logs.items()}


def dpce_gibbs(labels, codes, n_labels, betas, alpha, n_sweeps, rng) -> Iterator[np.ndarray]:
    """Yield the partition after each sweep of the plainest Gibbs sampler, one row at a time.

    Labels are complete. Every weight is a product of shares, new clusters have empty counts.
    """
    z = np.array(labels)
    cells = np.asarray(codes) + np.cumsum([0, *n_labels[:-1]])
    pseudo = np.array(betas) / n_labels
    hot = np.zeros((len(z), sum(n_labels)))
    np.put_along_axis(hot, cells, 1.0, axis=1)
    sizes, counts = np.zeros(len(z) + 1), np.zeros((len(z) + 1, sum(n_labels)))
    np.add.at(sizes, z, 1.0)
    np.add.at(counts, z, hot)
    for _ in range(n_sweeps):
        for i, row in enumerate(cells):
            sizes[z[i]] -= 1.0
            counts[z[i]] -= hot[i]
            taken = np.flatnonzero(sizes)
            places = np.append(taken, np.flatnonzero(sizes == 0)[0])
            shares = (counts[places][:, row] + pseudo) / (sizes[places, None] + betas)
            weights = np.append(sizes[taken], alpha) * shares.prod(axis=1)
            z[i] = places[np.searchsorted(np.cumsum(weights), rng.random() * weights.sum())]
            sizes[z[i]] += 1.0
            counts[z[i]] += hot[i]
        yield z.copy()


def blocked_posterior(codes, n_labels, betas, alpha, n_sticks) -> dict[tuple[int, ...], float]:
    """Return the posterior of every partition under a truncated stick-breaking prior."""
    found: dict[tuple[int, ...], float] = {}
    for labels in itertools.product(range(n_sticks), repeat=len(codes)):
        sizes = [labels.count(k) for k in range(n_sticks)]
        log_prior = 0.0
        for k in range(n_sticks - 1):
            later = sum(sizes[k + 1 :])
            log_prior += log_beta(1 + sizes[k], alpha + later) - log_beta(1, alpha)
        value = math.exp(log_prior + dpce_log_labels(labels, codes, n_labels, betas))
        key = canonical(labels)
        found[key] = found.get(key, 0.0) + value
    total = sum(found.values())
    return {labels: value / total for labels, value in found.items()}


def log_beta(a, b) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def pair_probabilities(posterior, n) -> np.ndarray:
    """Return how likely two items are together, shape (n, n)."""
    found = np.zeros((n, n))
    for labels, value in posterior.items():
        z = np.array(labels)
        found += value * (z[:, None] == z[None, :])
    return found


def total_variation(a, b) -> float:
    keys = set(a) | set(b)
    return 0.5 * sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in keys)


def dpce_predictive(row, labels, codes, n_labels, betas, alpha) -> float:
    """Return p(y* | z, Y) as a ratio: the joint with one more row, wherever it may go."""
    n = max(labels) + 1
    more = [*map(list, codes), list(row)]
    logs = [dpce_log_joint((*labels, k), more, n_labels, betas, alpha) for k in range(n + 1)]
    now = dpce_log_joint(labels, codes, n_labels, betas, alpha)
    return sum(math.exp(value - now) for value in logs)


def mixture_probability(row, shares, theta, n_labels) -> float:
    """Return p(y) of one row under a mixture of products of multinomials."""
    offsets = np.cumsum([0, *n_labels])
    total = 0.0
    for k, share in enumerate(shares):
        value = share
        for m, label in enumerate(row):
            if label >= 0:
                value *= theta[offsets[m] + label][k]
        total += value
    return total


def bce_log_joint(indicators, codes, n_labels, prior, smoothing) -> float:
    """Return log p(s, y) with memberships and distributions integrated out."""
    n_components = len(prior)
    total = 0.0
    for row, chosen in zip(codes, indicators, strict=True):
        counts = [0] * n_components
        for label, k in zip(row, chosen, strict=True):
            if label >= 0:
                counts[k] += 1
        total += log_dirichlet_multinomial(counts, prior)
    for m, n in enumerate(n_labels):
        for k in range(n_components):
            counts = [0] * n
            for row, chosen in zip(codes, indicators, strict=True):
                if row[m] >= 0 and chosen[m] == k:
                    counts[row[m]] += 1
            total += log_dirichlet_multinomial(counts, [smoothing] * n)
    return total


def bce_probability(row, theta, prior, n_labels) -> float:
    """Return p(y) of an unseen object: a sum over all indicators of its labels."""
    offsets = np.cumsum([0, *n_labels])
    seen = [(m, label) for m, label in enumerate(row) if label >= 0]
    total = 0.0
    for chosen in itertools.product(range(len(prior)), repeat=len(seen)):
        counts = [chosen.count(k) for k in range(len(prior))]
        value = math.exp(log_dirichlet_multinomial(counts, prior))
        for (m, label), k in zip(seen, chosen, strict=True):
            value *= theta[offsets[m] + label][k]
        total += value
    return total


def bce_bound(gamma, phi, theta, prior, codes, n_labels) -> float:
    """Return the evidence lower bound, term by term; phi[n][m] is a distribution."""
    from scipy.special import digamma

    offsets = np.cumsum([0, *n_labels])
    total = 0.0
    for n, row in enumerate(codes):
        g = gamma[n]
        e = digamma(g) - digamma(g.sum())
        total += lgamma(sum(prior)) - sum(map(lgamma, prior)) + float((prior - 1) @ e)
        total -= lgamma(g.sum()) - sum(map(lgamma, g)) + float((g - 1) @ e)
        for m, label in enumerate(row):
            if label >= 0:
                t = theta[offsets[m] + label]
                total += float(phi[n][m] @ (e + np.log(t) - np.log(phi[n][m])))
    return total


def sample_dpce(rng, n, n_labels, betas, alpha):
    """Draw a partition and labels from the prior."""
    labels: list[int] = []
    for i in range(n):
        n_clusters = max(labels, default=-1) + 1
        sizes = np.array([labels.count(k) for k in range(n_clusters)] + [alpha])
        labels.append(int(rng.choice(n_clusters + 1, p=sizes / (i + alpha))))
    return np.array(labels), sample_labels(rng, labels, n_labels, betas)


def sample_labels(rng, labels, n_labels, betas) -> np.ndarray:
    """Draw label rows given a partition."""
    codes = np.empty((len(labels), len(n_labels)), np.int8)
    for m, n in enumerate(n_labels):
        for k in set(np.asarray(labels).tolist()):
            theta = rng.dirichlet(np.full(n, betas[m] / n))
            here = np.asarray(labels) == k
            codes[here, m] = rng.choice(n, size=here.sum(), p=theta)
    return codes


def z_score(independent, correlated, n_batches: int = 20) -> float:
    """Compare the mean of independent draws with that of a chain, by batch means."""
    size = len(correlated) // n_batches
    batches = np.asarray(correlated)[: size * n_batches].reshape(n_batches, size).mean(axis=1)
    error = np.var(independent, ddof=1) / len(independent)
    error += np.var(batches, ddof=1) / n_batches
    return float((np.mean(independent) - batches.mean()) / math.sqrt(error + 1e-300))


def z_scores(independent, correlated) -> list[float]:
    """Compare the columns of independent draws with those of a chain."""
    pairs = zip(np.array(independent).T, np.array(correlated).T, strict=True)
    return [z_score(a, b) for a, b in pairs]
