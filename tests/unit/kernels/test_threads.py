"""Columns spread over threads: all of them, each once, and the same bits."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mpisgd.kernels import threads


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads for small work too, and one thread again afterwards."""
    monkeypatch.setattr(threads, "MIN_VALUES_PER_THREAD", 10)
    yield
    threads.set_threads(1)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("columns", [0, 1, 2, 5, 100])
def test_every_column_is_worked_on_once(n: int, columns: int) -> None:
    threads.set_threads(n)
    assert threads.get_threads() == n
    done: list[int] = []
    threads.over_columns(
        lambda part: done.extend(range(part.start, part.stop)), columns=columns, values=10_000
    )
    assert sorted(done) == list(range(columns))


def test_threads_work_at_the_same_time() -> None:
    threads.set_threads(3)
    together = threading.Barrier(3)
    threads.over_columns(lambda part: together.wait(timeout=10), columns=6, values=10_000)
    assert together.n_waiting == 0


def test_small_work_stays_in_the_calling_thread() -> None:
    threads.set_threads(3)
    where: list[int] = []
    threads.over_columns(lambda part: where.append(threading.get_ident()), columns=6, values=19)
    assert where == [threading.get_ident()]


@pytest.mark.parametrize("broken", [0, 5])
def test_an_error_in_any_thread_is_raised(broken: int) -> None:
    def work(part: slice) -> None:
        if part.start <= broken < part.stop:
            raise ArithmeticError("column")

    threads.set_threads(3)
    with pytest.raises(ArithmeticError, match="column"):
        threads.over_columns(work, columns=6, values=10_000)


def test_less_than_one_thread_is_refused() -> None:
    with pytest.raises(ValueError, match=r"threads: got 0; need at least 1"):
        threads.set_threads(0)
