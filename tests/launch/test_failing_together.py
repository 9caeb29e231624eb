"""A rank that fails ends every rank, soon, with its name, and nothing is left running."""

from __future__ import annotations

import sys

import pytest

from tests.launch.jobs import FAILING, WHEELS, Ended, run_job

SCRIPT = FAILING / "one_rank.py"
# On a busy machine starting Python, torch and MPI on several ranks takes long.
pytestmark = pytest.mark.timeout(300)


def assert_ended_together(ended: Ended) -> None:
    assert ended.code != 0, ended.output
    assert ended.seconds_after_failure() < 10, ended.output
    assert not ended.left_running, ended.output
    assert "not reached" not in ended.output


@pytest.mark.parametrize("python", WHEELS)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "[rank 1] RuntimeError: the disk\n[rank 1] is on fire\n"),
        ("exit", "[rank 1] left the program with code 3"),
        ("exit-thread", "[rank 1] thread saver called sys.exit(3)"),
        ("system-exit", "rank 1 has left the program"),
    ],
)
def test_one_rank_ends_all(python: str, how: str, said: str) -> None:
    ended = run_job(python, SCRIPT, how)
    assert said in ended.output
    assert_ended_together(ended)


@pytest.mark.parametrize("python", WHEELS)
def test_killed_rank_is_named(python: str) -> None:
    ended = run_job(python, SCRIPT, "kill")
    assert_ended_together(ended)
    # Ours where the launcher does not, else Open MPI's own line.
    said = ("[rank 1] died without a word", "process rank 1 with PID")
    assert any(text in ended.output for text in said), ended.output


@pytest.mark.parametrize(
    ("how", "said", "code"),
    [
        ("quit", "[rank 1] left the program with code 3", 3),
        ("exit-text", "[rank 1] no more paper", 1),
        ("interrupt", "[rank 1] KeyboardInterrupt", 130),
        ("raise-thread", "[rank 1] ValueError: invalid literal", 1),
    ],
)
def test_also_from_a_blocking_call_and_with_the_code(how: str, said: str, code: int) -> None:
    ended = run_job(sys.executable, SCRIPT, how, "barrier")
    assert said in ended.output
    assert_ended_together(ended)
    assert ended.code == code
