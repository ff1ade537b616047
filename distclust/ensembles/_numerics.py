"""Compiled passes of EM and variational Bayes, and sweeps of indicators.

Tables are label-major: a row of a table belongs to one label of one base, a column to a
cluster. What a label says about all clusters lies in one piece, and products over bases
stream through memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled

Array = npt.NDArray[Any]


# ---- mixtures of multinomials -----------------------------------------------------------------


@compiled
def mixture_pass(
    codes: Array,
    offsets: Array,
    weights: Array,
    log_shares: Array,
    log_theta: Array,
    row_logs: Array,
    memberships: Array,
    counts: Array,
    sizes: Array,
) -> None:
    """Do the E step for some rows: log probabilities, and what the M step needs.

    Parameters
    ----------
    codes
        Labels, shape (n, n_bases), -1 where there is none.
    offsets
        First row of each base in tables.
    weights
        Rows that each row stands for.
    log_shares
        Log weight of each component, shape (K,).
    log_theta
        Log probability of each label in each component, shape (cells, K).
    row_logs
        Filled with log p of each row.
    memberships
        Filled with responsibilities, shape (n, K); without rows: left out.
    counts, sizes
        Expected counts (cells, K) and (K,) are added to them; `counts` without rows: left out.
    """
    n_components = len(log_shares)
    w = np.empty(n_components)
    for i in range(len(codes)):
        w[:] = log_shares
        for m in range(codes.shape[1]):
            if codes[i, m] >= 0:
                said = log_theta[offsets[m] + codes[i, m]]
                for k in range(n_components):
                    w[k] += said[k]
        highest = -math.inf
        for k in range(n_components):
            highest = max(highest, w[k])
        if highest == -math.inf:  # no component has all of these labels
            row_logs[i] = highest
            if len(memberships):
                for k in range(n_components):
                    memberships[i, k] = math.exp(log_shares[k])
            continue
        total = 0.0
        for k in range(n_components):
            w[k] = math.exp(w[k] - highest)
            total += w[k]
        row_logs[i] = highest + math.log(total)
        for k in range(n_components):
            w[k] /= total
        if len(memberships):
            memberships[i] = w
        if len(counts):
            for k in range(n_components):
                w[k] *= weights[i]
                sizes[k] += w[k]
            for m in range(codes.shape[1]):
                if codes[i, m] >= 0:
                    cell = counts[offsets[m] + codes[i, m]]
                    for k in range(n_components):
                        cell[k] += w[k]


@compiled
def add_label_logs(codes: Array, offsets: Array, log_theta: Array, totals: Array) -> None:
    """Add the log probabilities of the labels of each row to totals (n, K)."""
    for i in range(len(codes)):
        for m in range(codes.shape[1]):
            if codes[i, m] >= 0:
                said = log_theta[offsets[m] + codes[i, m]]
                for k in range(totals.shape[1]):
                    totals[i, k] += said[k]


@compiled
def add_expected_counts(
    codes: Array, offsets: Array, weights: Array, memberships: Array, counts: Array
) -> None:
    """Add the memberships of rows, times their weights, to the cells of their labels."""
    for i in range(len(codes)):
        for m in range(codes.shape[1]):
            if codes[i, m] >= 0:
                cell = counts[offsets[m] + codes[i, m]]
                for k in range(memberships.shape[1]):
                    cell[k] += weights[i] * memberships[i, k]


# ---- Bayesian cluster ensembles -----------------------------------------------------------------


@compiled
def membership_pass(
    codes: Array,
    offsets: Array,
    weights: Array,
    shares: Array,
    theta: Array,
    sums: Array,
    row_logs: Array,
    counts: Array,
) -> None:
    """Find phi of every label, and add it up over bases and over rows.

    Parameters
    ----------
    codes, offsets, weights
        See `mixture_pass`.
    shares
        exp(E log pi) of each row up to a factor a row, shape (n, K).
    theta
        Probability of each label in each component, shape (cells, K).
    sums
        Sums of phi over the bases of a row are added to it, shape (n, K).
    row_logs
        Sums of log sum_k shares theta over the bases of a row are added to it.
    counts
        Weighted sums of phi over rows are added to it, shape (cells, K).
    """
    n_components = theta.shape[1]
    phi = np.empty(n_components)
    for i in range(len(codes)):
        share = shares[i]
        for m in range(codes.shape[1]):
            if codes[i, m] < 0:
                continue
            cell = offsets[m] + codes[i, m]
            said = theta[cell]
            total = 0.0
            for k in range(n_components):
                phi[k] = share[k] * said[k]
                total += phi[k]
            row_logs[i] += math.log(total)
            for k in range(n_components):
                phi[k] /= total
                sums[i, k] += phi[k]
                counts[cell, k] += weights[i] * phi[k]


@compiled
def count_indicators(
    codes: Array, offsets: Array, indicators: Array, per_row: Array, per_cell: Array, totals: Array
) -> None:
    """Count the indicators of labels: by row (n, K), by label (cells, K), by base (n_bases, K)."""
    for i in range(len(codes)):
        for m in range(codes.shape[1]):
            if codes[i, m] >= 0:
                k = indicators[i, m]
                per_row[i, k] += 1
                per_cell[offsets[m] + codes[i, m], k] += 1
                totals[m, k] += 1


@compiled
def sweep_indicators(
    codes: Array,
    offsets: Array,
    prior: Array,
    smoothing: Array,
    total_smoothing: Array,
    uniforms: Array,
    indicators: Array,
    per_row: Array,
    per_cell: Array,
    totals: Array,
) -> None:
    """Draw the indicator of every label anew, rows one after another.

    Parameters
    ----------
    codes, offsets
        See `mixture_pass`.
    prior
        Pseudo-counts a of memberships, shape (K,).
    smoothing, total_smoothing
        Pseudo-count of a label of each base, and of all its labels.
    uniforms
        One a label, shape (n, n_bases).
    indicators
        Component of each label; written over.
    per_row, per_cell, totals
        See `count_indicators`; kept up to date.
    """
    n_components = len(prior)
    cumulated = np.empty(n_components)
    for i in range(len(codes)):
        mine = per_row[i]
        for m in range(codes.shape[1]):
            if codes[i, m] < 0:
                continue
            cell, total = per_cell[offsets[m] + codes[i, m]], totals[m]
            k = indicators[i, m]
            mine[k] -= 1
            cell[k] -= 1
            total[k] -= 1
            weight = 0.0
            for k in range(n_components):
                said = (cell[k] + smoothing[m]) / (total[k] + total_smoothing[m])
                weight += (prior[k] + mine[k]) * said
                cumulated[k] = weight
            threshold = uniforms[i, m] * weight
            k = 0
            while k < n_components - 1 and cumulated[k] <= threshold:
                k += 1
            indicators[i, m] = k
            mine[k] += 1
            cell[k] += 1
            total[k] += 1
