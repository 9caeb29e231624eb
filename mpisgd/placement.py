"""Where the ranks run: their nodes, and the threads and the device of each. Collective."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch

from mpisgd import devices, failures, obituary
from mpisgd.agreement import Agreement
from mpisgd.kernels.threads import set_threads


@dataclass(frozen=True)
class Nodes:
    """The nodes of a communicator: what shares memory. Numbered by their lowest rank.

    Attributes:
        ranks: the ranks of each node, ascending.
        node: this rank's.
        local_rank: this rank's place among the ranks of its node.
    """

    ranks: list[list[int]]
    node: int
    local_rank: int

    @property
    def own(self) -> list[int]:
        """The ranks of this rank's node."""
        return self.ranks[self.node]


def find_nodes(control: Agreement, shared_memory: int) -> Nodes:
    """Who shares a node with whom; `shared_memory` is MPI.COMM_TYPE_SHARED."""
    rank = control.comm.rank
    local = control.comm.Split_type(shared_memory, key=rank)
    lowest = np.array([rank], np.int64)
    local.Bcast(lowest, root=0)
    local.Free()
    leaders = control.gather_numbers(lowest, "the nodes of the ranks")[:, 0].tolist()
    ranks = [
        [member for member, leader in enumerate(leaders) if leader == first]
        for first in sorted(set(leaders))
    ]
    node = next(i for i, members in enumerate(ranks) if rank in members)
    return Nodes(ranks, node, ranks[node].index(rank))


def name_killed_ranks(control: Agreement, nodes: Nodes, rank: int) -> None:
    """Have killed ranks named by one small process a node, unless an earlier World has done so.

    Args:
        control: where the ranks agree.
        nodes: their nodes.
        rank: this process in COMM_WORLD.
    """
    names = obituary.process_names()
    own = f"{rank} {os.getpid()} {names} {failures.obituary_address() or ''}"
    everyone = control.gather_texts(own, "the processes of the ranks")
    here = [everyone[member].split(" ") for member in nodes.own]
    if any(address for *_, address in here):
        return
    _, leader, leader_names, _ = here[0]
    address = f"mpisgd-{leader}-{leader_names}"
    if nodes.local_rank == 0:
        pids = {int(member): int(pid) for member, pid, space, _ in here if space == names}
        obituary.start(address, pids)
    failures.use_obituary(address)


@dataclass(frozen=True)
class Cores:
    """What a rank may compute with.

    Attributes:
        cores: CPU cores that it may run on.
        threads: CPU threads that it uses.
        warnings: about all ranks, the same on all.
    """

    cores: int
    threads: int
    warnings: list[str]


def take_threads(control: Agreement, nodes: Nodes, requested: int | None) -> Cores:
    """Set the threads of torch and of the kernels. Raises SetupError on all ranks."""
    own = _affinity()
    texts = control.gather_texts(" ".join(map(str, own)), "the cores of the ranks")
    affinities = [[int(core) for core in text.split()] for text in texts]
    shared = [affinities[rank] for rank in nodes.own]
    variable = os.environ.get("OMP_NUM_THREADS", "")
    threads: int = control.collect(
        lambda: devices.choose_threads(requested, variable, shared, nodes.local_rank)
    )
    torch.set_num_threads(threads)
    set_threads(threads)
    counts = control.gather_numbers(np.array([threads], np.int64), "the threads of the ranks")
    warnings = []
    for node, ranks in enumerate(nodes.ranks):
        cores_of = [affinities[rank] for rank in ranks]
        threads_of = [int(counts[rank, 0]) for rank in ranks]
        warnings += devices.crowding_warnings(node, ranks, cores_of, threads_of)
    return Cores(len(own), threads, warnings)


def take_device(
    control: Agreement, nodes: Nodes, requested: str, *, allow_sharing: bool
) -> torch.device:
    """Choose this rank's device and make it current. Raises SetupError on all ranks."""
    seen = [] if requested == "cpu" else _visible_gpus()
    everyone = control.gather_texts(" ".join(seen), "the GPUs of the ranks")
    visible = [everyone[rank].split() for rank in nodes.own]
    place, sharers = devices.sharing_group(visible, nodes.local_rank)
    chosen: str = control.collect(
        lambda: devices.choose_device(requested, len(seen), place, sharers, allow_sharing)
    )
    device = torch.device(chosen)
    taken = control.gather_texts(seen[device.index or 0] if device.type == "cuda" else "", "GPUs")
    mine = [taken[rank] for rank in nodes.own]
    control.collect(lambda: devices.check_alone(mine, allow_sharing))
    if device.type == "cuda":
        torch.cuda.set_device(device)  # else every rank opens a context on GPU 0
    return device


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
