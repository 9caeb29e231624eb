from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpisgd import obituary

pytestmark = pytest.mark.skipif(
    not hasattr(__import__("os"), "pidfd_open"), reason="the system has no pidfd_open (Linux 5.3)"
)

Rank = subprocess.Popen[bytes]
NAMED = "[rank 3] died without a word"


@pytest.fixture
def two_ranks() -> Iterator[tuple[Rank, Rank]]:
    command = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    ranks = (subprocess.Popen(command), subprocess.Popen(command))
    yield ranks
    for rank in ranks:
        rank.kill()
        rank.wait()


def said_about(ranks: tuple[Rank, Rank], happens: Callable[[str], None], folder: Path) -> str:
    """What the watcher of ranks 3 and 4 writes when `happens(address)`; all ranks end then."""
    address = f"mpisgd-test-{uuid.uuid4().hex}"
    told = folder / "told"
    starter = (
        f"import sys; sys.path.insert(0, {str(Path(obituary.__file__).parent)!r});"
        f"import obituary; obituary.start({address!r}, {{3: {ranks[0].pid}, 4: {ranks[1].pid}}})"
    )
    with told.open("w") as stderr:
        subprocess.run([sys.executable, "-S", "-c", starter], stderr=stderr, check=True)
    happens(address)
    for rank in ranks:
        rank.kill()
        rank.wait()
    time.sleep(0.5)
    return told.read_text()


def test_the_first_killed_rank_is_named(two_ranks: tuple[Rank, Rank], tmp_path: Path) -> None:
    text = said_about(two_ranks, lambda _: two_ranks[0].kill(), tmp_path)
    assert text.startswith(NAMED)
    assert text.count("\n") == 1
    assert f"pid {two_ranks[0].pid}" in text


def test_a_rank_that_leaves_in_order_is_not(two_ranks: tuple[Rank, Rank], tmp_path: Path) -> None:
    def both_leave(address: str) -> None:
        obituary.farewell(address, 3, job_ends=False)
        obituary.farewell(address, 4, job_ends=False)

    assert said_about(two_ranks, both_leave, tmp_path) == ""


def test_the_one_that_does_not_leave_in_order_is(
    two_ranks: tuple[Rank, Rank], tmp_path: Path
) -> None:
    def one_leaves(address: str) -> None:
        obituary.farewell(address, 4, job_ends=False)
        two_ranks[1].kill()
        two_ranks[1].wait()

    assert said_about(two_ranks, one_leaves, tmp_path).startswith(NAMED)


def test_silent_when_a_rank_ends_the_job(two_ranks: tuple[Rank, Rank], tmp_path: Path) -> None:
    def ends(address: str) -> None:
        obituary.farewell(address, 4, job_ends=True)

    assert said_about(two_ranks, ends, tmp_path) == ""


def test_farewell_to_nobody_is_harmless() -> None:
    obituary.farewell(f"mpisgd-test-{uuid.uuid4().hex}", 0, job_ends=False)
