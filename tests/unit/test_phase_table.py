from __future__ import annotations

import numpy as np

from mpisgd.phase_table import phase_table
from mpisgd.timing import PHASES


def seconds(*per_rank: float) -> np.ndarray:
    """(ranks, phases): all phases of a rank took the same."""
    return np.outer(per_rank, np.ones(len(PHASES)))


def rows(table: str) -> dict[str, list[float]]:
    return {name: [float(v) for v in rest] for name, *rest in map(str.split, table.split("\n")[2:])}


def test_medians_over_epochs_leave_out_the_first():
    epochs = [seconds(9.0, 9.0), seconds(1.0, 3.0), seconds(2.0, 4.0), seconds(1.0, 1.0)]
    table = phase_table(epochs, [10, 10, 10, 10])
    assert "median of 3 epochs" in table
    found = rows(table)
    assert set(found) == {*PHASES, "sum"}
    assert found["forward"] == [200.0, 300.0]
    assert found["sum"] == [200.0 * len(PHASES), 300.0 * len(PHASES)]


def test_one_epoch_is_used_as_it_is():
    found = rows(phase_table([seconds(0.5)], [5]))
    assert found["data"] == [100.0, 100.0]
