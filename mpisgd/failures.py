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
that it leaves and waits two seconds for them to do the same, so that an error that all ranks raise
is written by all of them; then it calls MPI_Abort. When all leave by sys.exit there is nothing to
abort, and the program ends as it would without MPI.

What remains: a plain `raise SystemExit(code)` outside `with World()` looks like an ordinary exit,
because CPython shows it to no hook. Case 3 ends the job within seconds when the others wait in
this package (with code 1); when they wait in a blocking MPI call of the caller's own, nothing
does. Use sys.exit. A program that replaces sys.excepthook later loses case 1 likewise.
"""

from __future__ import annotations

import atexit
import builtins
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from mpisgd import waiting
from mpisgd.leaving import Job, Lifeline

if TYPE_CHECKING:
    from mpi4py import MPI

_job: Job | None = None  # made once, with the first World of several ranks
_previous_hook: Callable[..., Any] = sys.__excepthook__
_previous_thread_hook: Callable[..., Any] = threading.__excepthook__


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
    lifeline = Lifeline(comm, rank)
    if _job is None:
        _job = Job(rank, abort, is_finalized, any_thread)
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
    global _previous_hook, _previous_thread_hook
    _previous_hook, sys.excepthook = sys.excepthook, _on_exception
    _previous_thread_hook, threading.excepthook = threading.excepthook, _on_thread_exception
    original, main = sys.exit, vars(sys.modules["__main__"])
    for name in [name for name, value in main.items() if value is original]:
        main[name] = _exit  # `from sys import exit` at the top of the program
    sys.exit = _exit
    vars(builtins).update(exit=_exit, quit=_exit)
    waiting.watchers.append(_someone_left)
    atexit.register(_on_exit)  # before mpi4py's own, which runs MPI_Finalize


def _running_job() -> Job | None:
    return _job if _job is not None and _job.is_running() else None


def _someone_left() -> str | None:
    job = _running_job()
    return job.someone_left() if job else None


def _on_exit() -> None:
    """Ordinary end of the program: say so, for those who may still wait for this rank."""
    job = _running_job()
    if job:
        job.announce(job_ends=False)


# ---- exceptions


def _on_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """sys.excepthook: report the error and end the job."""
    job = _running_job()
    if job is None:
        _previous_hook(kind, error, trace)
        return
    if isinstance(error, waiting.PeerLeft):
        job.follow(f"{error}: ending the job")
    if _previous_hook is sys.__excepthook__:
        job.write("".join(traceback.format_exception(kind, error, trace)))
    else:  # the program has its own way to show errors
        _previous_hook(kind, error, trace)
        job.write(f"{kind.__name__} ends the job")
    job.fail(130 if issubclass(kind, KeyboardInterrupt) else 1)


def _on_thread_exception(args: threading.ExceptHookArgs) -> None:
    """threading.excepthook: the same for an error in another thread."""
    job = _running_job()
    if job is None:
        _previous_thread_hook(args)
    elif isinstance(args.exc_value, SystemExit):
        _on_thread_exit(job, args)
    else:
        _report_thread(job, args)
        job.fail(1)


def _on_thread_exit(job: Job, args: threading.ExceptHookArgs) -> None:
    assert isinstance(args.exc_value, SystemExit)
    status = args.exc_value.code
    code = exit_code(status)
    if code:
        job.write(f"thread {_name(args)} called sys.exit({status!r})")
        job.fail(code)


def _report_thread(job: Job, args: threading.ExceptHookArgs) -> None:
    if _previous_thread_hook is threading.__excepthook__:
        lines = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
        job.write(f"exception in thread {_name(args)}:\n{''.join(lines)}")
    else:
        _previous_thread_hook(args)
        job.write(f"{args.exc_type.__name__} in thread {_name(args)} ends the job")


def _name(args: threading.ExceptHookArgs) -> str:
    return args.thread.name if args.thread is not None else "unknown"


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


def exit_code(status: Any) -> int:
    """The process's exit code for a SystemExit's code, as CPython and the system have it."""
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else 1


def _leave(status: Any) -> Any:
    """End the job for an exit that nobody caught; return what CPython shall exit with."""
    job, code = _running_job(), exit_code(status)
    if job is None or not code:
        return status
    if not isinstance(status, int):
        job.write(str(status))
    job.leave(code)
    return code
