"""The table of `--profile`: where the time of a step went."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpisgd.timing import PHASES


def phase_table(seconds: Sequence[np.ndarray], steps: Sequence[int]) -> str:
    """Milliseconds a step by phase: medians over epochs of the ranks' mean and of their largest.

    The first epoch is left out if there are others: it holds what happens only once.

    Args:
        seconds: for each epoch (ranks, phases) seconds.
        steps: for each epoch its number of steps.
    """
    chosen = list(zip(seconds, steps, strict=True))
    chosen = chosen[1:] if len(chosen) > 1 else chosen
    per_step = np.stack([1000.0 * table / max(1, count) for table, count in chosen])
    means = np.median(per_step.mean(axis=1), axis=0)
    largest = np.median(per_step.max(axis=1), axis=0)
    epochs = f"median of {len(chosen)} epoch{'s' * (len(chosen) != 1)}"
    rows = [f"Profile: ms per step, {epochs}", f"{'phase':<12}{'mean of ranks':>15}{'largest':>15}"]
    for name, mean, worst in zip(PHASES, means, largest, strict=True):
        rows.append(f"{name:<12}{mean:>15.3f}{worst:>15.3f}")
    rows.append(f"{'sum':<12}{means.sum():>15.3f}{np.median(per_step.sum(2).max(1)):>15.3f}")
    return "\n".join(rows)
