"""What every family owes, whichever it is."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from distclust.errors import InputError
from distclust.families import Family, family_from_dict
from tests.families.conftest import Example, make
from tests.oracles import families as oracle


def one_group(family: Family, rows: np.ndarray) -> np.ndarray:
    return family.accumulate(rows, np.zeros(len(rows), dtype=int), 1)


# ---- statistics -------------------------------------------------------------------------


def test_accumulate__statistics_of_a_union_are_the_sum(example: Example) -> None:
    family, rows = example.family, example.rows
    parts = one_group(family, rows[:4]) + one_group(family, rows[4:])
    np.testing.assert_allclose(parts, one_group(family, rows), rtol=1e-12, atol=1e-9)
    assert parts.shape == (1, family.n_statistics)
    assert parts[0, 0] == len(rows)


def test_accumulate__groups_and_ignored_rows(example: Example) -> None:
    family, rows = example.family, example.rows
    labels = np.resize([2, -1, 0, 2], len(rows))
    stats = family.accumulate(rows, labels, 4)
    for group in range(4):
        expected = one_group(family, rows[labels == group])[0]
        np.testing.assert_array_equal(stats[group], expected)


def test_accumulate__a_weight_repeats_the_row(example: Example) -> None:
    family, rows = example.family, example.rows
    weights = np.resize([1, 3, 2], len(rows))
    weighted = family.accumulate(rows, np.zeros(len(rows), dtype=int), 1, weights)
    repeated = one_group(family, np.repeat(rows, weights, axis=0))
    np.testing.assert_allclose(weighted, repeated, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("labels", [[0, 5], [0, -2], [0]])
def test_accumulate__labels_out_of_range_are_refused(example: Example, labels: list[int]) -> None:
    with pytest.raises(InputError, match="labels"):
        example.family.accumulate(example.rows[:2], labels, 2)


def test_accumulate__no_rows_give_zeros(example: Example) -> None:
    stats = example.family.accumulate(example.rows[:0], [], 2)
    np.testing.assert_array_equal(stats, np.zeros((2, example.family.n_statistics)))


# ---- marginal ---------------------------------------------------------------------------


def test_log_marginal__matches_chain_rule(example: Example) -> None:
    stats = one_group(example.family, example.rows)
    actual = example.family.log_marginal(stats)[0]
    assert actual == pytest.approx(example.log_marginal(example.rows), rel=1e-9)


def test_log_marginal__ignores_row_order(example: Example, rng: np.random.Generator) -> None:
    family, rows = example.family, example.rows
    stats = one_group(family, rows), one_group(family, rows[rng.permutation(len(rows))])
    first, second = (family.log_marginal(group)[0] for group in stats)
    assert first == pytest.approx(second, rel=1e-11)


def test_log_marginal__nothing_observed_is_certain(example: Example) -> None:
    nothing = np.zeros((2, example.family.n_statistics))
    np.testing.assert_allclose(example.family.log_marginal(nothing), 0.0, atol=1e-12)


def test_log_marginal_pairs__has_the_bits_of_the_sum(example: Example) -> None:
    family, stats = example.family, example.stats
    stats[1] += stats[2]  # groups of different sizes
    rights = np.array([5, 1, 3, 7, 4])
    pairs = family.log_marginal_pairs(stats, 2, rights)
    np.testing.assert_array_equal(pairs, family.log_marginal(stats[2] + stats[rights]))
    alone = [family.log_marginal_pairs(stats, 2, [right])[0] for right in rights]
    np.testing.assert_array_equal(pairs, alone)
    assert len(family.log_marginal_pairs(stats, 2, [])) == 0


# ---- predictive -------------------------------------------------------------------------


def test_log_predictive__is_the_ratio_of_marginals(example: Example) -> None:
    family, rows = example.family, example.rows
    labels = np.resize([0, 0, 1], len(rows))
    stats = np.vstack([family.accumulate(rows, labels, 2), np.zeros((1, family.n_statistics))])
    joint = np.array([family.log_marginal(stats + row) for row in family.statistics(rows)])
    expected = joint - family.log_marginal(stats)
    np.testing.assert_allclose(family.log_predictive(rows, stats), expected, rtol=1e-9, atol=1e-9)


def test_log_predictive__does_not_depend_on_company(example: Example) -> None:
    family, rows, stats = example.family, example.rows, example.stats
    together = family.log_predictive(rows, stats)
    np.testing.assert_array_equal(family.log_predictive(rows[3:4], stats)[0], together[3])
    np.testing.assert_array_equal(family.log_predictive(rows, stats[2:3])[:, 0], together[:, 2])


def test_log_predictive__missing_rows_only_get_probability_one(independent: Example) -> None:
    family = independent.family
    nothing = np.full((1, family.n_features), np.nan)
    np.testing.assert_allclose(family.log_predictive(nothing, independent.stats), 0.0, atol=1e-12)


def test_log_predictive__complete_family_takes_rows_with_gaps(independent: Example) -> None:
    """A model fitted on complete rows still scores rows with missing entries."""
    family, rows = independent.family, independent.rows
    filled = np.nan_to_num(rows)
    counted = family.accumulate(filled, np.zeros(len(rows), dtype=int), 1)

    complete = replace(family, has_missing=False)
    stats = complete.accumulate(filled, np.zeros(len(rows), dtype=int), 1)
    actual = complete.log_predictive(rows, stats)
    np.testing.assert_allclose(actual, family.log_predictive(rows, counted), rtol=1e-12)


def test_entry_log_predictive__is_a_row_with_nothing_else(independent: Example) -> None:
    family, stats = independent.family, independent.stats
    for column in range(family.n_features):
        row = np.full((1, family.n_features), np.nan)
        row[0, column] = 1.0
        expected = family.log_predictive(row, stats)[0]
        actual = family.entry_log_predictive(column, 1.0, stats)
        np.testing.assert_allclose(actual, expected, rtol=1e-11)


# ---- layouts ----------------------------------------------------------------------------


def test_sparse__equals_dense_bit_for_bit(complete: Example) -> None:
    family, rows = complete.family, complete.rows
    matrix = sparse.csr_array(rows)
    labels = np.resize([1, 0, 0, -1], len(rows))
    weights = np.resize([1.0, 2.0, 3.0], len(rows))
    dense = family.accumulate(rows, labels, 2, weights)
    other = family.accumulate(matrix, labels, 2, weights)
    np.testing.assert_array_equal(dense, other)
    np.testing.assert_array_equal(family.log_marginal(dense), family.log_marginal(other))
    np.testing.assert_allclose(
        family.log_predictive(matrix, dense), family.log_predictive(rows, dense), rtol=1e-12
    )
    np.testing.assert_allclose(
        family.log_coefficient(matrix), family.log_coefficient(rows), rtol=1e-12
    )


def test_sparse__a_family_with_gaps_takes_complete_sparse_rows(gapped: Example) -> None:
    family, rows = gapped.family, np.nan_to_num(gapped.rows)
    matrix = sparse.csr_array(rows)
    labels = np.resize([1, 0, -1], len(rows))
    dense = family.accumulate(rows, labels, 2)
    np.testing.assert_array_equal(dense, family.accumulate(matrix, labels, 2))
    np.testing.assert_allclose(
        family.log_predictive(matrix, dense), family.log_predictive(rows, dense), rtol=1e-12
    )


def test_sparse__is_never_made_dense(light: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    family = light.family
    matrix = sparse.csr_array(light.rows)
    stats = light.stats

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("made dense")

    for name in ("toarray", "todense"):
        monkeypatch.setattr(sparse.csr_array, name, refuse)
    family.accumulate(matrix, np.zeros(len(stats), dtype=int), 1)
    family.log_predictive(matrix, stats)
    family.summarise(matrix, np.zeros(family.n_features))


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float32, np.int8])
@pytest.mark.parametrize("name", ["bernoulli", "categorical", "poisson", "diagonal", "gaussian"])
def test_accumulate__type_of_the_numbers_does_not_matter(name: str, dtype: type) -> None:
    family = make(name, 0).family
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 2, (6, family.n_features)).astype(dtype)
    as_floats = rows.astype(float)
    np.testing.assert_array_equal(family.statistics(rows), family.statistics(as_floats))
    stats = family.statistics(as_floats)
    np.testing.assert_array_equal(
        family.log_predictive(rows, stats), family.log_predictive(as_floats, stats)
    )


def test_accumulate__columns_of_a_larger_array_are_fine(complete: Example) -> None:
    """Blocks that are not contiguous in memory give the same statistics."""
    wide = np.asfortranarray(np.column_stack([complete.rows, complete.rows]))
    part = wide[:, : complete.rows.shape[1]]
    np.testing.assert_array_equal(complete.family.statistics(part), complete.stats)


# ---- hyperparameters --------------------------------------------------------------------


def test_gradient__matches_central_differences(example: Example) -> None:
    family, rows = example.family, example.rows
    stats = family.accumulate(rows, np.resize([0, 1, 1], len(rows)), 3)  # the last is empty
    numeric = oracle.differences(family, stats)
    scale = np.abs(numeric).max()
    np.testing.assert_allclose(family.gradient(stats), numeric, rtol=1e-5, atol=1e-7 * scale)


def test_gradient__holds_away_from_the_starting_parameters(
    example: Example, rng: np.random.Generator
) -> None:
    """Also once the prior mean has left the shift of the statistics."""
    family, stats = example.family, example.stats[:4]
    moved = family.with_parameters(
        family.parameters + 0.2 * rng.normal(size=len(family.parameters))
    )
    numeric = oracle.differences(moved, stats)
    scale = np.abs(numeric).max()
    np.testing.assert_allclose(moved.gradient(stats), numeric, rtol=1e-5, atol=1e-7 * scale)
    joint = np.array([moved.log_marginal(stats + row) for row in stats])
    expected = joint - moved.log_marginal(stats)
    predicted = moved.log_predictive(example.rows[:4], stats)
    np.testing.assert_allclose(predicted, expected, rtol=1e-9, atol=1e-9)


def test_with_parameters__returns_to_the_same_family(example: Example) -> None:
    family, stats = example.family, example.stats
    again = family.with_parameters(family.parameters)
    np.testing.assert_allclose(again.parameters, family.parameters, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(again.log_marginal(stats), family.log_marginal(stats), rtol=1e-9)


# ---- row face ---------------------------------------------------------------------------


def test_row_functions__add_equals_accumulate(example: Example) -> None:
    family, rows = example.family, example.rows
    face, parameters = family.row_functions(), family.row_parameters()
    stats = np.zeros(family.n_statistics)
    for row in rows:
        face.add(stats, row, *parameters)
    np.testing.assert_allclose(stats, one_group(family, rows)[0], rtol=1e-12, atol=1e-9)


def test_row_functions__remove_takes_back_what_add_did(example: Example) -> None:
    family, rows = example.family, example.rows
    face, parameters = family.row_functions(), family.row_parameters()
    before = one_group(family, rows[1:])[0]
    stats = before.copy()
    face.add(stats, rows[0], *parameters)
    assert not np.array_equal(stats, before)
    face.remove(stats, rows[0], *parameters)
    whole = before == np.round(before)
    np.testing.assert_array_equal(stats[whole], before[whole])
    np.testing.assert_allclose(stats, before, rtol=1e-11, atol=1e-9)


def test_row_functions__log_predictive_equals_batch(example: Example) -> None:
    family, rows = example.family, example.rows
    face, parameters = family.row_functions(), family.row_parameters()
    stats = family.accumulate(rows, np.resize([0, 1], len(rows)), 3)
    batch = family.log_predictive(rows, stats)
    for i, row in enumerate(rows):
        for k in range(3):
            value = face.log_predictive(row, stats[k], *parameters)
            assert value == pytest.approx(batch[i, k], rel=1e-11, abs=1e-11)


# ---- as values --------------------------------------------------------------------------


def test_to_dict__round_trip_through_json(example: Example) -> None:
    family = example.family
    meta, arrays = family.to_dict()
    again = family_from_dict(json.loads(json.dumps(meta)), arrays)
    assert again == family
    np.testing.assert_array_equal(
        again.log_marginal(example.stats), family.log_marginal(example.stats)
    )


def test_pickle__round_trip_is_equal(example: Example) -> None:
    family = example.family
    family.log_marginal(example.stats)  # cached constants travel too
    again = pickle.loads(pickle.dumps(family))
    assert again == family
    assert hash(again) == hash(family)
    assert family != family.with_parameters(family.parameters + 0.1)


def test_feature_means__are_the_means_of_observed_entries(numeric: Example) -> None:
    family, rows = numeric.family, numeric.rows
    stats = np.vstack([one_group(family, rows), np.zeros((1, family.n_statistics))])
    means = family.feature_means(stats)
    np.testing.assert_allclose(means[0], np.nanmean(rows, axis=0), rtol=1e-9, atol=1e-9)
    assert np.isnan(means[1]).all()


def test_feature_information__zero_for_equal_groups_and_bounded(example: Example) -> None:
    family, rows = example.family, example.rows
    stats = family.accumulate(rows, np.resize([0, 1], len(rows)), 2)
    same = family.feature_information(stats[0], stats[0])
    np.testing.assert_allclose(same, 0.0, atol=1e-12)
    differ = family.feature_information(stats[0], stats[1])
    assert differ.shape == (family.n_features,)
    assert (differ >= 0).all()
    assert (differ <= np.log(2) + 1e-9).all()
    swapped = family.feature_information(stats[1], stats[0])
    np.testing.assert_allclose(differ, swapped, rtol=1e-9, atol=1e-12)
    many = family.feature_informations(stats[[0, 1, 0]], stats[[1, 0, 0]])
    np.testing.assert_array_equal(many, [differ, swapped, same])
