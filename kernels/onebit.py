"""One bit a value with error feedback: the numpy reference, which defines it, and the CPU kernels.

For a column x with committed residual e (docs/arithmetic.md; Seide, Fu, Droppo, Li and Yu,
Interspeech 2014):

    v = x + e      bit = (v >= 0)      sent = mean of the v on this side of zero
    next residual = v - sent

Law: sent + next residual = x + e, up to fp32 rounding; the sum of a column is kept.

All functions take contiguous arrays. With n values and c columns:

    values, residual, next_residual, out    (n,) f4
    starts, stops, code_at                  (c,) i8
    levels                                  (c, 2) f4, mean of the negative values, of the others
    codes                                   u1

Column k is values[starts[k]:stops[k]], its codes begin at byte code_at[k]. Only values in columns
and only the ceil(m / 8) bytes of a column of m values are written. `next_residual` must not overlap
`residual`: the step may yet be dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import stack
from .jit import kernel, part

F4 = NDArray[np.float32]
I8 = NDArray[np.int64]
U1 = NDArray[np.uint8]

LANES = 32  # partial sums of a column: one warp, two AVX-512 registers, four AVX registers
_ZERO = np.float32(0.0)

# --- The definition ---------------------------------------------------------------------------


def canonical_sum(values: F4) -> np.float32:
    """Sum of (m,) f4 in 32 partial sums, value i to partial i mod 32, folded in halves."""
    partial = np.zeros(LANES, np.float32)
    for first in range(0, values.size, LANES):
        block = values[first : first + LANES]
        partial[: block.size] += block
    for half in (16, 8, 4, 2, 1):
        partial = partial[:half] + partial[half:]
    total: np.float32 = partial[0]
    return total


def encode_reference(
    values: F4,
    residual: F4,
    next_residual: F4,
    starts: I8,
    stops: I8,
    code_at: I8,
    levels: F4,
    codes: U1,
) -> None:
    """Write levels, codes and next residual of every column: the definition, in numpy."""
    with np.errstate(all="ignore"):  # NaN and infinities are data here: they show in the levels
        for c, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            owed = values[start:stop] + residual[start:stop]
            bit = owed >= 0
            for side, here in enumerate((~bit, bit)):
                count = np.float32(max(1, int(here.sum())))
                levels[c, side] = canonical_sum(np.where(here, owed, _ZERO)) / count
            next_residual[start:stop] = owed - np.where(bit, levels[c, 1], levels[c, 0])
            packed = np.packbits(bit, bitorder="little")
            codes[code_at[c] : code_at[c] + packed.size] = packed


def _sent_reference(levels: F4, codes: U1, at: int, c: int, length: int) -> F4:
    """Decoded values of column `c`."""
    packed = codes[at : at + (length + 7) // 8]
    bit = np.unpackbits(packed, count=length, bitorder="little").astype(bool)
    sent: F4 = np.where(bit, levels[c, 1], levels[c, 0])
    return sent


def decode_reference(levels: F4, codes: U1, starts: I8, stops: I8, code_at: I8, out: F4) -> None:
    """Write the level of every value to `out`, in numpy."""
    for c, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        out[start:stop] = _sent_reference(levels, codes, code_at[c], c, stop - start)


def decode_add_reference(
    levels: F4, codes: U1, starts: I8, stops: I8, code_at: I8, out: F4
) -> None:
    """Add the level of every value to `out`, in numpy."""
    with np.errstate(all="ignore"):
        for c, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            out[start:stop] += _sent_reference(levels, codes, code_at[c], c, stop - start)


# --- The CPU kernels --------------------------------------------------------------------------
# Loops of 32 values, free of branches, with unsigned indices (numba then leaves out its test for
# negative ones): LLVM turns them into the vector instructions of the machine at hand.


@part
def _fold(partial: Any) -> np.float32:
    """Partial k takes k+16, k+8, k+4, k+2, k+1; `partial` holds 32 sums and is spent."""
    half = LANES // 2
    while half > 0:
        for k in range(half):
            partial[k] += partial[k + half]
        half //= 2
    total: np.float32 = partial[0]
    return total


@part
def _add_to_sums(
    values: F4, residual: F4, first: int, length: int, negative: Any, positive: Any
) -> int:
    """Add `length` <= 32 values owed to the sums of their side; returns the number of ones."""
    ones = np.uint32(0)
    for k in range(length):
        i = np.uint64(first + k)
        v = values[i] + residual[i]
        bit = v >= _ZERO
        positive[k] += v if bit else _ZERO
        negative[k] += _ZERO if bit else v
        ones += np.uint32(bit)
    return int(ones)


@part
def _means(values: F4, residual: F4, start: int, stop: int) -> tuple[np.float32, np.float32]:
    """Mean of the negative values owed in the column, and mean of the others."""
    negative = stack.floats(LANES)
    positive = stack.floats(LANES)
    for k in range(LANES):
        negative[k] = _ZERO
        positive[k] = _ZERO
    ones = 0
    whole = start + (stop - start) // LANES * LANES
    for first in range(start, whole, LANES):
        ones += _add_to_sums(values, residual, first, LANES, negative, positive)
    ones += _add_to_sums(values, residual, whole, stop - whole, negative, positive)
    zeros = stop - start - ones
    return (
        _fold(negative) / np.float32(max(1, zeros)),
        _fold(positive) / np.float32(max(1, ones)),
    )


@part
def _settle(
    values: F4,
    residual: F4,
    next_residual: F4,
    first: int,
    length: int,
    level0: np.float32,
    level1: np.float32,
) -> np.uint32:
    """Write what `length` <= 32 values still owe; returns their bits, the first one lowest."""
    word: np.uint32 = np.uint32(0)
    for k in range(length):
        i = np.uint64(first + k)
        v = values[i] + residual[i]
        bit = v >= _ZERO
        next_residual[i] = v - (level1 if bit else level0)
        word |= np.uint32(bit) << np.uint32(k)
    return word


@kernel
def encode(
    values: F4,
    residual: F4,
    next_residual: F4,
    starts: I8,
    stops: I8,
    code_at: I8,
    levels: F4,
    codes: U1,
) -> None:
    """Write levels, codes and next residual of every column: `encode_reference`, bit for bit."""
    for c in range(starts.size):
        start, stop, at = starts[c], stops[c], code_at[c]
        level0, level1 = _means(values, residual, start, stop)
        levels[c, 0] = level0
        levels[c, 1] = level1
        whole = start + (stop - start) // LANES * LANES
        for first in range(start, whole, LANES):
            word = _settle(values, residual, next_residual, first, LANES, level0, level1)
            for byte in range(4):
                codes[np.uint64(at + byte)] = np.uint8(word >> np.uint32(8 * byte))
            at += 4
        word = _settle(values, residual, next_residual, whole, stop - whole, level0, level1)
        for byte in range((stop - whole + 7) // 8):
            codes[np.uint64(at + byte)] = np.uint8(word >> np.uint32(8 * byte))


@part
def _sent(codes: U1, at: int, k: int, level0: np.float32, level1: np.float32) -> np.float32:
    """Level of value `k` < 8 of code byte `at`."""
    return level1 if codes[np.uint64(at)] & np.uint8(1 << k) else level0


@kernel
def decode(levels: F4, codes: U1, starts: I8, stops: I8, code_at: I8, out: F4) -> None:
    """Write the level of every value to `out`; equals `decode_reference` bit for bit."""
    for c in range(starts.size):
        start, at, level0, level1 = starts[c], code_at[c], levels[c, 0], levels[c, 1]
        whole = start + (stops[c] - start) // 8 * 8
        for first in range(start, whole, 8):
            for k in range(8):
                out[np.uint64(first + k)] = _sent(codes, at, k, level0, level1)
            at += 1
        for k in range(stops[c] - whole):
            out[np.uint64(whole + k)] = _sent(codes, at, k, level0, level1)


@kernel
def decode_add(levels: F4, codes: U1, starts: I8, stops: I8, code_at: I8, out: F4) -> None:
    """Add the level of every value to `out`; equals `decode_add_reference` bit for bit."""
    for c in range(starts.size):
        start, at, level0, level1 = starts[c], code_at[c], levels[c, 0], levels[c, 1]
        whole = start + (stops[c] - start) // 8 * 8
        for first in range(start, whole, 8):
            for k in range(8):
                out[np.uint64(first + k)] += _sent(codes, at, k, level0, level1)
            at += 1
        for k in range(stops[c] - whole):
            out[np.uint64(whole + k)] += _sent(codes, at, k, level0, level1)
