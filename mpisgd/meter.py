"""What one epoch was like over all ranks: loss, error, seconds by phase, bytes.

Everything is added up locally and summed over ranks once an epoch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from mpisgd.tasks.base import Outcome, no_counts
from mpisgd.timing import PHASES

if TYPE_CHECKING:
    from mpisgd.sync.base import AbstractLearner
    from mpisgd.world import World


@dataclass(frozen=True)
class EpochFigures:
    """An epoch over all ranks. `_per_rank` values are means over ranks."""

    samples: int
    loss: float  # mean per sample
    error: float  # fraction of 1
    seconds: float  # of this rank, training only
    steps: int  # minibatches, skipped ones included
    skipped_steps: int
    wire_bytes_per_rank: float
    messages_per_rank: float
    control_bytes: float
    phases_by_rank: np.ndarray  # (ranks, phases) seconds, float64

    @property
    def samples_per_s(self) -> float:
        """Global samples a second."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase, the mean over ranks."""
        means = self.phases_by_rank.mean(axis=0)
        return {name: float(mean) for name, mean in zip(PHASES, means, strict=True)}


class EpochMeter:
    """Adds up one epoch at a time on one rank; nothing is sent or waited for until `finish`."""

    def __init__(self, learner: AbstractLearner, world: World) -> None:
        """Start the first epoch now."""
        self._learner, self._world = learner, world
        self._control_before = self._control()
        self.start()

    def start(self) -> None:
        """Start an epoch: all sums are zero, the clock runs."""
        self._sums = no_counts(self._world.device)
        self._samples = 0
        self._steps = 0
        self._skipped_before = self._learner.skipped_steps
        self._traffic_before = self._traffic()
        self._phases_before = self._learner.clock.snapshot()
        self._started = time.perf_counter()

    def _traffic(self) -> np.ndarray:
        """Bytes and messages of this rank's gradients so far."""
        return np.array([self._learner.wire.bytes, self._learner.wire.messages], np.int64)

    def _control(self) -> int:
        """Bytes of this rank's counts, checks, sums and evaluations so far."""
        return self._learner.wire.control_bytes + self._world.control_bytes

    def add(self, outcome: Outcome | None, samples: int, *, counts: bool) -> None:
        """Add this rank's part of a minibatch: `outcome` over `samples`, None if there were none.

        `counts` is False where another rank counts the same samples.
        """
        self._steps += 1
        if counts and outcome is not None:
            self._sums.loss.add_(outcome.loss.detach().double(), alpha=samples)
            self._sums.errors.add_(outcome.errors)
            self._samples += samples

    def finish(self) -> EpochFigures:
        """The epoch's figures. Collective; does not start the next one."""
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        seconds = time.perf_counter() - self._started
        # What the end of the epoch before and its evaluation sent is booked here.
        control = self._control() - self._control_before
        self._control_before += control
        counts = np.array([self._samples, int(self._sums.errors), control], np.int64)
        traffic = self._traffic() - self._traffic_before
        samples, errors, *totals = (
            int(total) for total in self._world.sum(np.concatenate([counts, traffic]))
        )
        # Row r is rank r's: a sum with zeros elsewhere tells every rank all of them.
        size = self._world.size
        table = np.zeros((size, len(PHASES) + 1), np.float64)
        phases = self._learner.clock.since(self._phases_before)
        table[self._world.rank] = [*(phases[name] for name in PHASES), float(self._sums.loss)]
        table = self._world.sum(table)
        return EpochFigures(
            samples=samples,
            loss=float(table[:, -1].sum()) / max(1, samples),
            error=errors / max(1, samples),
            seconds=seconds,
            steps=self._steps,
            skipped_steps=self._learner.skipped_steps - self._skipped_before,
            wire_bytes_per_rank=_mean(totals[1], size),
            messages_per_rank=_mean(totals[2], size),
            control_bytes=_mean(totals[0], size),
            phases_by_rank=table[:, :-1],
        )


def _mean(total: int, size: int) -> float:
    """An int where it is exact."""
    return total // size if total % size == 0 else total / size
