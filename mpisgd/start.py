"""Starting MPI: checked, in time, and so that a rank that fails from then on ends the job."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from mpisgd import failures, launch, waiting
from mpisgd.leaving import Lifeline

_POLL_S = 0.2


@cache
def start_mpi() -> Any:
    """Import mpi4py and start MPI, unless that is done. Returns the module mpi4py.MPI.

    Raises:
        LaunchError: the launcher, the library and the installed wheels do not fit together.
    """
    launch.check_wheels(launch.wheels_in(Path(sys.prefix)))
    import mpi4py

    if "mpi4py.MPI" not in sys.modules:
        # With the wrong launcher MPI_Init aborts or leaves every rank alone: look first.
        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # mpi4py loads the MPI library on import
        raise launch.LaunchError(launch.missing_library(error)) from error

    version = MPI.Get_library_version()
    if not MPI.Is_initialized():
        launch.check_before_init(os.environ, version)
        with _watched():
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
    launch.check_size(os.environ, MPI.COMM_WORLD.size, version)
    return MPI


def join() -> Lifeline | None:
    """Start MPI, and have unhandled errors of this process end the job. Collective.

    A command calls it before it imports what takes long or may fail (torch), so that the others
    do not wait for a rank that will never come.

    Returns:
        What `failures.release` takes when a World has taken over.

    Raises:
        LaunchError: see `start_mpi`.
    """
    mpi = start_mpi()
    return failures.install(
        mpi.COMM_WORLD,
        rank=mpi.COMM_WORLD.rank,
        abort=mpi.COMM_WORLD.Abort,
        is_finalized=mpi.Is_finalized,
        any_thread=mpi.Query_thread() == mpi.THREAD_MULTIPLE,
    )


@contextmanager
def _watched() -> Iterator[None]:
    """MPI_Init waits for all processes of the job: say so, and end, if one never comes.

    MPI_Init lets no other thread of Python run, so a forked child keeps the time.
    """
    limits = waiting.stall_limits()
    if not hasattr(os, "fork"):
        yield
        return
    parent = os.getpid()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads: the child takes no lock that one of them might hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        _keep_time(parent, limits)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _keep_time(parent: int, limits: waiting.StallLimits) -> NoReturn:
    """In the child: warn, then end the parent. System calls only: it shares locks with nobody."""
    rank = launch.launched_rank(os.environ)
    text = (
        f"mpisgd: rank {rank} has waited %.0f s for MPI to start; another process of this job may"
    )
    text += " have failed before it joined (its own output says why)%s\n"
    started, warned = time.monotonic(), False
    while os.getppid() == parent:
        waited = time.monotonic() - started
        if waited >= limits.abort_s:
            os.write(2, (text % (limits.abort_s, "; gave up")).encode())
            os.kill(parent, signal.SIGKILL)
            break
        if waited >= limits.warn_s and not warned:
            os.write(2, (text % (limits.warn_s, "")).encode())
            warned = True
        time.sleep(_POLL_S)
    os._exit(0)
