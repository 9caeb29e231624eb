"""Downloading under mpiexec: once a node, and all ranks learn how it went."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mpisgd.data.__main__ import once_per_node
from mpisgd.data.download import FetchError

pytestmark = pytest.mark.mpi


def test_one_rank_of_a_node_downloads_and_the_others_wait(world, shared_tmp):
    place = Path(shared_tmp) / "data"

    def download() -> Path:
        time.sleep(0.5)
        place.write_text(f"by rank {world.rank}")
        return place

    where = once_per_node(world, download)
    assert where == (place if world.local_rank == 0 else None)
    assert place.read_text() == "by rank 0"  # also where nobody downloaded: it is complete


def test_a_failure_is_told_to_all_ranks(world):
    def download() -> Path:
        raise FetchError("cifar10: the server is gone; try again")

    with pytest.raises(ValueError, match="the server is gone"):
        once_per_node(world, download)
