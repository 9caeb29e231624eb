"""Fixtures of all tests.

Nothing here starts MPI unless --with-mpi is given or a test asks for `comm` or `world`.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

from tests.together import FAILED, GRACE_S, Together

# The first call of a compiled kernel takes longer than any deadline, and a busy machine may be slow
# to draw examples. Continuous integration draws the same ones each time, everybody else new ones.
hypothesis.settings.register_profile(
    "single",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
# All ranks must draw the same examples, and a rank must not replay one alone.
hypothesis.settings.register_profile("mpi", deadline=None, derandomize=True, database=None)

TOGETHER = "mpisgd-together"


@pytest.hookimpl(trylast=True)  # after pytest's own reporter, which the ranks above 0 replace
def pytest_configure(config: pytest.Config) -> None:
    with_mpi = config.getoption("--with-mpi") or config.getoption("--only-mpi")
    hypothesis.settings.load_profile("mpi" if with_mpi else "single")
    if with_mpi:
        config.pluginmanager.register(Together(config), TOGETHER)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test starts from the same random state, on every rank."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A communicator of this test's own; after the test the ranks meet, and no message is left."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    yield comm
    if request.node.stash.get(FAILED, False):
        return  # messages may still be under way: leave it alone
    together = request.config.pluginmanager.get_plugin(TOGETHER)
    if together is None:
        comm.Barrier()
    else:
        late = f"{request.node.nodeid}: after {GRACE_S:.0f} s not all ranks have left this test"
        together.wait(comm.Ibarrier(), seconds=GRACE_S, otherwise=late)
    left_behind = comm.allreduce(int(comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)))
    assert not left_behind, "a message was sent that nobody received"
    comm.Free()


@pytest.fixture
def world(request: pytest.FixtureRequest, comm: Any) -> Iterator[Any]:
    """An `mpisgd.World` on `comm`, on the CPU."""
    import mpisgd

    world = mpisgd.World(comm, device="cpu")
    yield world
    if not request.node.stash.get(FAILED, False):
        world.close()


@pytest.fixture
def shared_tmp(request: pytest.FixtureRequest, comm: Any) -> Iterator[Path]:
    """An empty folder, the same one on all ranks."""
    made = tempfile.mkdtemp(prefix="mpisgd-test-") if comm.rank == 0 else None
    folder = Path(comm.bcast(made))
    yield folder
    if not request.node.stash.get(FAILED, False):
        comm.Barrier()  # nobody is still writing
        if comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
