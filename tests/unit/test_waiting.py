from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from mpisgd import waiting
from mpisgd.waiting import StallError, StallLimits, stall_limits, wait_all


class Request:
    """What wait_all needs of an MPI request: complete after `tests` tests."""

    def __init__(self, tests: int) -> None:
        self.left = tests

    def Test(self) -> bool:
        self.left -= 1
        return self.left <= 0

    @classmethod
    def Testall(cls, requests: list[Request]) -> bool:
        return all([request.Test() for request in requests])


NEVER = 10**9


@pytest.fixture
def process() -> Iterator[None]:
    before = (waiting._process.rank, waiting._process.limits)
    yield
    waiting.identify(*before)


def test_nothing_to_wait_for() -> None:
    assert wait_all([], what="nothing") < 0.1


@pytest.mark.parametrize("tests", [1, 2, 50, 5000])
@pytest.mark.parametrize("n", [1, 3])
def test_waits_until_all_are_complete(tests: int, n: int) -> None:
    requests = [Request(tests + i) for i in range(n)]
    wait_all(requests, what="things")
    assert all(request.left <= 0 for request in requests)


def test_returns_the_seconds() -> None:
    done = threading.Event()

    class Timed(Request):
        def Test(self) -> bool:
            return done.is_set()

    threading.Timer(0.05, done.set).start()
    started = time.perf_counter()
    seconds = wait_all([Timed(0)], what="a timer")
    assert 0.03 < seconds <= time.perf_counter() - started


@pytest.mark.usefixtures("process")
def test_a_stall_is_reported_once_and_then_ended(capsys: pytest.CaptureFixture[str]) -> None:
    waiting.identify(2, StallLimits(warn_s=0.05, abort_s=0.3))
    requests = [Request(1), Request(NEVER), Request(NEVER)]
    with pytest.raises(StallError, match=r"rank 2 has waited 0 s for bucket 4; .*STALL_ABORT"):
        wait_all(requests, what=lambda: "bucket 4", names=("rank 0", "rank 1", "rank 3"))
    assert capsys.readouterr().err == (
        "mpisgd: rank 2 has waited 0 s for bucket 4; open: rank 1, rank 3\n"
    )


@pytest.mark.usefixtures("process")
def test_open_requests_without_names(capsys: pytest.CaptureFixture[str]) -> None:
    waiting.identify(0, StallLimits(warn_s=0.02, abort_s=0.05))
    with pytest.raises(StallError, match=r"open: 1 of 2 requests \(1\); gave up"):
        wait_all([Request(1), Request(NEVER)], what="x")
    with pytest.raises(StallError, match="open: 1 of 1; gave up"):
        wait_all([Request(NEVER)], what="x")
    assert capsys.readouterr().err.count("\n") == 2


@pytest.mark.usefixtures("process")
def test_a_watcher_ends_a_hopeless_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting.identify(1, StallLimits(warn_s=0.02, abort_s=60))
    monkeypatch.setattr(waiting, "watchers", [lambda: None, lambda: "rank 0 has left"])
    with pytest.raises(StallError, match=r"rank 1 has waited 0 s for x; .*; rank 0 has left"):
        wait_all([Request(NEVER)], what="x")


def test_limits() -> None:
    assert stall_limits({}) == StallLimits(30, 600)
    assert stall_limits({"MPISGD_STALL_WARN": " 2.5", "MPISGD_STALL_ABORT": ""}) == (
        StallLimits(2.5, 600)
    )
    assert stall_limits({"MPISGD_STALL_ABORT": "inf"}).abort_s == float("inf")


@pytest.mark.parametrize("name", ["MPISGD_STALL_WARN", "MPISGD_STALL_ABORT"])
@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "1s"])
def test_bad_limits(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: '{text}' is not a number of seconds above 0"):
        stall_limits({name: text})
