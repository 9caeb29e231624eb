"""One bit on a GPU: a warp takes a column. Same signatures and same bits as `onebit`.

Import it only where a GPU is used: it loads numba's CUDA support. Arrays are device arrays, that is
anything with `__cuda_array_interface__`; in the simulator numpy arrays. Launches are asynchronous.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .warp_cuda import WARPS_PER_BLOCK, add, ballot, cuda, divide, fold, kernel, subtract

_ZERO = np.float32(0.0)


@kernel
def _encode(
    values: Any,
    residual: Any,
    next_residual: Any,
    starts: Any,
    stops: Any,
    code_at: Any,
    levels: Any,
    codes: Any,
) -> None:
    c = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if c >= starts.size:
        return
    lane = cuda.threadIdx.x
    start, stop, at = starts[c], stops[c], code_at[c]
    negative = positive = _ZERO
    ones = 0
    for first in range(start, stop, 32):
        bit = False
        if first + lane < stop:
            v = add(values[first + lane], residual[first + lane])
            bit = v >= _ZERO
            positive = add(positive, v if bit else _ZERO)
            negative = add(negative, _ZERO if bit else v)
        ones += cuda.popc(ballot(bit))
    zeros = stop - start - ones  # no max(): numba cannot compile it for CUDA
    level0 = divide(fold(negative), np.float32(zeros if zeros > 0 else 1))
    level1 = divide(fold(positive), np.float32(ones if ones > 0 else 1))
    if lane == 0:
        levels[c, 0] = level0
        levels[c, 1] = level1
    for first in range(start, stop, 32):
        bit = False
        if first + lane < stop:
            v = add(values[first + lane], residual[first + lane])
            bit = v >= _ZERO
            next_residual[first + lane] = subtract(v, level1 if bit else level0)
        word = ballot(bit)
        if lane < 4 and first + 8 * lane < stop:  # lane k writes byte k of the word
            codes[at + (first - start) // 8 + lane] = np.uint8((word >> (8 * lane)) & 255)


@kernel
def _decode(levels: Any, codes: Any, starts: Any, stops: Any, code_at: Any, out: Any) -> None:
    c = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if c < starts.size:
        for i in range(cuda.threadIdx.x, stops[c] - starts[c], 32):
            bit = codes[code_at[c] + i // 8] >> (i % 8) & 1
            out[starts[c] + i] = levels[c, 1] if bit else levels[c, 0]


@kernel
def _decode_add(levels: Any, codes: Any, starts: Any, stops: Any, code_at: Any, out: Any) -> None:
    c = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if c < starts.size:
        for i in range(cuda.threadIdx.x, stops[c] - starts[c], 32):
            bit = codes[code_at[c] + i // 8] >> (i % 8) & 1
            at = starts[c] + i
            out[at] = add(out[at], levels[c, 1] if bit else levels[c, 0])


def _launch(compiled: Any, columns: int, *arrays: Any) -> None:
    """One warp a column; a launch of no blocks would be an error."""
    if columns:
        blocks = (columns + WARPS_PER_BLOCK - 1) // WARPS_PER_BLOCK
        compiled[blocks, (32, WARPS_PER_BLOCK)](*arrays)


def encode(
    values: Any,
    residual: Any,
    next_residual: Any,
    starts: Any,
    stops: Any,
    code_at: Any,
    levels: Any,
    codes: Any,
) -> None:
    """Write levels, codes and next residual of every column; see `onebit.encode`."""
    arrays = (values, residual, next_residual, starts, stops, code_at, levels, codes)
    _launch(_encode, len(starts), *arrays)


def decode(levels: Any, codes: Any, starts: Any, stops: Any, code_at: Any, out: Any) -> None:
    """Write the level of every value to `out`; see `onebit.decode`."""
    _launch(_decode, len(starts), levels, codes, starts, stops, code_at, out)


def decode_add(levels: Any, codes: Any, starts: Any, stops: Any, code_at: Any, out: Any) -> None:
    """Add the level of every value to `out`; see `onebit.decode_add`."""
    _launch(_decode_add, len(starts), levels, codes, starts, stops, code_at, out)
