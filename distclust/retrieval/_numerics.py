"""Compiled loops of retrieval: sums of weights over the ones of rows, by rows or by columns.

Approximate sums are of 32-bit numbers in any order: they only say which rows may be among
the best. Exact sums have one order, whoever computes them: columns ascending, in 64 bits,
``(constant + base) + gain`` with ``base`` over all ones of the row and ``gain`` over those
that the query has too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled

Array = npt.NDArray[Any]


# ---- rows ----------------------------------------------------------------------------------------


@compiled
def add_weights(lengths: Array, ids: Array, weights: Array, sums: Array) -> None:
    """Add the weights of each row's ids to `sums` (n,); rows follow one another in `ids`."""
    # Positions without a sign: they need no test for counting from the end.
    k, two, three, four = np.uint64(0), np.uint64(2), np.uint64(3), np.uint64(4)
    one = np.uint64(1)
    for i in range(len(lengths)):
        end = k + np.uint64(lengths[i])
        # Four sums at once: one would wait for itself at every step.
        a = b = c = d = np.float32(0.0)
        while k + four <= end:
            a += weights[np.uint64(ids[k])]
            b += weights[np.uint64(ids[k + one])]
            c += weights[np.uint64(ids[k + two])]
            d += weights[np.uint64(ids[k + three])]
            k += four
        while k < end:
            a += weights[np.uint64(ids[k])]
            k += one
        sums[i] += (a + b) + (c + d)


@compiled
def add_eight_weights(lengths: Array, ids: Array, weights: Array, sums: Array) -> None:
    """As `add_weights` for eight queries: weights (n_columns, 8), sums (n, 8)."""
    flat = weights.reshape(-1)
    zero = np.float32(0.0)
    k = 0
    for i in range(len(lengths)):
        end = k + np.int64(lengths[i])
        a = b = c = d = e = f = g = h = zero
        while k < end:
            w = np.int64(ids[k]) * 8
            a += flat[w]
            b += flat[w + 1]
            c += flat[w + 2]
            d += flat[w + 3]
            e += flat[w + 4]
            f += flat[w + 5]
            g += flat[w + 6]
            h += flat[w + 7]
            k += 1
        sums[i, 0] += a
        sums[i, 1] += b
        sums[i, 2] += c
        sums[i, 3] += d
        sums[i, 4] += e
        sums[i, 5] += f
        sums[i, 6] += g
        sums[i, 7] += h


@compiled
def add_packed_weights(lengths: Array, ids: Array, weights: Array, sums: Array) -> None:
    """As `add_eight_weights` with four 16-bit numbers in each word: (n_columns, 2), (n, 2).

    The numbers have no sign and no sum of a row exceeds 16 bits, so that one addition adds
    four of them.
    """
    flat = weights.reshape(-1)
    one, two = np.uint64(1), np.uint64(2)
    k = np.uint64(0)
    for i in range(len(lengths)):
        end = k + np.uint64(lengths[i])
        a = b = c = d = np.uint64(0)
        while k + one < end:
            first, second = np.uint64(ids[k]) * two, np.uint64(ids[k + one]) * two
            a += flat[first]
            b += flat[first + one]
            c += flat[second]
            d += flat[second + one]
            k += two
        if k < end:
            first = np.uint64(ids[k]) * two
            a += flat[first]
            b += flat[first + one]
            k += one
        sums[i, 0] = a + c
        sums[i, 1] = b + d


@compiled
def score_rows(
    starts: Array,
    lengths: Array,
    ids: Array,
    columns: Array,
    base: Array,
    gain: Array,
    constant: float,
    scores: Array,
) -> None:
    """Fill `scores` (m,) with the exact scores of some rows.

    Row ``i`` has the ids ``ids[starts[i] : starts[i] + lengths[i]]``; ``columns[id]`` ascends
    within a row. `base` and `gain` have a value a column.
    """
    for i in range(len(starts)):
        all_ones = 0.0
        shared = 0.0
        for k in range(starts[i], starts[i] + np.int64(lengths[i])):
            j = columns[ids[k]]
            all_ones += base[j]
            if gain[j] != 0.0:
                shared += gain[j]
        scores[i] = (constant + all_ones) + shared


# ---- columns -------------------------------------------------------------------------------------


@compiled
def count_ids(ids: Array, counts: Array) -> None:
    """Add how often every id occurs to `counts`."""
    for k in range(len(ids)):
        counts[ids[k]] += 1


@compiled
def transpose(indptr: Array, indices: Array, first_row: int, cursor: Array, rows: Array) -> None:
    """Append each row's number to the lists of its columns.

    ``cursor[j]`` is where the next number of column ``j`` goes in `rows`; negative: nowhere.
    """
    for i in range(len(indptr) - 1):
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if cursor[j] >= 0:
                rows[cursor[j]] = first_row + i
                cursor[j] += 1


@compiled
def set_bits(indptr: Array, indices: Array, first_row: int, place: Array, bits: Array) -> None:
    """Set the bits of the columns that have a place (others have -1), first bit on top."""
    for i in range(len(indptr) - 1):
        for k in range(indptr[i], indptr[i + 1]):
            p = place[indices[k]]
            if p >= 0:
                bits[first_row + i, p >> 3] |= np.uint8(128 >> (p & 7))


@compiled
def add_lists(rows: Array, begins: Array, ends: Array, amounts: Array, sums: Array) -> None:
    """Add ``amounts[t]`` to the sums of the rows in list ``t``."""
    for t in range(len(begins)):
        amount = amounts[t]
        for k in range(begins[t], ends[t]):
            sums[rows[k]] += amount


@compiled
def add_columns(
    rows: Array,
    starts: Array,
    bits: Array,
    bit_places: Array,
    order: Array,
    weights: Array,
    sums: Array,
) -> None:
    """Add the weight of every column to the sums of its rows, columns in the given order.

    The first columns have lists, the others bits.
    """
    n_lists = len(starts) - 1
    for t in order:
        weight = weights[t]
        if t < n_lists:
            for k in range(starts[t], starts[t + 1]):
                sums[rows[k]] += weight
        else:
            place = bit_places[t - n_lists]
            byte, mask = place >> 3, np.uint8(128 >> (place & 7))
            for i in range(len(sums)):
                if bits[i, byte] & mask:
                    sums[i] += weight


@compiled
def _position(ascending: Array, value: int) -> int:
    """Return where a value is, or -1."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) >> 1
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low if low < len(ascending) and ascending[low] == value else -1


@compiled
def look_up(
    wanted: Array,
    columns: Array,
    starts: Array,
    bit_columns: Array,
    bit_places: Array,
    begins: Array,
    ends: Array,
    places: Array,
) -> None:
    """Fill in where the lists of wanted columns begin and end, or which bit they are."""
    for t in range(len(wanted)):
        begins[t] = ends[t] = 0
        places[t] = -1
        at = _position(bit_columns, wanted[t])
        if at >= 0:
            places[t] = bit_places[at]
            continue
        at = _position(columns, wanted[t])
        if at >= 0:
            begins[t], ends[t] = starts[at], starts[at + 1]


@compiled
def add_by_lists(
    rows: Array, begins: Array, ends: Array, places: Array, gains: Array, sums: Array
) -> None:
    """Add the gains of the wanted columns that have lists to the sums (n,), in 32 bits."""
    for t in range(len(begins)):
        if places[t] < 0:
            amount = np.float32(gains[t])
            for k in range(begins[t], ends[t]):
                sums[rows[k]] += amount


@compiled
def byte_tables(weights: Array, tables: Array) -> None:
    """Fill in what the ones of every byte add up to, shape (n_bytes, 256)."""
    for b in range(len(tables)):
        table = tables[b]
        table[0] = 0.0
        for bit in range(8):
            # The last of a byte's columns is its lowest bit.
            column = 8 * b + 7 - bit
            amount = np.float32(weights[column]) if column < len(weights) else np.float32(0.0)
            below = 1 << bit
            for value in range(below):
                table[below + value] = table[value] + amount


@compiled
def count_bits_by_group(bits: Array, size: int, first: Array, second: Array) -> None:
    """Count the bits of four groups of `size` places; two counts in one number each."""
    base = size + 1
    counts = np.zeros(4, np.int64)
    for i in range(len(bits)):
        counts[:] = 0
        for place in range(min(4 * size, 8 * bits.shape[1])):
            if bits[i, place >> 3] & np.uint8(128 >> (place & 7)):
                counts[place // size] += 1
        first[i] = counts[0] * base + counts[1]
        second[i] = counts[2] * base + counts[3]


@compiled
def promising(
    sums: Array,
    first: Array,
    second: Array,
    first_caps: Array,
    second_caps: Array,
    threshold: float,
    found: Array,
) -> int:
    """Fill `found` with the rows that may reach the threshold; return how many.

    The caps say what so many bits of two groups can add at most.
    """
    n = 0
    for i in range(len(sums)):
        found[n] = i  # never past the end, as n <= i
        n += (sums[i] + first_caps[first[i]]) + second_caps[second[i]] >= threshold
    return n


@compiled
def refine(bits: Array, tables: Array, threshold: float, found: Array, sums: Array) -> int:
    """Keep those of the rows `found` that reach the threshold with their bits.

    What their bytes add comes to `sums`, of all rows before and of the kept ones after.
    Returns how many are kept, in the same order. Rare features come first, as they add
    most: a row is let go as soon as the rest cannot help it.
    """
    n_bytes = len(tables)
    rest = np.zeros(n_bytes + 1, np.float32)  # the most that bytes before this one add
    for byte in range(n_bytes):
        highest = np.float32(0.0)
        for value in range(256):
            highest = max(highest, tables[byte, value])
        rest[byte + 1] = np.nextafter(rest[byte] + highest, np.float32(np.inf))
    n = 0
    for m in range(len(found)):
        i = found[m]
        total = sums[i]
        byte = n_bytes
        while byte > 0 and total + rest[byte] >= threshold:
            byte -= 1
            total += tables[byte, bits[i, byte]]
        if byte == 0 and total >= threshold:
            found[n], sums[n] = i, total
            n += 1
    return n


@compiled
def _holds(rows: Array, begin: int, end: int, row: int) -> bool:
    """Whether an ascending list has that row."""
    low, high = begin, end
    while low < high:
        middle = (low + high) >> 1
        if rows[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low < end and rows[low] == row


@compiled
def score_by_lists(
    candidates: Array,
    rows: Array,
    begins: Array,
    ends: Array,
    places: Array,
    bits: Array,
    gain: Array,
    base: Array,
    constant: float,
    scores: Array,
) -> None:
    """Fill `scores` (m,) with the exact scores of some rows of a shard.

    The query's columns come in ascending order: column ``t`` has a list, or the bit
    ``places[t]`` where that is not negative. `base` has a value a row.
    """
    for m in range(len(candidates)):
        i = candidates[m]
        shared = 0.0
        for t in range(len(gain)):
            if places[t] >= 0:
                p = places[t]
                is_on = bits[i, p >> 3] & np.uint8(128 >> (p & 7)) != 0
            else:
                is_on = _holds(rows, begins[t], ends[t], i)
            if is_on:
                shared += gain[t]
        scores[m] = (constant + base[i]) + shared
