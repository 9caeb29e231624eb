"""World: the ranks that train together, what each owns, and how they agree.

MPI starts when the first World is made, never on import.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import torch

import mpisgd
from mpisgd import failures, launch, placement, waiting
from mpisgd.agreement import Agreement
from mpisgd.agreement import RankFailure as RankFailure
from mpisgd.agreement import SetupError as SetupError
from mpisgd.control import describe, refusal
from mpisgd.start import start_mpi

if TYPE_CHECKING:
    from mpi4py import MPI


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
        self._mpi = start_mpi()
        parent = self._mpi.COMM_WORLD if comm is None else comm
        if not isinstance(parent, self._mpi.Intracomm) or parent == self._mpi.COMM_NULL:
            raise TypeError(
                f"World: comm is {comm!r}; wanted an mpi4py intracommunicator of which this process"
                " is a member, or nothing for all ranks"
            )
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
        self._agreement = Agreement(self.dup())
        self.mpi_version = launch.library_name(self._mpi.Get_library_version())
        world_rank = self._mpi.COMM_WORLD.rank
        waiting.identify(world_rank, self._control.collect(waiting.stall_limits))
        self.check_same("versions", _versions())

        nodes = placement.find_nodes(self._control, self._mpi.COMM_TYPE_SHARED)
        self.local_rank = nodes.local_rank
        self.local_size = len(nodes.own)
        self.node = nodes.node
        self.nodes = len(nodes.ranks)
        if self.size > 1 and not self.mpi_version.startswith("Open MPI"):  # its launcher does it
            placement.name_killed_ranks(self._control, nodes, world_rank)

        cores = placement.take_threads(self._control, nodes, threads)
        self.threads, self.cores, self.warnings = cores.threads, cores.cores, cores.warnings
        self.device = placement.take_device(
            self._control, nodes, str(device), allow_sharing=allow_gpu_sharing
        )

    # ---- agreeing

    def agree(self, ok: bool, message: str) -> None:
        """Check that all ranks pass True. Collective; 1 byte to each rank.

        Raises:
            RankFailure: on all ranks, with the lowest failing rank's message and all their names.
        """
        self._control.agree(ok, message)

    def collect_errors(self, error: BaseException | None) -> None:
        """Turn an error that any rank met into one on all of them. Collective.

        Raises:
            SetupError: on all ranks unless `error` is None everywhere; the text is the lowest
                failing rank's, with its number unless all failed alike.
        """
        self._control.collect_errors(error)

    def check_same(self, subject: str, items: Sequence[tuple[str, str]]) -> None:
        """Check that all ranks pass the same (name, value) pairs in the same order. Collective.

        Cost: 32 bytes to each rank; the items travel only where ranks differ.

        Raises:
            ValueError: on all ranks, naming the first difference and its ranks.
        """
        self._control.check_same(subject, items)

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
        return self._agreement.bytes

    # ---- communicators

    def dup(self) -> MPI.Intracomm:
        """A duplicate of the communicator for one protocol; close() frees it. Collective."""
        self._check_open()
        self._dups.append(self.comm.Dup())
        return self._dups[-1]

    def free(self, comm: MPI.Intracomm) -> None:
        """Free one that `dup` gave, when its protocol is over. Collective."""
        if not self._closed:
            self._dups.remove(comm)
            comm.Free()

    @property
    def _control(self) -> Agreement:
        self._check_open()
        return self._agreement

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("World: it is closed; make a new one, or close it later")

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
