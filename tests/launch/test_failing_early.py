"""A rank that fails before it has joined the others ends the job, too."""

from __future__ import annotations

import pytest

from tests.launch.jobs import FAILING, WHEELS, run_job

SCRIPT = FAILING / "early.py"


@pytest.mark.parametrize("python", WHEELS)
def test_torch_cannot_be_imported_on_one_rank(python: str) -> None:
    ended = run_job(python, SCRIPT, "without_torch")
    assert ended.code != 0
    assert "[rank 1] ImportError: libnuma.so.1" in ended.output
    assert ended.seconds_after_failure() < 10
    assert not ended.left_running


def test_a_rank_that_never_joins() -> None:
    limits = {"MPISGD_STALL_WARN": "2", "MPISGD_STALL_ABORT": "4"}
    ended = run_job(WHEELS[0].values[0], SCRIPT, "before_mpi", extra=limits)
    assert ended.code != 0
    assert "has waited 2 s for MPI to start" in ended.output
    assert not ended.left_running
