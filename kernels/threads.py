"""Spread columns over threads: kernels release the GIL, and columns share no value and no byte."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

# Below this many values a thread costs more than it saves (a hand-over takes tens of microseconds).
MIN_VALUES_PER_THREAD = 1 << 18

_threads = 1
_pool: ThreadPoolExecutor | None = None


def set_threads(n: int) -> None:
    """Let kernels use up to `n` threads of this process (default 1). Results do not depend on `n`.

    Raises:
        ValueError: `n` is less than 1.
    """
    global _threads, _pool
    if n < 1:
        raise ValueError(f"threads: got {n}; need at least 1; pass the cores of this rank")
    _threads = n
    if _pool is not None:
        _pool.shutdown(wait=False)  # what was submitted still runs to its end
    # The calling thread works too.
    _pool = ThreadPoolExecutor(n - 1, thread_name_prefix="mpisgd-kernel") if n > 1 else None


def get_threads() -> int:
    """How many threads kernels may use."""
    return _threads


def over_columns(work: Callable[[slice], None], *, columns: int, values: int) -> None:
    """Call `work` on slices that together cover `columns` columns, in parallel if that pays.

    Args:
        work: takes a slice of the columns.
        columns: how many there are.
        values: how many values they hold in all.
    """
    parts = min(_threads, columns, values // MIN_VALUES_PER_THREAD)
    pool = _pool
    if parts < 2 or pool is None:
        work(slice(0, columns))
        return
    bounds = [columns * part // parts for part in range(parts + 1)]
    others = [pool.submit(work, slice(*bounds[part : part + 2])) for part in range(1, parts)]
    try:
        work(slice(*bounds[:2]))
    finally:
        wait(others)  # nobody writes to the caller's buffers after this
    for other in others:
        other.result()
