"""How a rank leaves: it tells the others, and ends the job unless they all leave with it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mpisgd import obituary

if TYPE_CHECKING:
    from mpi4py import MPI

GRACE_S = 2.0  # for other ranks that fail alike to write their own error
_PATIENCE_S = 2.0  # what a rank that left has sent may still be on its way
_FINALIZE_S = 30  # for MPI_Finalize after a failure on all ranks; Open MPI is slow without a core
_FORWARD_S = 0.5  # for the launcher to pass on what was written: MPI_Abort would cut it off
_LEFT_TAG = 1


class Lifeline:
    """A communicator on which a rank tells the others, once, that it leaves the program."""

    def __init__(self, comm: MPI.Intracomm, rank: int) -> None:
        """Collective.

        Args:
            comm: who is told; it is duplicated.
            rank: this process in COMM_WORLD, by which the others name it.
        """
        self.comm = comm.Dup()
        self._name = np.array([rank], np.int64)
        self._peers = set(range(comm.size)) - {comm.rank}
        self._sent: list[MPI.Request] = []
        self.left: dict[int, int] = {}  # rank in `comm` -> rank in COMM_WORLD
        self.watched = True  # its World is open

    def announce(self) -> None:
        """Tell all peers that this rank leaves. Does not block; a second call does nothing."""
        if not self._sent:
            self._sent = [
                self.comm.Isend(self._name, dest=peer, tag=_LEFT_TAG) for peer in self._peers
            ]

    def listen(self) -> bool:
        """Take what has arrived; whether all peers have left."""
        name = np.empty(1, np.int64)
        for peer in self._peers - self.left.keys():
            if self.comm.Iprobe(source=peer, tag=_LEFT_TAG):
                self.comm.Recv(name, source=peer, tag=_LEFT_TAG)
                self.left[peer] = int(name[0])
        return len(self.left) == len(self._peers)


@dataclass
class Job:
    """How this process ends the job of which it is a rank.

    Attributes:
        rank: this process in COMM_WORLD, named in front of every line.
        abort: ends the job with an exit code (MPI_Abort).
        is_finalized: whether MPI is over.
        any_thread: whether any thread may call MPI.
        lifelines: one for each open World of several ranks, and the first there was.
        obituary: address of the process that names killed ranks, if there is one.
    """

    rank: int
    abort: Callable[[int], Any]
    is_finalized: Callable[[], bool]
    any_thread: bool
    lifelines: list[Lifeline] = field(default_factory=list)
    obituary: str | None = None
    _pid: int = field(default_factory=os.getpid)
    _left_seen_at: float | None = None

    def is_running(self) -> bool:
        """False after MPI_Finalize, and in forked children, which must not touch MPI."""
        return os.getpid() == self._pid and not self.is_finalized()

    def announce(self, *, job_ends: bool) -> None:
        """Tell everyone who listens that this rank leaves."""
        if self.obituary is not None:
            obituary.farewell(self.obituary, self.rank, job_ends=job_ends)
        for lifeline in self.lifelines:
            lifeline.announce()

    def someone_left(self) -> str | None:
        """Why a long wait is hopeless: a rank of every open World has left the program."""
        watched = [lifeline for lifeline in self.lifelines if lifeline.watched]
        for lifeline in watched:
            lifeline.listen()
        # A wait may belong to any World: only a loss that hits all of them is certain.
        if not watched or not all(lifeline.left for lifeline in watched):
            return None
        now = time.monotonic()
        if self._left_seen_at is None:
            self._left_seen_at = now
        if now - self._left_seen_at < _PATIENCE_S:
            return None
        ranks = sorted({rank for lifeline in watched for rank in lifeline.left.values()})
        several = f"ranks {', '.join(map(str, ranks))} have"
        who = f"rank {ranks[0]} has" if len(ranks) == 1 else several
        return f"{who} left the program"

    def write(self, text: str) -> None:
        """Write lines to stderr in one piece, each with the rank in front."""
        lines = "".join(f"[rank {self.rank}] {line}\n" for line in text.splitlines())
        try:
            sys.stderr.write(lines)
            sys.stderr.flush()
        except (AttributeError, OSError, ValueError):
            return  # no stderr: ending the job matters more

    def fail(self, code: int) -> None:
        """End the job with `code` (not 0) once the other ranks had time to fail alike."""
        _flush()
        try:
            self._all_leave()
        finally:
            self.abort(code)

    def follow(self, text: str) -> None:
        """End the job because another rank left: no traceback, the blame stays with that one."""
        self.write(text)
        if self.obituary is not None:
            obituary.farewell(self.obituary, self.rank, job_ends=True)
        time.sleep(_FORWARD_S)
        self.abort(1)

    def leave(self, code: int) -> None:
        """End the job with `code` (not 0), or return if all ranks leave by themselves."""
        _flush()
        try:
            if self._all_leave() and _in_main_thread():
                # MPI_Finalize may hang on messages that nobody takes any more.
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(_FINALIZE_S)
                return
            self.write(f"left the program with code {code}: ending the job")
        except BaseException:
            self.abort(code)
            raise
        self.abort(code)

    def _all_leave(self) -> bool:
        """Announce that this rank leaves; whether all others do so within the grace period."""
        if not self.any_thread and not _in_main_thread():
            return False
        self.announce(job_ends=True)
        until = time.monotonic() + GRACE_S
        while not all([lifeline.listen() for lifeline in self.lifelines]):
            if time.monotonic() > until:
                return False
            time.sleep(1e-3)
        return True


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue  # closed, or not there: nothing to save
