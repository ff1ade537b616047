"""Compiled products of a matrix with a narrow one, and how wide the narrow one's panels are.

Y = A B for a block B of few columns, or few rows. BLAS libraries are made for square factors:
they copy large ones into an order of their own, which takes as long as a narrow product, and
they may not know the processor. Here B is cut into panels of a few vector registers, laid out
row by row, and the numbers of a panel of Y stay in registers while the rows of A and of the
panel are gone through once.

Every number of Y is one sum, from the first product to the last, each rounded once with its
addition: the same bits whatever the shapes, the panels and the processor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from distclust.compiled import compiled
from distclust.projections._numerics import exponential

Floats = npt.NDArray[np.floating[Any]]

_FEATURES = get_host_cpu_features()
_HAS_LONG_VECTORS = bool(_FEATURES.get("avx512f"))
_VECTOR_BYTES = 64 if _HAS_LONG_VECTORS else 32
_MOST_VECTORS = 4 if _HAS_LONG_VECTORS else 3  # of a row of a panel
_ROWS = 4  # of A at a time, or twice as many where registers suffice
_MANY_ROWS = 8 if _HAS_LONG_VECTORS else 4


PUT, ADD, PUT_EXPONENTIAL = 0, 1, 2  # what is done with a product

_STRIP = 64  # rows of A that stay in cache while all panels pass


def panel_shape(n_columns: int, dtype: Any) -> tuple[int, int]:
    """Return how many panels a block of so many columns has, and the columns of each."""
    n_lanes = _VECTOR_BYTES // np.dtype(dtype).itemsize
    n_vectors = max(-(-n_columns // n_lanes), 1)
    n_panels = -(-n_vectors // _MOST_VECTORS)
    return n_panels, -(-n_vectors // n_panels) * n_lanes


def panels_of(block: Floats, dtype: Any, n_rows: int | None = None) -> Floats:
    """Return a block, shape (m, k), cut into panels, shape (n_panels, m, columns).

    Where more rows are asked for, those that the block does not have are zero.
    """
    n_panels, width = panel_shape(block.shape[1], dtype)
    n_rows = len(block) if n_rows is None else n_rows
    panels = np.zeros((n_panels, n_rows, width), dtype)
    for p, panel in enumerate(panels):
        columns = block[:, p * width : (p + 1) * width]
        panel[: len(block), : columns.shape[1]] = columns
    return panels


def block_of(panels: Floats) -> Floats:
    """Return the block that panels are of, and the columns that were added to it."""
    return panels.transpose(1, 0, 2).reshape(panels.shape[1], -1)


def panels_in(block: Floats) -> Floats:
    """Return panels of a block without copying it, as many as are whole.

    The rows of the block are contiguous.
    """
    width = _MOST_VECTORS * _VECTOR_BYTES // block.itemsize
    shape = block.shape[1] // width, len(block), width
    strides = width * block.itemsize, *block.strides
    return np.lib.stride_tricks.as_strided(block, shape, strides, writeable=False)


def _dot_rows(n_rows: int, n_vectors: int) -> Any:
    """Return a function that multiplies some rows of A with a panel of so many registers."""

    @intrinsic  # type: ignore[untyped-decorator]
    def dot(_: Any, left: Any, panel: Any, first: Any, out: Any) -> Any:
        """Put left[first : first + n_rows] @ panel into out, shape (n_rows, columns)."""
        signature = types.void(left, panel, first, out)
        n_lanes = _VECTOR_BYTES // (left.dtype.bitwidth // 8)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            left_type, panel_type, _, out_type = signature.args
            left = context.make_array(left_type)(context, builder, values[0])
            panel = context.make_array(panel_type)(context, builder, values[1])
            out = context.make_array(out_type)(context, builder, values[3])
            word = context.get_value_type(types.intp)
            number = context.get_data_type(left_type.dtype)
            vector = ir.VectorType(number, n_lanes)
            mask = ir.Constant(ir.VectorType(ir.IntType(32), n_lanes), None)
            name = f"llvm.fma.v{n_lanes}f{left_type.dtype.bitwidth}"
            fused = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), name
            )
            zero = ir.Constant(vector, [0.0] * n_lanes)
            sums = [
                [cgutils.alloca_once_value(builder, zero) for _ in range(n_vectors)]
                for _ in range(n_rows)
            ]
            strides = [builder.extract_value(left.strides, i) for i in range(2)]
            row_starts = []
            for i in range(n_rows):
                row = builder.add(values[2], ir.Constant(word, i))
                row_starts.append(
                    cgutils.pointer_add(builder, left.data, builder.mul(row, strides[0]))
                )

            def nth_vector(start: Any, v: int) -> Any:
                place = builder.gep(start, [ir.Constant(word, v * n_lanes)])
                return builder.bitcast(place, vector.as_pointer())

            def broadcast(one: Any) -> Any:
                undefined = ir.Constant(vector, ir.Undefined)
                first = builder.insert_element(undefined, one, ir.Constant(ir.IntType(32), 0))
                return builder.shuffle_vector(first, undefined, mask)

            panel_stride = builder.extract_value(panel.strides, 0)
            with cgutils.for_range(builder, builder.extract_value(panel.shape, 0)) as loop:
                start = cgutils.pointer_add(
                    builder, panel.data, builder.mul(loop.index, panel_stride)
                )
                factors = []
                for v in range(n_vectors):
                    loaded = builder.load(nth_vector(start, v))
                    loaded.align = left_type.dtype.bitwidth // 8
                    factors.append(loaded)
                offset = builder.mul(loop.index, strides[1])
                for i in range(n_rows):
                    place = cgutils.pointer_add(builder, row_starts[i], offset)
                    one = broadcast(builder.load(place))
                    for v in range(n_vectors):
                        more = builder.call(fused, [one, factors[v], builder.load(sums[i][v])])
                        builder.store(more, sums[i][v])
            width = n_vectors * n_lanes
            for i in range(n_rows):
                start = builder.gep(out.data, [ir.Constant(word, i * width)])
                for v in range(n_vectors):
                    stored = builder.store(builder.load(sums[i][v]), nth_vector(start, v))
                    stored.align = left_type.dtype.bitwidth // 8
            return context.get_dummy_value()

        if panel.dtype != left.dtype or out.dtype != left.dtype:
            raise TypingError("factors and product are of one type")
        return signature, generate

    return dot


_one_by_1, _one_by_2, _one_by_3, _one_by_4 = (_dot_rows(1, v) for v in (1, 2, 3, 4))
_many_by_1, _many_by_2, _many_by_3 = (_dot_rows(_MANY_ROWS, v) for v in (1, 2, 3))
_some_by_4 = _dot_rows(_ROWS, 4)


@compiled
def multiply(left: Floats, panels: Floats, out: Floats, then: int) -> None:
    """Compute A B, and do with it what is said: `PUT`, `ADD` or `PUT_EXPONENTIAL`.

    Parameters
    ----------
    left
        A, shape (n, m).
    panels
        B, shape (n_panels, m, columns), of the type of A; see `panels_of`. Rows of a panel are
        contiguous. What is beyond the columns of `out` does not matter.
    out
        Where to, shape (n, k).
    then
        Put it there, add it to what is there, or put e to the power of it there (of 1 where the
        exponent is above 0).
    """
    if len(left) != len(out) or left.shape[1] != panels.shape[1]:
        raise ValueError("the shapes of factors and product do not fit")
    if len(panels) * panels.shape[2] < out.shape[1]:
        raise ValueError("the panels have fewer columns than the product")
    n_vectors = panels.shape[2] * left.itemsize // _VECTOR_BYTES
    n_at_once = _ROWS if n_vectors == 4 else _MANY_ROWS
    sums = np.empty((_MANY_ROWS, panels.shape[2]), left.dtype)
    for start in range(0, len(left), _STRIP):
        stop = min(start + _STRIP, len(left))
        for p in range(len(panels)):
            panel, column = panels[p], p * panels.shape[2]
            n_columns = min(panels.shape[2], out.shape[1] - column)
            i = start
            while i < stop:
                n_rows = n_at_once if i + n_at_once <= stop else 1
                _dot(left, panel, i, sums, n_rows, n_vectors)
                for r in range(n_rows):
                    row, found = out[i + r, column : column + n_columns], sums[r]
                    if then == PUT_EXPONENTIAL:
                        for c in range(len(found)):
                            found[c] = exponential(np.float64(found[c]))
                    if then == ADD:
                        for c in range(n_columns):
                            row[c] += found[c]
                    else:
                        for c in range(n_columns):
                            row[c] = found[c]
                i += n_rows


@compiled
def _dot(left: Floats, panel: Floats, i: int, sums: Floats, n_rows: int, n_vectors: int) -> None:
    if n_rows == 1:
        if n_vectors == 1:
            _one_by_1(left, panel, i, sums)
        elif n_vectors == 2:
            _one_by_2(left, panel, i, sums)
        elif n_vectors == 3:
            _one_by_3(left, panel, i, sums)
        else:
            _one_by_4(left, panel, i, sums)
    elif n_vectors == 1:
        _many_by_1(left, panel, i, sums)
    elif n_vectors == 2:
        _many_by_2(left, panel, i, sums)
    elif n_vectors == 3:
        _many_by_3(left, panel, i, sums)
    else:
        _some_by_4(left, panel, i, sums)


def multiply_across(left: Floats, block: Floats, out: Floats) -> None:
    """Put A B into `out`, where B has few rows, which are contiguous or else are copied."""
    if block.strides[1] != block.itemsize:
        block = np.ascontiguousarray(block)
    panels = panels_in(block)
    n_whole = len(panels) * panels.shape[2]
    multiply(left, panels, out[:, :n_whole], PUT)
    if n_whole < block.shape[1]:
        rest = panels_of(block[:, n_whole:], block.dtype)
        multiply(left, rest, out[:, n_whole:], PUT)


def _multiply_without_compiler(left: Floats, panels: Floats, out: Floats, then: int) -> None:
    found = np.concatenate(list(left @ panels), axis=1)[:, : out.shape[1]]
    if then == ADD:
        out += found
    else:
        out[:] = found if then == PUT else np.exp(np.minimum(found, 0.0))


if config.DISABLE_JIT:
    multiply = _multiply_without_compiler
