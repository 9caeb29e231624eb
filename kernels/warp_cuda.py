"""What the 32 lanes of a warp do together, and fp32 arithmetic that no compiler may contract.

Numba's simulator has no warp operations, so `warp_simulated` takes their place there. A kernel
writes `from .warp_cuda import fold` and need not know: this file is the only place that chooses.

Launch with blocks of shape (32, warps): threadIdx.x is the lane, and all lanes of a warp make the
same calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import cuda as numba_cuda
from numba.cuda import libdevice as numba_libdevice

from . import warp_simulated

# Numba carries types in part, and not in every release.
cuda: Any = numba_cuda
libdevice: Any = numba_libdevice
config: Any = numba.config

_ALL_LANES = 0xFFFFFFFF

# One warp a column is right for small buckets too: numba's warning is no news to the user.
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0


def kernel(function: Callable[..., None]) -> Any:
    """Compile a GPU kernel at its first launch; fastmath is off by default, and has to stay so."""
    return cuda.jit(function)


def _here(on_gpu: Callable[..., Any], simulated: Callable[..., Any]) -> Any:
    """The form of an operation that this process can run."""
    return simulated if config.ENABLE_CUDASIM else cuda.jit(device=True)(on_gpu)


def _ballot(bit: Any) -> Any:
    """One word: bit k is that of lane k."""
    return cuda.ballot_sync(_ALL_LANES, bit)


def _fold(x: Any) -> Any:
    """Lane k takes k+16, k+8, k+4, k+2, k+1, in fp32; every lane gets the sum in lane 0."""
    x = libdevice.fadd_rn(x, cuda.shfl_down_sync(_ALL_LANES, x, 16))
    x = libdevice.fadd_rn(x, cuda.shfl_down_sync(_ALL_LANES, x, 8))
    x = libdevice.fadd_rn(x, cuda.shfl_down_sync(_ALL_LANES, x, 4))
    x = libdevice.fadd_rn(x, cuda.shfl_down_sync(_ALL_LANES, x, 2))
    x = libdevice.fadd_rn(x, cuda.shfl_down_sync(_ALL_LANES, x, 1))
    return cuda.shfl_sync(_ALL_LANES, x, 0)


# x + y, x - y, x / y, rounded to nearest, each by itself: the plain operators may become part of an
# FMA, or of an approximate division.
def _add(x: Any, y: Any) -> Any:
    return libdevice.fadd_rn(x, y)


def _subtract(x: Any, y: Any) -> Any:
    return libdevice.fadd_rn(x, -y)


def _divide(x: Any, y: Any) -> Any:
    return libdevice.fdiv_rn(x, y)


ballot: Any = _here(_ballot, warp_simulated.ballot)
fold: Any = _here(_fold, warp_simulated.fold)
add: Any = _here(_add, warp_simulated.add)
subtract: Any = _here(_subtract, warp_simulated.subtract)
divide: Any = _here(_divide, warp_simulated.divide)

# The simulator gives every lane a thread of the operating system: one warp at a time is plenty.
WARPS_PER_BLOCK = 1 if config.ENABLE_CUDASIM else 8
