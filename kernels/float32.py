"""Plain fp32 on the wire: copy columns into and out of a message, and see whether all is finite.

`codes` is the code area of the message seen as float32. `code_at` counts bytes: the codes of
column k start at value `code_at[k] // 4`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .jit import kernel

F4 = NDArray[np.float32]
I8 = NDArray[np.int64]

# The exponent bits of an fp32 number. All ones: NaN or infinite.
_EXPONENT = np.uint32(0x7F800000)


@kernel
def all_finite(values: F4) -> bool:
    """Whether `values`, (n,) f4 and contiguous, holds no NaN and no infinity; True if n is 0.

    The largest exponent is found in integers: a float comparison lets a NaN slip through.
    """
    words = values.view(np.uint32)
    largest = np.uint32(0)
    for i in range(words.size):
        largest = max(largest, words[i] & _EXPONENT)
    return bool(largest != _EXPONENT)


@kernel
def pack(values: F4, starts: I8, stops: I8, code_at: I8, codes: F4) -> None:
    """Copy every column of `values` to its place in `codes`."""
    for c in range(starts.size):
        at, start = code_at[c] // 4, starts[c]
        for i in range(stops[c] - start):
            codes[np.uint64(at + i)] = values[np.uint64(start + i)]


@kernel
def pack_owed(
    values: F4, residual: F4, next_residual: F4, starts: I8, stops: I8, code_at: I8, codes: F4
) -> None:
    """Write values + residual to `codes`, and 0 to `next_residual`: the whole debt is paid."""
    for c in range(starts.size):
        at, start = code_at[c] // 4, starts[c]
        for i in range(stops[c] - start):
            k = np.uint64(start + i)
            codes[np.uint64(at + i)] = values[k] + residual[k]
            next_residual[k] = np.float32(0.0)


@kernel
def unpack(codes: F4, starts: I8, stops: I8, code_at: I8, out: F4) -> None:
    """Copy every column from `codes` to its place in `out`."""
    for c in range(starts.size):
        at, start = code_at[c] // 4, starts[c]
        for i in range(stops[c] - start):
            out[np.uint64(start + i)] = codes[np.uint64(at + i)]


@kernel
def unpack_add(codes: F4, starts: I8, stops: I8, code_at: I8, out: F4) -> None:
    """Add every column from `codes` to its place in `out`."""
    for c in range(starts.size):
        at, start = code_at[c] // 4, starts[c]
        for i in range(stops[c] - start):
            out[np.uint64(start + i)] += codes[np.uint64(at + i)]
