"""The one place for numba's options: `kernel` compiles an entry point, `part` a part of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

# nogil: the communication thread encodes while the main thread runs backward.
# error_model numpy: 0/0 is NaN; Python's model would raise out of the middle of a bucket.
# fastmath stays off: it may drop NaN tests, re-associate sums and contract x*y+z, and each of these
# breaks the canonical arithmetic.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": False,
    "boundscheck": False,
}


def kernel(function: F) -> F:
    """Compile `function` at its first call, and keep the machine code on disk if that is possible.

    Without a writable place for the cache (a read-only home and installation) numba refuses to
    decorate; the kernel is then compiled once per process instead.
    """
    compiled: F
    try:
        compiled = numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # "cannot cache function ...: no locator available"
        compiled = numba.njit(**_OPTIONS)(function)
    return compiled


def part(function: F) -> F:
    """Compile `function` into every kernel that calls it: a constant length then unrolls its loops.

    Keep a part in the file of its kernels: numba renews a kernel's cache when the kernel's own file
    changes, not when another does.
    """
    compiled: F = numba.njit(forceinline=True, **_OPTIONS)(function)
    return compiled
