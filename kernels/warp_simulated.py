"""Stand-ins for `warp_cuda` in numba's CUDA simulator (NUMBA_ENABLE_CUDASIM=1), in plain Python.

The simulator runs one block at a time, each lane as a thread with a `syncthreads` method. Device
functions of its own would do for one thread only: it swaps their globals per call.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

_lanes: list[Any] = [None] * 32  # what each lane of the running warp shows the others


def _shown(x: Any) -> list[Any]:
    """What all 32 lanes passed as `x`."""
    me: Any = threading.current_thread()
    _lanes[me.threadIdx.x] = x
    me.syncthreads()
    shown = list(_lanes)
    me.syncthreads()  # nobody shows the next thing before all have looked
    return shown


def ballot(bit: Any) -> int:
    """One word: bit k is that of lane k."""
    return sum(int(bool(b)) << lane for lane, b in enumerate(_shown(bit)))


def fold(x: np.float32) -> np.float32:
    """Lane k takes k+16, k+8, k+4, k+2, k+1, in fp32; every lane gets the sum in lane 0."""
    sums = np.array(_shown(x), np.float32)
    with np.errstate(all="ignore"):
        for half in (16, 8, 4, 2, 1):
            sums = sums[:half] + sums[half:]
    total: np.float32 = sums[0]
    return total


def add(x: np.float32, y: np.float32) -> np.float32:
    """Sum x + y in fp32."""
    with np.errstate(all="ignore"):
        total: np.float32 = np.float32(x) + np.float32(y)
    return total


def subtract(x: np.float32, y: np.float32) -> np.float32:
    """Difference x - y in fp32."""
    with np.errstate(all="ignore"):
        difference: np.float32 = np.float32(x) - np.float32(y)
    return difference


def divide(x: np.float32, y: np.float32) -> np.float32:
    """Quotient x / y in fp32."""
    with np.errstate(all="ignore"):
        quotient: np.float32 = np.float32(x) / np.float32(y)
    return quotient
