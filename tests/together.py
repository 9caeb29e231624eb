"""MPI tests pass or fail on all ranks together.

The pytest plugin that tests/conftest.py registers for --with-mpi. A rank whose test failed tells
the others before it goes on, so the barriers of two tests never meet. If the others do not answer
within GRACE_S (they sit in a call that waits for the failed rank), the failed rank ends the job.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

GRACE_S = 6.0
# One fixed-size message a rank and phase: the outcome, then text.
MESSAGE_BYTES = 4096
FAILED = pytest.StashKey[bool]()
COUNT_FILE = "MPISGD_TEST_COUNT"
LAUNCHER_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


class HeldReport:
    """What a rank other than 0 would print: dropped, except when a test ran out of time."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._open = False
        self.encoding = "utf-8"

    def write(self, text: str) -> int:
        self._open = self._open or "+ Timeout +" in text
        if self._open:
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return False


class Together:
    """Agrees on the list of tests and on every verdict, and counts the MPI tests that ran."""

    def __init__(self, config: pytest.Config) -> None:
        from mpi4py import MPI

        self.comm = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.rank, self.comm.size
        # A copy of stderr that no capturing redirects.
        self.stderr = os.fdopen(os.dup(2), "w")
        self.executed: set[str] = set()
        self.failed: set[str] = set()
        self.skipped: set[str] = set()
        self.collect_error = ""
        check_launcher(self.size)
        if self.rank > 0:
            plugins = config.pluginmanager
            plugins.unregister(name="terminalreporter")
            reporter = pytest.TerminalReporter(config, HeldReport(self.stderr))  # type: ignore[arg-type]
            plugins.register(reporter, "terminalreporter")

    # -- bounded waiting

    def wait(self, request: Any, *, seconds: float, otherwise: str) -> None:
        """Wait for an MPI request without taking the core; end the job after `seconds`."""
        deadline = time.monotonic() + seconds
        while not request.Test():
            if time.monotonic() > deadline:
                self.abort(otherwise)
            time.sleep(0.0005)

    def abort(self, why: str) -> None:
        """End all ranks with exit code 1, saying why on the stderr of the job."""
        self.stderr.write(f"\n[rank {self.rank}] {why}\n")
        self.stderr.flush()
        sys.stdout.flush()
        self.comm.Abort(1)

    def exchange(self, outcome: str, text: str, *, seconds: float, otherwise: str) -> list[Any]:
        """Every rank's (outcome, text). Collective; long texts keep their end."""
        head = f"{outcome}\n".encode()
        body = text.encode(errors="replace")[-(MESSAGE_BYTES - len(head)) :]
        mine = np.zeros(MESSAGE_BYTES, np.uint8)
        mine[: len(head) + len(body)] = np.frombuffer(head + body, np.uint8)
        everyone = np.empty((self.size, MESSAGE_BYTES), np.uint8)
        self.wait(self.comm.Iallgather(mine, everyone), seconds=seconds, otherwise=otherwise)
        lines = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in everyone]
        return [tuple(line.partition("\n")[::2]) for line in lines]

    @pytest.hookimpl
    def pytest_internalerror(self, excrepr: Any) -> None:
        self.abort(f"pytest itself failed:\n{excrepr}")

    # -- the list of tests

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.collect_error:
            self.collect_error = f"{report.nodeid}: {report.longreprtext}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        names = "\n".join(item.nodeid for item in session.items)
        digest = hashlib.sha256(names.encode()).hexdigest()
        rows = self.exchange(
            f"{len(session.items)} tests ({digest[:8]})",
            self.collect_error,
            seconds=60,
            otherwise="other ranks have not finished collecting tests",
        )
        if len(set(rows)) > 1:
            lines = [f"rank {r} collected {what} {error}" for r, (what, error) in enumerate(rows)]
            raise session.Interrupted("the ranks' lists of tests differ:\n" + "\n".join(lines))
        return (yield)

    # -- verdicts

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if item.get_closest_marker("mpi") is None:
            return report
        text = report.longreprtext if report.failed else ""
        rows = self.exchange(
            report.outcome,
            text,
            seconds=GRACE_S if report.failed else float("inf"),
            otherwise=f"{item.nodeid} failed on this rank, and after {GRACE_S:.0f} s other ranks"
            f" are still in it. This rank's report:\n{text}",
        )
        merge_verdicts(report, rows, rank=self.rank)
        if report.failed:
            item.stash[FAILED] = True
        self.count(report)
        return report

    def count(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.skipped:
            self.skipped.add(report.nodeid)
        if report.when == "call" and not report.skipped:
            self.executed.add(report.nodeid)

    @pytest.hookimpl
    def pytest_sessionfinish(self) -> None:
        path = os.environ.get(COUNT_FILE)
        if path and self.rank == 0:
            with open(path, "w") as file:
                file.write(
                    f"{self.size} {len(self.executed)} {len(self.skipped)} {len(self.failed)}\n"
                )


def check_launcher(size: int) -> None:
    """Raise UsageError under another MPI's launcher: every rank would be alone, and green."""
    for name in LAUNCHER_SIZES:
        if name in os.environ and int(os.environ[name]) != size:
            raise pytest.UsageError(
                f"{name} is {os.environ[name]}, but MPI sees {size} ranks: mpiexec and mpi4py"
                " belong to different MPI libraries"
            )


def merge_verdicts(report: pytest.TestReport, rows: list[Any], *, rank: int) -> None:
    """Make `report` the verdict of all ranks, whose (outcome, text) are `rows`."""
    failing = [r for r, (outcome, _) in enumerate(rows) if outcome == "failed"]
    if failing:
        others = [(f"rank {r}", rows[r][1]) for r in failing if r != rank]
        summary = f"failed on rank(s) {', '.join(map(str, failing))} of {len(rows)}"
        if rank in failing:
            report.sections.extend(others)
            report.sections.append(("ranks", summary))
            return
        text = "\n".join([summary, *(f"-- {name}:\n{told}" for name, told in others)])
    elif len({outcome for outcome, _ in rows}) > 1:
        told = ", ".join(f"rank {r}: {outcome}" for r, (outcome, _) in enumerate(rows))
        text = f"the ranks disagree about this test ({told}): all must skip it, or none"
    else:
        return
    report.outcome = "failed"
    report.longrepr = text
    if hasattr(report, "wasxfail"):
        del report.wasxfail
