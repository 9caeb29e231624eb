"""Waiting for MPI requests without taking the cores away from ranks that compute.

A wait first spins politely (`Test` and sched_yield), then sleeps between tests; it says so when it
takes long, and ends the run when it takes too long.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SPIN_S = 500e-6  # most exchanges end within this: a sleep would cost more than it gives
_SLEEP_FIRST_S, _SLEEP_LAST_S = 20e-6, 200e-6
_LOOK_AROUND_S = 1.0  # how often a long wait calls the watchers


class StallError(RuntimeError):
    """A wait took longer than MPISGD_STALL_ABORT seconds, or can never end."""


class PeerLeft(StallError):
    """The wait can never end: a rank has left the program. The blame is not this rank's."""


@dataclass(frozen=True)
class StallLimits:
    """Seconds after which a wait is reported, and after which it is given up."""

    warn_s: float = 30.0
    abort_s: float = 600.0


@dataclass
class _Process:
    """What this process knows when it waits; `World` fills it in."""

    rank: int = 0
    limits: StallLimits = StallLimits()


_process = _Process()

_abandoned: list[Any] = []

# Called about once a second during a long wait; one that returns a reason ends the wait.
watchers: list[Callable[[], str | None]] = []


def stall_limits(environ: Mapping[str, str] = os.environ) -> StallLimits:
    """The limits in MPISGD_STALL_WARN and MPISGD_STALL_ABORT (seconds, > 0). Raises ValueError."""
    defaults = StallLimits()
    return StallLimits(
        _seconds(environ, "MPISGD_STALL_WARN", defaults.warn_s),
        _seconds(environ, "MPISGD_STALL_ABORT", defaults.abort_s),
    )


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not seconds > 0:  # also NaN
        raise ValueError(
            f"{name}: {text!r} is not a number of seconds above 0; give one, or unset it for the "
            f"default of {default:g}"
        )
    return seconds


def identify(rank: int, limits: StallLimits) -> None:
    """Set the rank that stall lines name and the limits that waits keep."""
    _process.rank, _process.limits = rank, limits


def abandon(requests: Iterable[Any]) -> None:
    """Give up requests that may never complete.

    MPI may still write to their buffers, so these live as long as the process: a request holds its
    buffer.
    """
    _abandoned.extend(requests)


def wait_all(
    requests: Sequence[Any],
    *,
    what: Callable[[], str] | str,
    names: Sequence[str] = (),
) -> float:
    """Wait until all MPI requests are complete.

    Args:
        requests: mpi4py requests; complete and null ones are allowed, so is an empty sequence.
        what: what is being waited for, named in stall lines (a callable is only called for one).
        names: one name a request for stall lines; without them requests are named by position.

    Returns:
        Seconds waited.

    Raises:
        StallError: after MPISGD_STALL_ABORT seconds (600).
    """
    started = time.perf_counter()
    done = _test_function(requests)
    try:
        while not done():
            if time.perf_counter() - started > _SPIN_S:
                _sleep_until(done, started, requests, what, names)
                break
            os.sched_yield()
    except BaseException:
        abandon(requests)
        raise
    return time.perf_counter() - started


def _test_function(requests: Sequence[Any]) -> Callable[[], bool]:
    """A function that drives MPI's progress and says whether all requests are complete."""
    if not requests:
        return lambda: True
    if len(requests) == 1:
        return requests[0].Test  # type: ignore[no-any-return]
    requests = list(requests)
    test_all = type(requests[0]).Testall
    return lambda: test_all(requests)


def _sleep_until(
    done: Callable[[], bool],
    started: float,
    requests: Sequence[Any],
    what: Callable[[], str] | str,
    names: Sequence[str],
) -> None:
    """Test and sleep, ever longer, until `done()`; report and end a stall."""
    limits = _process.limits
    warn_at, abort_at = started + limits.warn_s, started + limits.abort_s
    look_at = started + min(_LOOK_AROUND_S, limits.warn_s)
    pause = _SLEEP_FIRST_S
    while not done():
        time.sleep(pause)
        pause = min(pause * 1.25, _SLEEP_LAST_S)
        now = time.perf_counter()
        if now < look_at:
            continue
        look_at = min(now + _LOOK_AROUND_S, max(warn_at, now), abort_at)
        if now >= abort_at:
            raise StallError(
                _stall_text(now - started, requests, what, names)
                + "; gave up after MPISGD_STALL_ABORT seconds"
            )
        if now >= warn_at:
            warn_at = float("inf")
            sys.stderr.write(f"mpisgd: {_stall_text(now - started, requests, what, names)}\n")
            sys.stderr.flush()
        for reason in filter(None, [watcher() for watcher in watchers]):
            raise PeerLeft(f"{_stall_text(now - started, requests, what, names)}; {reason}")


def _stall_text(
    waited_s: float, requests: Sequence[Any], what: Callable[[], str] | str, names: Sequence[str]
) -> str:
    subject = what() if callable(what) else what
    return (
        f"rank {_process.rank} has waited {waited_s:.0f} s for {subject}; "
        f"open: {_open_requests(requests, names)}"
    )


def _open_requests(requests: Sequence[Any], names: Sequence[str]) -> str:
    """Which requests are not complete, by name, or by position."""
    still = [i for i, request in enumerate(requests) if not request.Test()]
    if names:
        return ", ".join(names[i] for i in still) or "none"
    listed = ", ".join(str(i) for i in still)
    return f"{len(still)} of {len(requests)} requests ({listed})" if len(requests) > 1 else "1 of 1"
