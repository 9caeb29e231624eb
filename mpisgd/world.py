"""World: the ranks that train together, what each owns, and how they agree.

MPI starts when the first World is made, never on import.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

import mpisgd
from mpisgd import devices, failures, launch, obituary, waiting
from mpisgd.agreement import SetupError as SetupError
from mpisgd.agreement import first_difference, joint_error, ranks_text
from mpisgd.control import Control, describe, refusal
from mpisgd.kernels.threads import set_threads

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")


class RankFailure(RuntimeError):
    """A check failed on some ranks; raised on all of them, naming those that failed."""


class World:
    """The ranks of one communicator; collective to make and to close.

    With more than one rank, an error that nobody handles ends the whole job (`mpisgd.failures`).
    A context manager; leaving the program without closing it is harmless.

    Attributes:
        comm: a private duplicate of the communicator.
        rank: this rank.
        size: number of ranks.
        is_main: whether this is rank 0.
        local_rank: position among the ranks of this node (host).
        local_size: number of ranks on this node.
        node: this node; nodes are numbered in the order of their lowest rank.
        nodes: number of nodes.
        device: torch.device of this rank.
        threads: CPU threads of torch and of the kernels.
        cores: CPU cores that this rank may run on.
        mpi_version: such as "MPICH 5.0.2".
        warnings: lines for the banner, the same on all ranks.
    """

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        device: str | torch.device = "auto",
        *,
        threads: int | None = None,
        allow_gpu_sharing: bool = False,
    ) -> None:
        """Join the ranks of `comm`.

        Args:
            comm: default: all ranks. It is duplicated and remains the caller's.
            device: "auto" (one GPU a rank where there are any, else the CPU), "cpu", "cuda" or
                "cuda:N".
            threads: CPU threads of this rank; default: OMP_NUM_THREADS, else the cores of the
                node divided by its ranks.
            allow_gpu_sharing: allow more ranks than GPUs on a node.

        Raises:
            LaunchError: the launcher belongs to another MPI, or two MPI wheels are installed.
            SetupError: a rank has no device or a bad setting; the same on all ranks.
            ValueError: ranks run different versions of Python, torch, numpy or mpisgd.
        """
        self._mpi = _start_mpi()
        parent = self._mpi.COMM_WORLD if comm is None else comm
        self._lifeline = failures.install(
            parent,
            rank=self._mpi.COMM_WORLD.rank,
            abort=self._mpi.COMM_WORLD.Abort,
            is_finalized=self._mpi.Is_finalized,
            any_thread=self._mpi.Query_thread() == self._mpi.THREAD_MULTIPLE,
        )
        self.comm: MPI.Intracomm = parent.Dup()
        self._dups: list[MPI.Intracomm] = []
        self._closed = False
        self.rank: int = self.comm.rank
        self.size: int = self.comm.size
        self.is_main = self.rank == 0
        self._control = Control(self.dup())
        self.mpi_version = launch.library_name(self._mpi.Get_library_version())
        limits = self._collect(waiting.stall_limits)
        waiting.identify(self._mpi.COMM_WORLD.rank, limits)
        self.check_same("versions", _versions())
        self._find_nodes()
        self._name_killed_ranks()
        self._take_threads(threads)
        self._take_device(str(device), allow_gpu_sharing)

    # ---- what this rank runs on

    def _find_nodes(self) -> None:
        """A node is what shares memory."""
        local = self.comm.Split_type(self._mpi.COMM_TYPE_SHARED, key=self.rank)
        self.local_rank: int = local.rank
        self.local_size: int = local.size
        lowest = np.array([self.rank], np.int64)
        local.Bcast(lowest, root=0)
        local.Free()
        leaders = self._control.gather_numbers(lowest, "the nodes of the ranks")[:, 0].tolist()
        order = sorted(set(leaders))
        self.node: int = order.index(leaders[self.rank])
        self.nodes = len(order)
        self._ranks_of_node = [
            [rank for rank, leader in enumerate(leaders) if leader == first] for first in order
        ]

    def _name_killed_ranks(self) -> None:
        """Have killed ranks of this node named, unless the launcher does, as Open MPI's."""
        address = failures.obituary_address()
        if self.size == 1 or self.mpi_version.startswith("Open MPI") or not obituary.can_watch():
            return
        own = f"{self._mpi.COMM_WORLD.rank} {os.getpid()} {obituary.process_names()}"
        everyone = self._control.gather_texts(
            f"{own} {address or ''}", "the processes of the ranks"
        )
        leader, *_ = mine = [everyone[rank].split(" ") for rank in self._ranks_of_node[self.node]]
        if any(theirs[3] for theirs in mine):
            return  # an earlier World has seen to it
        address = f"mpisgd-{leader[1]}-{leader[2]}"
        if self.local_rank == 0:
            pids = {int(rank): int(pid) for rank, pid, names, _ in mine if names == leader[2]}
            obituary.start(address, pids)
        failures.use_obituary(address)

    def _take_threads(self, requested: int | None) -> None:
        own = _affinity()
        self.cores = len(own)
        texts = self._control.gather_texts(" ".join(map(str, own)), "the cores of the ranks")
        affinities = [[int(core) for core in text.split()] for text in texts]
        shared = [affinities[rank] for rank in self._ranks_of_node[self.node]]
        variable = os.environ.get("OMP_NUM_THREADS", "")
        self.threads: int = self._collect(
            lambda: devices.choose_threads(requested, variable, shared, self.local_rank)
        )
        torch.set_num_threads(self.threads)
        set_threads(self.threads)
        counts = self._control.gather_numbers(
            np.array([self.threads], np.int64), "the threads of the ranks"
        )[:, 0].tolist()
        self.warnings: list[str] = []
        for node, ranks in enumerate(self._ranks_of_node):
            self.warnings += devices.crowding_warnings(
                node, ranks, [affinities[rank] for rank in ranks], [counts[rank] for rank in ranks]
            )

    def _take_device(self, requested: str, allow_sharing: bool) -> None:
        seen = [] if requested == "cpu" else _visible_gpus()
        everyone = self._control.gather_texts(" ".join(seen), "the GPUs of the ranks")
        mine = [everyone[rank].split() for rank in self._ranks_of_node[self.node]]
        place, sharers = devices.sharing_group(mine, self.local_rank)
        self.device = torch.device(
            self._collect(
                lambda: devices.choose_device(requested, len(seen), place, sharers, allow_sharing)
            )
        )
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # else every rank opens a context on GPU 0

    # ---- agreeing

    def agree(self, ok: bool, message: str) -> None:
        """Check that all ranks pass True. Collective; 1 byte to each rank.

        Raises:
            RankFailure: on all ranks, with the lowest failing rank's message and all their names.
        """
        flags = self._control.gather_numbers(np.array([not ok], np.int8), message)[:, 0]
        failing = np.flatnonzero(flags).tolist()
        if failing:
            first = self._control.gather_texts(message, message)[failing[0]]
            raise RankFailure(f"{first} (failed on {ranks_text(failing)})")

    def collect_errors(self, error: BaseException | None) -> None:
        """Turn an error that any rank met into one on all of them. Collective.

        Raises:
            SetupError: on all ranks unless `error` is None everywhere; the text is the lowest
                failing rank's, with its number unless all failed alike.
        """
        what = "the errors of the ranks"
        flags = self._control.gather_numbers(np.array([error is not None], np.int8), what)[:, 0]
        if not flags.any():
            return
        own = "" if error is None else str(error) or type(error).__name__
        texts = self._control.gather_texts(own, what)
        failed = [text if bad else None for text, bad in zip(texts, flags, strict=True)]
        raise SetupError(joint_error(failed)) from error

    def _collect(self, make: Callable[[], T]) -> T:
        """What `make` returns, once it has raised no ValueError on any rank."""
        try:
            made = make()
        except ValueError as error:
            self.collect_errors(error)
            raise  # not reached: collect_errors raises on every rank
        self.collect_errors(None)
        return made

    def check_same(self, subject: str, items: Sequence[tuple[str, str]]) -> None:
        """Check that all ranks pass the same (name, value) pairs in the same order. Collective.

        Cost: 32 bytes to each rank; the items travel only where ranks differ.

        Raises:
            ValueError: on all ranks, naming the first difference and its ranks.
        """
        text = "\0".join(part for item in items for part in item)
        what = f"a comparison of {subject}"
        digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
        digests = self._control.gather_numbers(digest, what)
        if (digests == digest).all():
            # This rank sees itself in all: then all are alike, and the others see the same.
            return
        raise ValueError(self._difference(subject, text, what))

    def _difference(self, subject: str, text: str, what: str) -> str:
        tables = []
        for theirs in self._control.gather_texts(text, what):
            parts = theirs.split("\0") if theirs else []
            tables.append(list(zip(parts[::2], parts[1::2], strict=True)))
        return (
            f"{subject}: {first_difference(tables)}; all ranks must have the same: start them "
            "with the same program, options and environment"
        )

    # ---- sharing values

    def sum(self, array: np.ndarray) -> np.ndarray:
        """The sum over ranks of equal-shaped float64 or int64 arrays, the same bits on all ranks.

        Collective. Cost: 2(n-1)/n times its bytes.
        """
        if array.dtype not in (np.float64, np.int64):
            raise TypeError(f"sum: got {array.dtype}; pass float64 or int64, which lose nothing")
        return self._control.sum(array, "a sum over ranks")

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give all ranks rank 0's values, in place. Collective.

        Args:
            tensors: dense tensors of any type, device and memory format, 0-d and empty ones too;
                number, shapes and types must agree over ranks.

        Raises:
            ValueError: ranks pass different tensors, or one that has no plain values.
        """
        listed = list(tensors)
        reasons = [f"tensor {i}: {why}" for i, t in enumerate(listed) if (why := refusal(t))]
        self.collect_errors(ValueError(f"broadcast: {reasons[0]}") if reasons else None)
        self.check_same("broadcast", [(f"tensor {i}", describe(t)) for i, t in enumerate(listed)])
        self._control.broadcast(listed, "a broadcast from rank 0")

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""
        self._control.barrier("a barrier")

    def wait(self, requests: Sequence[MPI.Request], what: str) -> None:
        """Wait politely for MPI requests; `what` names them if they stall."""
        waiting.wait_all(requests, what=what)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the block on rank 0 first, then on the others. Collective.

        Raises:
            RankFailure: on the others, whose block then does not run, if rank 0's raised.
        """
        error: BaseException | None = None
        if self.is_main:
            try:
                yield
            except BaseException as caught:
                error = caught
                raise
            finally:
                self._tell_main_is_done(error)
        else:
            self._tell_main_is_done(None)
            yield

    def _tell_main_is_done(self, error: BaseException | None) -> None:
        texts = self._control.gather_texts("" if error is None else repr(error), "rank 0's turn")
        if texts[0] and not self.is_main:
            raise RankFailure(f"rank 0 failed before the others' turn: {texts[0]}")

    @property
    def control_bytes(self) -> int:
        """Bytes this rank has sent in checks, sums and broadcasts, by formula."""
        return self._control.bytes

    # ---- communicators

    def dup(self) -> MPI.Intracomm:
        """A duplicate of the communicator for one protocol; close() frees it. Collective."""
        self._dups.append(self.comm.Dup())
        return self._dups[-1]

    def close(self) -> None:
        """Free the communicators. Collective; a second call does nothing."""
        if self._closed or self._mpi.Is_finalized():
            return
        self._closed = True
        for comm in [*self._dups, self.comm]:
            comm.Free()
        failures.release(self._lifeline)

    def __enter__(self) -> World:
        """The World itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, unless an exception passes: the others may not be here to free anything with."""
        if error is None:
            self.close()
        elif type(error) is SystemExit and self._lifeline is not None:
            # A plain `raise SystemExit` says nothing when nobody catches it: this one does.
            raise failures.JobExit(*error.args).with_traceback(trace) from error.__cause__


@cache
def _start_mpi() -> Any:
    """Import mpi4py and start MPI, unless that is done. Returns the module mpi4py.MPI.

    Raises:
        LaunchError: the launcher, the library and the installed wheels do not fit together.
    """
    launch.check_wheels(launch.wheels_in(Path(sys.prefix)))
    import mpi4py

    if "mpi4py.MPI" not in sys.modules:
        # With the wrong launcher MPI_Init aborts or leaves every rank alone: look first.
        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    from mpi4py import MPI

    version = MPI.Get_library_version()
    if not MPI.Is_initialized():
        launch.check_before_init(os.environ, version)
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    launch.check_size(os.environ, MPI.COMM_WORLD.size, version)
    return MPI


def _versions() -> list[tuple[str, str]]:
    """What must be the same on all ranks for them to compute the same."""
    try:
        own = importlib.metadata.version("mpisgd")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        own = mpisgd.__version__
    return [
        ("Python", platform.python_version()),
        ("torch", torch.__version__),
        ("numpy", np.__version__),
        ("mpisgd", own),
    ]


def _affinity() -> list[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _visible_gpus() -> list[str]:
    """What identifies the GPUs that torch may use here, in torch's order."""
    if not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    return [str(getattr(torch.cuda.get_device_properties(i), "uuid", i)) for i in range(count)]
