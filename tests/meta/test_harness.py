"""The test harness itself: a rank that fails alone must end red, soon, and by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Started by MPI, these would make a child believe that it belongs to our own job.
LAUNCHER_PREFIXES = ("PMI", "OMPI_", "PMIX_", "PRTE_", "HYDI_", "MPIR_", "MPISGD_")


def run_under_mpi(n: int, body: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a test file of this text on n ranks, with this project's conftest."""
    for name in ("conftest.py", "together.py"):
        target = folder / "tests" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "tests" / name, target)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "tests" / "test_generated.py").write_text(body)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_PREFIXES)}
    environment |= {"MPISGD_TEST_COUNT": str(folder / "count"), "OMP_NUM_THREADS": "1"}
    mpiexec = Path(sys.executable).parent / "mpiexec"
    pytest_command = [sys.executable, "-m", "pytest", "--with-mpi", "-m", "mpi"]
    return subprocess.run(
        [str(mpiexec), "-n", str(n), *pytest_command],
        cwd=folder,
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )


ONE_RANK_LEAVES_A_BARRIER = """
import pytest

@pytest.mark.mpi
def test_barrier(comm):
    assert comm.rank != 1, "this rank cannot go on"
    comm.Barrier()

@pytest.mark.mpi
def test_another_barrier(comm):
    comm.Barrier()
"""


def test_a_rank_that_fails_before_a_barrier_ends_the_run_by_name(tmp_path):
    started = time.monotonic()
    done = run_under_mpi(2, ONE_RANK_LEAVES_A_BARRIER, tmp_path)
    assert time.monotonic() - started < 20
    assert done.returncode != 0
    assert "[rank 1]" in done.stdout
    assert "test_barrier failed on this rank" in done.stdout
    assert "this rank cannot go on" in done.stdout
    assert " passed" not in done.stdout


ONE_RANK_FAILS = """
import pytest

@pytest.mark.mpi
def test_one_rank(comm):
    assert comm.rank != 1, "the reason of rank 1"

@pytest.mark.mpi
def test_the_next(comm):
    comm.Barrier()
"""


def test_a_failure_of_one_rank_is_a_failure_of_all(tmp_path):
    done = run_under_mpi(3, ONE_RANK_FAILS, tmp_path)
    assert done.returncode == 1, done.stdout
    assert "failed on rank(s) 1 of 3" in done.stdout
    assert "the reason of rank 1" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert (tmp_path / "count").read_text() == "3 2 0 1\n"


RANKS_DISAGREE = """
import pytest

@pytest.mark.mpi
def test_skipped_on_one(comm):
    if comm.rank == 0:
        pytest.skip("only here")
"""


def test_ranks_that_skip_different_tests_fail(tmp_path):
    done = run_under_mpi(2, RANKS_DISAGREE, tmp_path)
    assert done.returncode == 1, done.stdout
    assert "rank 0: skipped, rank 1: passed" in done.stdout


DIFFERENT_LISTS = """
import pytest
from mpi4py import MPI

@pytest.mark.mpi
@pytest.mark.parametrize("case", range(1 + MPI.COMM_WORLD.rank))
def test_cases(comm, case):
    comm.Barrier()
"""


def test_ranks_with_different_lists_of_tests_are_refused(tmp_path):
    done = run_under_mpi(2, DIFFERENT_LISTS, tmp_path)
    assert done.returncode != 0
    assert "the ranks' lists of tests differ" in done.stdout
    assert "rank 0 collected 1 tests" in done.stdout
    assert "rank 1 collected 2 tests" in done.stdout


A_MESSAGE_IS_LEFT = """
import pytest

@pytest.mark.mpi
def test_forgets_to_receive(comm):
    if comm.rank == 0:
        comm.isend("for you", 1).Free()
"""


def test_a_message_that_nobody_received_fails_its_test(tmp_path):
    done = run_under_mpi(2, A_MESSAGE_IS_LEFT, tmp_path)
    assert done.returncode == 1, done.stdout
    assert "a message was sent that nobody received" in done.stdout


A_RANK_SLEEPS = """
import time
import pytest

@pytest.mark.mpi
@pytest.mark.timeout(3)
def test_sleeper(comm):
    if comm.rank == 1:
        time.sleep(60)
    comm.Barrier()
"""


def test_a_test_that_hangs_in_mpi_is_ended_by_its_timeout(tmp_path):
    started = time.monotonic()
    done = run_under_mpi(2, A_RANK_SLEEPS, tmp_path)
    assert time.monotonic() - started < 20
    assert done.returncode != 0
    assert "Timeout" in done.stdout
    assert "test_sleeper" in done.stdout


def count(tmp_path: Path, line: str, *, ranks: int, first: str | None = None):
    """Run run/count.sh on a count file of this text (and a file of the run at n=1)."""
    (tmp_path / "now").write_text(line)
    command = ["bash", str(ROOT / "run" / "count.sh"), "mpi", str(ranks), str(tmp_path / "now")]
    if first is not None:
        (tmp_path / "first").write_text(first)
        command.append(str(tmp_path / "first"))
    return subprocess.run(command, text=True, capture_output=True, check=False)


def test_the_count_is_printed(tmp_path):
    done = count(tmp_path, "4 57 0 0\n", ranks=4, first="1 55 2 0\n")
    assert done.returncode == 0
    assert done.stdout == "MPI tests executed at n=4: 57\n"


@pytest.mark.parametrize(
    ("line", "first", "told"),
    [
        ("4 0 57 0\n", None, "none was executed"),
        ("1 57 0 0\n", None, "MPI saw 1 ranks"),
        ("4 50 0 0\n", "1 57 0 0\n", "50 tests, but 57 at n=1"),
        ("4 50 7 0\n", "1 57 0 0\n", "fewer than the 57 at n=1"),
        ("", None, "the run wrote no count"),
    ],
)
def test_a_run_that_tested_too_little_is_refused(tmp_path, line, first, told):
    done = count(tmp_path, line, ranks=4, first=first)
    assert done.returncode == 1
    assert told in done.stdout


def test_a_run_without_mpi_tests_is_refused(tmp_path):
    body = "import pytest\n\n@pytest.mark.mpi(min_size=9)\ndef test_large(comm): pass\n"
    run = run_under_mpi(2, body, tmp_path)
    assert run.returncode == 0, run.stdout
    done = count(tmp_path, (tmp_path / "count").read_text(), ranks=2)
    assert done.returncode == 1
    assert "none was executed" in done.stdout


def test_unit_tests_start_no_mpi(tmp_path):
    """A plain run of a test that asks for nothing leaves mpi4py.MPI unimported."""
    run_file = tmp_path / "test_plain.py"
    run_file.write_text(
        "import sys\n\ndef test_plain():\n    assert 'mpi4py.MPI' not in sys.modules\n"
    )
    for name in ("conftest.py", "together.py"):
        (tmp_path / "tests").mkdir(exist_ok=True)
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    run_file.rename(tmp_path / "tests" / "test_plain.py")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest"], cwd=tmp_path, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
