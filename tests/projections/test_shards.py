"""Products of the kernel matrix by shards: the dense product, whatever is kept of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from distclust.engine import Crew, Room
from distclust.engine.held import are_equal
from distclust.projections import shards
from distclust.projections.kernels import NAMED_KERNELS, Kernel, Preparation
from distclust.projections.shards import KernelProducts, MoreRows, Product, n_shards
from tests.oracles import kernel_pca as oracle
from tests.small_tiles import TILE, shrink

N = 5 * TILE + 7
TILE_BYTES = 8 * TILE * TILE
GAMMA = 0.3


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    shrink(monkeypatch)


def make_rows(n: int = N, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 6)) * (rng.random((n, 6)) < 0.7)


def make_block(n: int = N, k: int = 4, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, k))


def make_role(rows, name="rbf", dtype="float64", budget=None) -> KernelProducts:
    return KernelProducts(rows, Kernel(name, GAMMA), dtype, None, budget)


def product(role: KernelProducts, order: Product, place=None) -> np.ndarray:
    """Return what all shards report, one after the other."""
    place = role.open(None, Room()) if place is None else place
    found = []
    for member in range(n_shards(role.rows.shape[0])):
        state, report = role.advance(place, member, role.begin(member), order)
        start, stop = role.bounds(member)
        np.testing.assert_array_equal(state.latent, order.block[start:stop])
        assert report.dtype == np.float64
        if len(report):
            found.append(report)
    return np.concatenate(found)


@pytest.mark.parametrize("layout", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("name", NAMED_KERNELS)
def test_product__is_the_dense_one(name, layout):
    rows, block = make_rows(), make_block()
    matrix = oracle.kernel_matrix(rows, None, name, GAMMA)
    wanted = matrix @ block
    found = product(make_role(layout(rows), name), Product(block))
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-11)
    single = product(make_role(layout(rows), name, "float32"), Product(block))
    np.testing.assert_allclose(single, wanted, atol=1e-5 * np.abs(matrix).sum(axis=1).max())


@pytest.mark.parametrize("layout", [np.asarray, sp.csr_array])
def test_product__in_single_precision(layout):
    """That of tiles and a block that were rounded; whole numbers are there again when wanted."""
    dense, block = make_rows(), make_block()
    rows = layout(dense)
    role = make_role(rows)
    place, rounded = role.open(None, Room()), Product(block.astype(np.float32))
    exact = product(role, Product(block), place)
    found = product(role, rounded, place)
    assert np.abs(found - exact).max() > 1e-9
    matrix = oracle.kernel_matrix(dense, gamma=GAMMA).astype(np.float32).astype(np.float64)
    wanted = matrix @ block.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert place.n_tiles == 36
    np.testing.assert_array_equal(product(role, rounded, place), found)
    np.testing.assert_array_equal(product(role, Product(block), place), exact)
    for budget in (1, 7 * TILE_BYTES):
        np.testing.assert_array_equal(product(make_role(rows, budget=budget), rounded), found)


def test_product__in_single_precision_is_as_any_with_float32():
    role, block = make_role(make_rows(), dtype="float32"), make_block()
    found = product(role, Product(block.astype(np.float32)))
    np.testing.assert_array_equal(found, product(role, Product(block)))


def test_centring__a_product_between_two_means(rng):
    """H(K(HZ)) is the centred matrix times Z (spec 2.1)."""
    rows, z = make_rows(), make_block()
    role = make_role(rows)
    found = product(role, Product(z - z.mean(axis=0)))
    wanted = oracle.centred(oracle.kernel_matrix(rows, gamma=GAMMA)) @ z
    np.testing.assert_allclose(found - found.mean(axis=0), wanted, atol=1e-11)


def test_shards__follow_from_the_rows_alone(monkeypatch):
    """Several to a worker: at least 16 at ten thousand rows; all rows, each in one of them."""
    shrink(monkeypatch, 512)
    assert n_shards(10_000) >= 16
    role = make_role(np.zeros((10_000, 1)))
    bounds = [role.bounds(member) for member in range(n_shards(10_000))]
    assert [i for start, stop in bounds for i in range(start, stop)] == list(range(10_000))


# ---- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["rbf", "poly"])
def test_budget__changes_what_is_kept_and_no_bit(name, dtype):
    order = Product(make_block())
    size = TILE_BYTES if dtype == "float64" else TILE_BYTES // 2
    results = []
    for budget, n_kept in [(1, 0), (7.9 * size, 7), (36 * size, 36), (100 * size, 36)]:
        role = make_role(make_rows(), name, dtype, int(budget))
        place = role.open(None, Room())
        results += [product(role, order, place) for _ in range(3)]
        assert place.n_tiles == n_kept
    for found in results[1:]:
        np.testing.assert_array_equal(found, results[0])


def test_budget__of_a_tile_as_large_as_it_is(monkeypatch):
    """The same bits at the real size of tiles, where BLAS works in larger pieces."""
    shrink(monkeypatch, 512)
    rows = make_rows(1100)
    order = Product(make_block(1100, 10))
    kept = make_role(rows)
    place = kept.open(None, Room())
    first = product(kept, order, place)
    np.testing.assert_array_equal(product(kept, order, place), first)
    np.testing.assert_array_equal(product(make_role(rows, budget=1), order), first)


def test_budget__is_shared_by_processes(monkeypatch):
    role = make_role(make_rows(), budget=20 * TILE_BYTES)
    place = role.open(None, Room(share=0.5))
    product(role, Product(make_block()), place)
    assert place.n_tiles == 10
    role = make_role(make_rows())  # half of a worker's limit
    place = role.open(None, Room(share=0.5, memory_limit=16 * TILE_BYTES))
    product(role, Product(make_block()), place)
    assert place.n_tiles == 8


@pytest.mark.parametrize("name", ["linear", "cosine"])
@pytest.mark.parametrize("layout", [np.asarray, sp.csr_array])
def test_products_of_rows__need_no_tiles(name, layout):
    role = make_role(layout(make_rows()), name)
    place = role.open(None, Room())
    product(role, Product(make_block()), place)
    assert place.n_tiles == 0


# ---- another role in the same place ------------------------------------------------------------


def reopened(old: KernelProducts, new: KernelProducts):
    place = old.open(None, Room())
    product(old, Product(make_block(old.rows.shape[0])), place)
    return new.open(place, Room())


@pytest.mark.parametrize("name", ["rbf", "poly"])
@pytest.mark.parametrize("n_more", [0, 3, 2 * TILE])
def test_taking_over__tiles_of_rows_that_stay(name, n_more):
    rows = make_rows(N + n_more)
    place = reopened(make_role(rows[:N], name), make_role(rows, name))
    assert place.n_tiles == (36 if N % TILE == 0 else 35)  # the last one is not whole
    check_right(place, rows, name)


def test_taking_over__evaluates_only_what_is_new(monkeypatch):
    """Some rows or columns of the tiles that were not whole, in place."""
    rows = make_rows(N + 3)
    place = make_role(rows[:N], "poly").open(None, Room())
    product(place._role, Product(make_block(N)), place)
    sizes = []
    plain = Preparation.values

    def spy(preparation, left, right, out):
        sizes.append(out.size)
        return plain(preparation, left, right, out)

    monkeypatch.setattr(Preparation, "values", spy)
    before = {key: tile.ctypes.data for key, tile in place._tiles.items()}
    new = make_role(rows, "poly").open(place, Room())
    last = max(new._tiles)[0]
    assert sum(sizes) == last * TILE * 3  # three rows; columns are the same numbers
    assert all(before[key] == tile.ctypes.data for key, tile in new._tiles.items())
    check_right(new, rows, "poly")


@pytest.mark.parametrize("name", ["rbf", "poly"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_matrix__is_symmetric_to_the_last_bit(name, dtype):
    rows = make_rows() + 5.0
    preparation = Preparation(Kernel(name, GAMMA), dtype, rows.mean(axis=0))
    a, b = preparation.tiles(rows)[:2]
    above, below = (np.empty((TILE, TILE), dtype) for _ in range(2))
    preparation.values(a, b, above)
    np.testing.assert_array_equal(preparation.values(b, a, below).T, above)


def test_taking_over__tiles_of_which_one_of_a_pair_is_kept():
    """As on workers, which hold some rows of tiles each."""
    rows = make_rows(N + 3)
    old, new = make_role(rows[:N]), make_role(rows)
    for members in ((0, 2), (5,), (1, 5)):
        place = old.open(None, Room())
        for member in members:
            old.advance(place, member, old.begin(member), Product(make_block()))
        place = new.open(place, Room())
        check_right(place, rows, "rbf")


@pytest.mark.parametrize("n_last", [4, 7, 8])
@pytest.mark.parametrize("n_more", [0, 1, 4, 8])
def test_taking_over__rows_that_begin_or_end_a_tile(n_last, n_more):
    rows = make_rows(2 * TILE + n_last + n_more)
    check_right(reopened(make_role(rows[: len(rows) - n_more]), make_role(rows)), rows, "rbf")


def test_product__whatever_memory_held_before():
    """Padding is not evaluated, and must not tell on the numbers or make noise."""
    rows = make_rows(2 * TILE + 3)
    role = make_role(rows, budget=9 * TILE_BYTES)
    place = role.open(None, Room())
    tiles = [place._memory.take() for _ in range(9)]
    for tile in tiles:
        tile[:] = np.nan
        place._memory.give_back(tile)
    with np.errstate(all="raise"):
        found = product(role, Product(make_block(len(rows))), place)
    wanted = oracle.kernel_matrix(rows, None, "rbf", GAMMA) @ make_block(len(rows))
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("changed", [0, 1, 4, 5])
def test_taking_over__not_of_rows_that_changed(changed):
    """Whichever tile of rows differs: the others stay."""
    rows = make_rows()
    other = rows.copy()
    other[changed * TILE + 1] += 1.0
    place = reopened(make_role(rows, "poly"), make_role(other, "poly"))
    assert place.n_tiles == (24 if changed < 5 else 25)  # 4 or 5 rows of tiles, and the last
    check_right(place, other, "poly")


@pytest.mark.parametrize("n_more", [0, 3, 2 * TILE])
def test_taking_over__rounded_tiles(n_more):
    rows = make_rows(N + n_more)
    old, new = make_role(rows[:N]), make_role(rows)
    rounded = Product(make_block(len(rows)).astype(np.float32))
    wanted = product(new, rounded)
    place = old.open(None, Room())
    product(old, Product(make_block().astype(np.float32)), place)
    place = new.open(place, Room())
    assert place.n_tiles >= 35
    np.testing.assert_array_equal(product(new, rounded, place), wanted)
    check_right(place, rows, "rbf")


def check_right(place, rows, name):
    block = make_block(len(rows))
    wanted = oracle.kernel_matrix(rows, None, name, GAMMA) @ block
    found = product(place._role, Product(block), place)
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-11)
    fresh = place._role.open(None, Room())
    np.testing.assert_array_equal(found, product(place._role, Product(block), fresh))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "rbf"},
        {"dtype": "float32"},
        {"budget": 3 * TILE_BYTES},
    ],
)
def test_taking_over__not_of_another_kernel_precision_or_budget(change):
    rows = make_rows()
    place = reopened(make_role(rows, "poly"), make_role(rows, **{"name": "poly", **change}))
    assert place.n_tiles == 0
    product(place._role, Product(make_block()), place)
    assert place.n_tiles == (3 if "budget" in change else 36)


@pytest.mark.parametrize("name", ["rbf", "poly"])
def test_taking_over__between_sparse_and_dense_rows(name):
    rows = make_rows()
    for old, new in [(rows, sp.csr_array(rows)), (sp.csr_array(rows), rows)]:
        place = reopened(make_role(old, name), make_role(new, name))
        assert place.n_tiles == 0
        found = product(place._role, Product(make_block()), place)
        wanted = oracle.kernel_matrix(rows, None, name, GAMMA) @ make_block()
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-11)


def test_taking_over__keeps_within_the_budget():
    rows = make_rows(N + 3 * TILE)
    budget = 20 * TILE_BYTES
    place = reopened(make_role(rows[:N], budget=budget), make_role(rows, budget=budget))
    for _ in range(2):
        product(place._role, Product(make_block(len(rows))), place)
        assert place.n_tiles == 20


def test_memory__of_tiles_that_go_is_used_again():
    """Not beside what is taken anew: the budget would be exceeded."""
    rows = make_rows()
    other = rows.copy()
    other[0] += 1.0
    old = make_role(rows, "poly", budget=36 * TILE_BYTES)
    place = old.open(None, Room())
    product(old, Product(make_block()), place)
    used = {tile.ctypes.data for tile in place._tiles.values()}
    assert len(used) == 36
    new = make_role(other, "poly", budget=36 * TILE_BYTES).open(place, Room())
    product(new._role, Product(make_block()), new)
    assert {tile.ctypes.data for tile in new._tiles.values()} == used
    check_right(new, other, "poly")


# ---- as a role of a crew -----------------------------------------------------------------------


def test_shards__follow_from_the_number_of_rows(monkeypatch):
    shrink(monkeypatch, shards.TILE)
    monkeypatch.undo()
    assert n_shards(10_000) >= 16
    assert n_shards(1) == 1
    assert n_shards(10_000) == -(-10_000 // shards.TILE)


def test_label__names_the_rows():
    role = make_role(make_rows())
    assert role.label(0) == f"shard 0 (rows 0 to {TILE - 1})"
    assert role.label(5) == f"shard 5 (rows {5 * TILE} to {N - 1})"


@pytest.mark.parametrize("name", ["rbf", "linear"])
@pytest.mark.parametrize("threads", ["1", "2", "3"])
def test_crew__a_round_is_a_product(name, threads, monkeypatch):
    monkeypatch.setenv("DISTCLUST_THREADS", threads)
    role, order = make_role(make_rows(), name), Product(make_block())
    with Crew(role, n_shards(N)) as crew:
        found = np.concatenate(crew.round(order))
    np.testing.assert_array_equal(found, product(role, order))


# ---- what is sent when rows join -------------------------------------------------------------


@pytest.mark.parametrize("layout", [np.asarray, sp.csr_array])
def test_since__only_new_rows_travel(layout):
    rows = make_rows(N + 9)
    before, after = make_role(layout(rows[:N])), make_role(layout(rows))
    more = after.since(before)
    assert isinstance(more, MoreRows)
    assert more.added.shape[0] == 9
    for role in (before, after):  # told twice, it is the same
        found = more.onto(role)
        assert are_equal(found.rows, after.rows)
        assert found.since(after) is found


@pytest.mark.parametrize(
    "change",
    [
        {"rows": make_rows(N)},
        {"rows": make_rows(N + 9, seed=3)},
        {"rows": sp.csr_array(make_rows(N + 9))},
        {"kernel": Kernel("rbf", 2.0 * GAMMA)},
        {"dtype": "float32"},
        {"middle": np.ones(6)},
        {"memory_budget": 7},
    ],
    ids=lambda change: next(iter(change)),
)
def test_since__whatever_else_differs_all_is_sent(change):
    rows = make_rows(N + 9)
    after = replace(make_role(rows), **change)
    assert after.since(make_role(rows[:N])) is after
