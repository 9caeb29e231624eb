"""Failing together: an error that nobody handles on one rank ends every rank, with its name.

MPI has no notion of a rank that gave up: the others wait for it for ever. So, with more than one
rank, `install` (called by `World`) makes these end the whole job:

1. an exception that nobody catches, in the main thread or another (code 1; Ctrl-C: 130);
2. sys.exit(code), exit() and quit() with a code other than 0 and None that nobody catches, also
   in a thread;
3. a rank that leaves the program, however, while another waits for it in this package.

A rank that is killed ends the job through MPI's launcher; `mpisgd.obituary` names it where the
launcher does not.

The traceback is written first, every line with the rank in front. Then the rank tells the others
that it leaves and waits up to `GRACE_S` for them to do the same, so that an error that all ranks
raise is written by all of them; then it calls MPI_Abort. When all leave by sys.exit there is
nothing to abort, and the program ends as it would without MPI.

What remains: a plain `raise SystemExit(code)` outside `with World()` looks like an ordinary exit,
because CPython shows it to no hook. Case 3 ends the job within seconds when the others wait in
this package (with code 1); when they wait in a blocking MPI call of the caller's own, nothing
does. Use sys.exit. A program that replaces sys.excepthook later loses case 1 likewise.
"""

from __future__ import annotations

import atexit
import builtins
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from mpisgd import obituary, waiting

if TYPE_CHECKING:
    from mpi4py import MPI

GRACE_S = 1.0  # for other ranks that fail alike to write their own error
_PATIENCE_S = 2.0  # what a rank that left has sent may still be on its way
_FINALIZE_S = 5  # for MPI_Finalize after a failure on all ranks
_LEFT_TAG = 1


class Lifeline:
    """A communicator on which a rank tells the others, once, that it leaves the program."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        """`comm` is duplicated; collective."""
        self.comm = comm.Dup()
        self._peers = set(range(comm.size)) - {comm.rank}
        self._sent: list[MPI.Request] = []
        self.left: set[int] = set()
        self.watched = True

    def announce(self) -> None:
        """Tell all peers that this rank leaves. Does not block; a second call does nothing."""
        if not self._sent:
            self._sent = [self.comm.Isend(b"", dest=peer, tag=_LEFT_TAG) for peer in self._peers]

    def listen(self) -> bool:
        """Take what has arrived; whether all peers have left."""
        for peer in self._peers - self.left:
            if self.comm.Iprobe(source=peer, tag=_LEFT_TAG):
                self.comm.Recv(bytearray(0), source=peer, tag=_LEFT_TAG)
                self.left.add(peer)
        return self.left == self._peers


@dataclass
class _Job:
    """How this process ends its job; made once, when the first World of several ranks is."""

    rank: int
    abort: Callable[[int], Any]
    is_finalized: Callable[[], bool]
    any_thread: bool  # MPI may be called from any thread
    lifelines: list[Lifeline] = field(default_factory=list)
    pid: int = field(default_factory=os.getpid)
    left_seen_at: float | None = None
    obituary: str | None = None  # address of the process that names killed ranks

    def is_running(self) -> bool:
        """False after MPI_Finalize, and in forked children, which must not touch MPI."""
        return os.getpid() == self.pid and not self.is_finalized()

    def announce(self, *, job_ends: bool) -> None:
        """Tell everyone who listens that this rank leaves."""
        if self.obituary is not None:
            obituary.farewell(self.obituary, self.rank, job_ends=job_ends)
        for lifeline in self.lifelines:
            lifeline.announce()


_job: _Job | None = None


def install(
    comm: MPI.Intracomm,
    *,
    rank: int,
    abort: Callable[[int], Any],
    is_finalized: Callable[[], bool],
    any_thread: bool,
) -> Lifeline | None:
    """Make unhandled errors end the job, and join `comm` to those that are told. Collective.

    Args:
        comm: the communicator of a new World; with one rank nothing is done.
        rank: this process in COMM_WORLD, named in front of every line.
        abort: ends the job with an exit code.
        is_finalized: whether MPI is over.
        any_thread: whether any thread may call MPI.

    Returns:
        What `release` takes when the World is closed.
    """
    global _job
    if comm.size == 1:
        return None
    lifeline = Lifeline(comm)
    if _job is None:
        _job = _Job(rank, abort, is_finalized, any_thread)
        _set_hooks()
    _job.lifelines.append(lifeline)
    return lifeline


def release(lifeline: Lifeline | None) -> None:
    """The World is closed: its ranks may leave at will. Collective.

    The first lifeline of a process is kept: it still lets ranks fail together.
    """
    if lifeline is None or _job is None:
        return
    lifeline.watched = False
    if lifeline is not _job.lifelines[0]:
        _job.lifelines.remove(lifeline)
        lifeline.comm.Free()


def obituary_address() -> str | None:
    """Address of the process that names this rank if it is killed; None if there is none."""
    return None if _job is None else _job.obituary


def use_obituary(address: str) -> None:
    """Say farewell at `address` when this rank leaves."""
    if _job is not None:
        _job.obituary = address


def _set_hooks() -> None:
    global _previous_excepthook, _previous_thread_hook
    _previous_excepthook, sys.excepthook = sys.excepthook, _on_exception
    _previous_thread_hook, threading.excepthook = threading.excepthook, _on_thread_exception
    original, main = sys.exit, vars(sys.modules["__main__"])
    for name in [name for name, value in main.items() if value is original]:
        main[name] = _exit  # `from sys import exit` at the top of the program
    sys.exit = _exit
    vars(builtins).update(exit=_exit, quit=_exit)
    waiting.watchers.append(_someone_left)
    atexit.register(_on_exit)  # before mpi4py's own, which runs MPI_Finalize


_previous_excepthook: Callable[..., Any] = sys.__excepthook__
_previous_thread_hook: Callable[..., Any] = threading.excepthook


# ---- leaving


def _on_exit() -> None:
    """Ordinary end of the program: say so, for those who may still wait for this rank."""
    if _job is not None and _job.is_running():
        _job.announce(job_ends=False)


def _someone_left() -> str | None:
    """Why a long wait is hopeless: a rank of every open World has left the program."""
    if _job is None or not _job.is_running():
        return None
    watched = [lifeline for lifeline in _job.lifelines if lifeline.watched]
    for lifeline in watched:
        lifeline.listen()
    # A wait may belong to any World: only a loss that hits all of them is certain.
    if not watched or not all(lifeline.left for lifeline in watched):
        return None
    now = time.monotonic()
    if _job.left_seen_at is None:
        _job.left_seen_at = now
    if now - _job.left_seen_at < _PATIENCE_S:
        return None
    ranks = ", ".join(str(rank) for rank in sorted(watched[0].left))
    return f"rank {ranks} has left the program"


def _everyone_leaves(job: _Job) -> bool:
    """Announce that this rank leaves; whether all others do so too within the grace period."""
    job.announce(job_ends=True)
    until = time.monotonic() + GRACE_S
    while not all([lifeline.listen() for lifeline in job.lifelines]):
        if time.monotonic() > until:
            return False
        time.sleep(1e-3)
    return True


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue  # closed, or not there: nothing to save


def _write(job: _Job, text: str) -> None:
    """Write lines to stderr in one piece, each with the rank in front."""
    prefix = f"[rank {job.rank}] "
    lines = "".join(f"{prefix}{line}\n" for line in text.splitlines())
    try:
        sys.stderr.write(lines)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return  # no stderr: ending the job matters more


def _end(job: _Job, code: int, *, note: str = "") -> None:
    """End the job with `code`; return only if all ranks leave by themselves and `note` is given.

    Args:
        job: this process's.
        code: exit code, not 0.
        note: written before an abort, if not all ranks leave by themselves.
    """
    _flush()
    try:
        together = (job.any_thread or _in_main_thread()) and _everyone_leaves(job)
        if together and note and _in_main_thread():
            # MPI_Finalize may hang on messages that nobody takes any more.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_FINALIZE_S)
            return
        if note:
            _write(job, note)
    except BaseException:
        job.abort(code)
        raise
    job.abort(code)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


# ---- exceptions


def _on_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """sys.excepthook: report the error and end the job."""
    job = _job
    if job is None or not job.is_running():
        _previous_excepthook(kind, error, trace)
        return
    if _previous_excepthook is sys.__excepthook__:
        _write(job, "".join(traceback.format_exception(kind, error, trace)))
    else:  # the program has its own way to show errors
        _previous_excepthook(kind, error, trace)
        _write(job, f"{kind.__name__} ends the job")
    _end(job, 130 if issubclass(kind, KeyboardInterrupt) else 1)


def _on_thread_exception(args: threading.ExceptHookArgs) -> None:
    """threading.excepthook: the same for an error in another thread."""
    job = _job
    if job is None or not job.is_running():
        _previous_thread_hook(args)
        return
    name = args.thread.name if args.thread is not None else "unknown"
    if isinstance(args.exc_value, SystemExit):
        code = _exit_code(args.exc_value.code)
        if code:
            _write(job, f"thread {name} called sys.exit({args.exc_value.code!r})")
            _end(job, code)
        return
    if _previous_thread_hook is threading.__excepthook__:
        text = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
        _write(job, f"exception in thread {name}:\n{''.join(text)}")
    else:
        _previous_thread_hook(args)
        _write(job, f"{args.exc_type.__name__} in thread {name} ends the job")
    _end(job, 1)


# ---- sys.exit


# SystemExit's own slot for the code, which JobExit covers with a property.
_CODE: Any = vars(SystemExit)["code"]


class JobExit(SystemExit):
    """What sys.exit raises under `install`: a SystemExit that notices when nobody catches it.

    At top level CPython reads `.code` of the exception to learn the exit code, with no Python
    frame above it; every other reader has one. That read ends the job.
    """

    @property
    def code(self) -> Any:
        """The exit code, as for any SystemExit."""
        status = _CODE.__get__(self)
        try:
            sys._getframe(1)
        except ValueError:
            return _leave(status)
        return status

    @code.setter
    def code(self, status: Any) -> None:
        _CODE.__set__(self, status)


def _exit(status: Any = None, /) -> NoReturn:
    """Exit the program by raising SystemExit(status); a failure ends the whole job."""
    raise JobExit(status)


def _exit_code(status: Any) -> int:
    """The process's exit code for a SystemExit's code, as CPython has it."""
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else 1


def _leave(status: Any) -> Any:
    """End the job for an exit that nobody caught; return what CPython shall exit with."""
    job, code = _job, _exit_code(status)
    if job is None or not job.is_running() or not code:
        return status
    if not isinstance(status, int):
        _write(job, str(status))
    _end(job, code, note=f"left the program with code {code}: ending the job")
    return code
