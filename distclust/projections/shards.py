"""Kernel products by row shards: one member of a crew holds `TILE` rows.

A round is one product Y = K Z (spec 4.4). The block Z goes to every process once, N k numbers;
a member returns its rows of Y, N k numbers in all. Tiles of K stay where they were evaluated
as far as memory allows, and are evaluated again where it does not: the bits are the same.

A product may be asked for in single precision, where it adds little to what is known. It reads half
as much: tiles are rounded in their places then, and evaluated again if they are needed whole.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from distclust.engine import Addition, Role, Room, local_threads, thread_map
from distclust.engine.held import RowArray, are_equal, is_sparse, stacked
from distclust.projections._numerics import round_in_place
from distclust.projections._product_numerics import ADD, multiply
from distclust.projections.kernels import TILE, Floats, Kernel, Preparation, Tile
from distclust.projections.products import cut_block, inner_product

Doubles = npt.NDArray[np.float64]

_AUTO_SHARE = 0.5  # of a worker's memory limit, or of what is free in this process
_TILES_AT_ONCE = 32  # tens of MB; what is not touched takes no memory


def n_shards(n_rows: int) -> int:
    """Return how many shards there are of so many rows."""
    return math.ceil(n_rows / TILE)


@dataclass(frozen=True, eq=False)
class Product:
    """An order: multiply the kernel matrix with a block of shape (n_rows, k).

    If the block is float32, so are the factors of the product: tiles are rounded before.
    """

    block: Floats


@dataclass(frozen=True, eq=False)
class Shard:
    """The state of a member: its part of the latest block, and of its product.

    Attributes
    ----------
    latent, product
        Shape (rows of the shard, k); without rows before the first order.
    """

    latent: Floats
    product: Doubles


@dataclass(frozen=True, eq=False)
class KernelProducts(Role[Shard]):
    """The role: hold rows, and multiply their part of the kernel matrix.

    Attributes
    ----------
    rows
        All rows, shape (N, features), dense or CSR.
    kernel
        The kernel.
    dtype
        ``float64`` or ``float32``, of tiles and of products with them; sums of products are
        always float64.
    middle
        See `Preparation`.
    memory_budget
        Bytes for tiles in all processes together; None: half of what each has.
    """

    rows: RowArray
    kernel: Kernel
    dtype: str
    middle: Floats | None
    memory_budget: int | None

    state_type = Shard

    def open(self, previous: Any, room: Room) -> Workplace:
        """Prepare all rows; take over tiles of rows that were here before."""
        if not (isinstance(previous, Workplace) and previous.is_of(self.kernel, self.dtype)):
            previous = None
        return Workplace(self, self._tile_budget(room), previous)

    def since(self, earlier: KernelProducts) -> Role[Shard] | Addition:
        """Return the rows that are new, if nothing else is."""
        n_known = earlier.rows.shape[0]
        has_more = n_known < self.rows.shape[0] and self._is_as(earlier)
        if has_more and are_equal(earlier.rows, self.rows[:n_known]):
            return MoreRows(n_known, self.rows[n_known:])
        return self

    def _is_as(self, other: KernelProducts) -> bool:
        """Whether all but the rows is the same."""
        settings = (
            (role.kernel, role.dtype, role.memory_budget, type(role.middle))
            for role in (self, other)
        )
        is_same = len(set(settings)) == 1
        return is_same and np.array_equal(_or_nothing(self.middle), _or_nothing(other.middle))

    def begin(self, member: int) -> Shard:
        """Return a shard that was given no order yet."""
        return Shard(np.empty((0, 0)), np.empty((0, 0)))

    def advance(
        self, place: Workplace, member: int, state: Shard, order: Product
    ) -> tuple[Shard, Doubles]:
        """Return this shard's rows of the product."""
        start, stop = self.bounds(member)
        product = place.multiply(member, order)
        return Shard(order.block[start:stop], product), product

    def bounds(self, member: int) -> tuple[int, int]:
        """Return the first row of a shard, and the end."""
        return member * TILE, min((member + 1) * TILE, self.rows.shape[0])

    def label(self, member: int) -> str:
        """Return which rows the shard holds."""
        start, stop = self.bounds(member)
        return f"shard {member} (rows {start} to {stop - 1})"

    def _tile_budget(self, room: Room) -> float:
        if self.memory_budget is not None:
            return self.memory_budget * room.share
        free = room.memory_limit or psutil.virtual_memory().available
        return _AUTO_SHARE * free


@dataclass(frozen=True, eq=False)
class MoreRows(Addition):
    """Rows that join `n_known` others, for processes that hold those."""

    n_known: int
    added: RowArray

    def onto(self, role: KernelProducts) -> KernelProducts:
        """Return the role with the rows; with both, as it is."""
        if role.rows.shape[0] == self.n_known + self.added.shape[0]:
            return role
        return replace(role, rows=stacked(role.rows, self.added))


class Workplace:
    """What the shards in one process share: prepared rows, tiles, and the present block."""

    def __init__(
        self, role: KernelProducts, tile_budget: float, previous: Workplace | None = None
    ) -> None:
        self._role = role
        self._preparation = Preparation(role.kernel, role.dtype, role.middle)
        self._rows = self._prepared(previous)
        self._is_by_rows = not (role.kernel.is_callable or is_sparse(role.rows))
        self._tiles: dict[tuple[int, int], Floats] = {}
        self._rounded: set[tuple[int, int]] = set()  # of those that are kept
        self._memory = _TileMemory(self._preparation.dtype, tile_budget)
        self._lock = threading.Lock()
        self._made: tuple[Product, Any] | None = None  # of the present block
        self._scratch = threading.local()
        if previous is not None and previous._role.memory_budget == role.memory_budget:
            self._take_over(previous)

    def is_of(self, kernel: Kernel, dtype: str) -> bool:
        """Whether this is for the same kernel."""
        return (self._role.kernel, self._role.dtype) == (kernel, dtype)

    @property
    def n_tiles(self) -> int:
        """How many tiles are kept."""
        return len(self._tiles)

    def _prepared(self, previous: Workplace | None) -> list[Tile]:
        """Return all rows in tiles, those that were whole tiles before as they were."""
        rows, n_tiles = self._role.rows, n_shards(self._role.rows.shape[0])
        known = {} if previous is None else previous._unchanged(self._role)
        others = [i for i in range(n_tiles) if i not in known]
        found = self._preparation.tiles_of([rows[i * TILE : (i + 1) * TILE] for i in others])
        known |= dict(zip(others, found, strict=True))
        return [known[i] for i in range(n_tiles)]

    def _unchanged(self, new: KernelProducts) -> dict[int, Tile]:
        """Return tiles that are whole and the same in another role, by their number."""
        old = self._role
        if not np.array_equal(_or_nothing(old.middle), _or_nothing(new.middle)):
            return {}
        found = {}
        for i, tile in enumerate(self._rows):
            rows = slice(i * TILE, (i + 1) * TILE)
            if tile.n == TILE and are_equal(old.rows[rows], new.rows[rows]):
                found[i] = tile
        return found

    def _take_over(self, previous: Workplace) -> None:
        """Keep the tiles of another role between rows that are whole tiles in both.

        Where the last rows of old are followed by more now, tiles are completed.
        """
        self._memory = previous._memory
        both = list(zip(previous._rows, self._rows, strict=False))
        same = {i for i, (a, b) in enumerate(both) if a is b}
        longer = {
            i: a.n
            for i, (a, b) in enumerate(both)
            if i not in same and self._is_by_rows and are_equal(a.rows[: a.n], b.rows[: a.n])
        }
        incomplete = []
        for (i, j), tile in previous._tiles.items():
            first, last = min(i, j), max(i, j)
            if first in same and (last in same or last in longer):
                self._tiles[i, j] = tile
                if last in longer:
                    incomplete.append((i, j))
            else:
                self._memory.give_back(tile)
        self._rounded = previous._rounded & self._tiles.keys()
        previous._tiles = {}
        for side in (operator.gt, operator.lt):  # what is below the diagonal first
            some = [pair for pair in incomplete if side(*pair)]
            thread_map(lambda pair: self._complete(*pair, longer[max(pair)]), some, local_threads())

    def _complete(self, i: int, j: int, n_known: int) -> None:
        """Fill in what is new of a tile, of whose later rows the first are known."""
        new = slice(n_known, self._rows[max(i, j)].n)
        is_rounded = (i, j) in self._rounded
        if i < j and (j, i) in self._tiles and is_rounded == ((j, i) in self._rounded):
            # The matrix is symmetric to the last bit.
            self._seen(i, j)[:, new] = self._seen(j, i)[new].T
        elif is_rounded:
            whole = self._evaluate(i, j, self._spare(), n_known)
            part = (new, slice(None)) if i > j else (slice(None), new)
            self._seen(i, j)[part] = whole[part]
        else:
            self._evaluate(i, j, self._tiles[i, j], n_known)

    def _seen(self, i: int, j: int) -> Floats:
        """Return a tile that is kept as it is now."""
        tile = self._tiles[i, j]
        return _in_single(tile) if (i, j) in self._rounded else tile

    def multiply(self, member: int, order: Product) -> Doubles:
        """Return K[shard, :] Z, shape (rows of the shard, k)."""
        if self._role.kernel.is_product:
            return self._multiply_rows(member, order)
        dtype = min(order.block.dtype, self._preparation.dtype)  # the one with fewer digits
        panels = self._once(order, cut_block, dtype)
        total = np.zeros((TILE, order.block.shape[1]))
        is_rounded = dtype != self._preparation.dtype
        for j, panel in enumerate(panels):
            tile = self._rounded_tile(member, j) if is_rounded else self._tile(member, j)
            multiply(tile, panel, total, ADD)
        return total[: self._rows[member].n]

    def _multiply_rows(self, member: int, order: Product) -> Doubles:
        """Return X_i (Xᵀ Z): the matrix is never formed."""
        rows = self._rows[member]
        found = rows.rows @ self._rows_by_block(order)
        return np.ascontiguousarray(found[: rows.n], dtype=np.float64)

    def _rows_by_block(self, order: Product) -> Any:
        """Return Xᵀ Z, shape (features, k), computed once for all shards here."""
        return self._once(order, inner_product, self._preparation.dtype)

    def _once(self, order: Product, make: Callable[..., Any], dtype: Any) -> Any:
        """Return what is made of rows and Z, once for all shards here."""
        with self._lock:
            if self._made is None or self._made[0] is not order:
                self._made = order, make(order.block, self._rows, dtype)
            return self._made[1]

    def _tile(self, i: int, j: int) -> Floats:
        """Return κ of rows i with rows j, kept or evaluated again."""
        kept = self._tiles.get((i, j))
        if kept is not None and (i, j) not in self._rounded:
            return kept
        memory = self._memory.take() if kept is None else kept
        if memory is None:
            return self._evaluate(i, j, self._spare())
        self._tiles[i, j] = self._evaluate(i, j, memory)
        self._rounded.discard((i, j))
        return memory

    def _rounded_tile(self, i: int, j: int) -> Floats:
        """Return the same in single precision, in memory that it then takes half of."""
        if (i, j) in self._rounded:
            return _in_single(self._tiles[i, j])
        tile = self._tile(i, j)
        rounded = _in_single(tile)
        round_in_place(tile.reshape(-1), rounded.reshape(-1))
        if (i, j) in self._tiles:
            self._rounded.add((i, j))
        return rounded

    def _evaluate(self, i: int, j: int, out: Floats, n_known: int = 0) -> Floats:
        """Evaluate a tile, of whose later rows the first are known; zero where one is padding.

        Every number is computed for itself: the bits do not depend on what is known.
        """
        left, right = self._rows[i], self._rows[j]
        if not self._is_by_rows:
            return self._preparation.values(left, right, out)
        n_later = (left if i >= j else right).n
        new = slice(n_known, n_later)
        if n_later - n_known == TILE:
            self._preparation.values(left, right, out)
        elif i >= j:
            self._preparation.values(left.part(new), right, out[new])
        else:
            self._preparation.values(left, right.part(new), out[:, new])
        if n_known == 0:
            out[(slice(n_later, TILE),) if i >= j else (slice(None), slice(n_later, TILE))] = 0.0
        return out

    def _spare(self) -> Floats:
        """Return memory of this thread for a tile that is not kept."""
        spare = getattr(self._scratch, "tile", None)
        if spare is None:
            spare = self._scratch.tile = np.empty((TILE, TILE), self._preparation.dtype)
        found: Floats = spare
        return found


class _TileMemory:
    """Memory for tiles within a budget.

    Memory that was never used is cleared page by page when it is touched, which takes as long
    as the kernel of a tile. In large pieces the system gives it out in large pages, and that
    takes a quarter. What is given back is used again.
    """

    def __init__(self, dtype: np.dtype[Any], budget: float) -> None:
        self._dtype = dtype
        self._left = int(budget // (TILE * TILE * dtype.itemsize))
        self._free: list[Floats] = []
        self._lock = threading.Lock()

    def take(self) -> Floats | None:
        """Return memory of a tile, or None if the budget is used up."""
        with self._lock:
            if not self._free and self._left:
                n_tiles = min(self._left, _TILES_AT_ONCE)
                self._left -= n_tiles
                self._free.extend(np.empty((n_tiles, TILE, TILE), self._dtype)[::-1])
            return self._free.pop() if self._free else None

    def give_back(self, tile: Floats) -> None:
        """Take back the memory of a tile that is not kept any more."""
        with self._lock:
            self._free.append(tile)


def _in_single(tile: Floats) -> Floats:
    """Return the first half of a tile's memory as a tile in single precision."""
    found: Floats = tile.reshape(-1).view(np.float32)[: tile.size].reshape(tile.shape)
    return found


def _or_nothing(middle: Floats | None) -> Floats:
    return np.empty(0) if middle is None else middle
