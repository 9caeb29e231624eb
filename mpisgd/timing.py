"""Seconds by phase, and a profile line: standard library only, anyone may import it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

# The phases of one training step, in the order in which they are reported.
PHASES = ("data", "forward", "backward", "encode", "transfer", "decode", "optimizer", "wait")


class Clock:
    """Adds up wall-clock seconds by phase. Phases do not nest: each second is booked once."""

    def __init__(self) -> None:
        """All phases start at zero."""
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Book the time spent in the block under `name`, also when it raises."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def add(self, name: str, seconds: float) -> None:
        """Book `seconds` under `name`."""
        self.seconds[name] += seconds

    def snapshot(self) -> dict[str, float]:
        """A copy of the totals so far."""
        return dict(self.seconds)

    def since(self, earlier: dict[str, float]) -> dict[str, float]:
        """Seconds by phase since `earlier`, a snapshot."""
        return {name: total - earlier[name] for name, total in self.seconds.items()}
