"""Which device and how many threads a rank takes, from what its node has. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence


def choose_device(
    requested: str, gpus: int, local_rank: int, local_size: int, allow_sharing: bool
) -> str:
    """The device of the rank that is number `local_rank` of `local_size` sharing `gpus` GPUs.

    Args:
        requested: "auto", "cpu", "cuda" or "cuda:N".
        gpus: GPUs that this process may use (torch counts inside CUDA_VISIBLE_DEVICES).
        local_rank: position among the ranks that see the same GPUs.
        local_size: number of these ranks.
        allow_sharing: several ranks may take one GPU.

    Returns:
        "cpu" or "cuda:N".

    Raises:
        ValueError: an unknown name, no such GPU, or more ranks than GPUs.
    """
    kind, _, index = requested.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (":" in requested and not _is_gpu(kind, index)):
        raise ValueError(f"device: {requested!r} is not known; use auto, cpu, cuda or cuda:N")
    if kind == "cpu" or (kind == "auto" and gpus == 0):
        return "cpu"
    if gpus == 0:
        raise ValueError(
            f"device: {requested!r} was asked for, but torch sees no CUDA GPU; use cpu or auto, or "
            "check the driver, the torch build and CUDA_VISIBLE_DEVICES"
        )
    if index:
        if int(index) >= gpus:
            raise ValueError(f"device: {requested!r} does not exist; there are {gpus} GPUs")
        return requested
    if local_size > gpus and not allow_sharing:
        raise ValueError(
            f"device: {local_size} ranks on one node share {gpus} GPU{'s' * (gpus > 1)}; start at "
            f"most {gpus} a node, or allow it with allow_gpu_sharing=True (--allow-gpu-sharing)"
        )
    return f"cuda:{local_rank % gpus}"


def _is_gpu(kind: str, index: str) -> bool:
    return kind == "cuda" and index.isdigit()


def sharing_group(visible: Sequence[Sequence[str]], local_rank: int) -> tuple[int, int]:
    """Position of a rank among the node's ranks that see the same GPUs, and their number.

    Launchers such as Slurm may show each rank a GPU of its own; then each is alone.

    Args:
        visible: for each local rank, what identifies the GPUs that it sees.
        local_rank: the rank concerned.
    """
    same = [r for r, seen in enumerate(visible) if list(seen) == list(visible[local_rank])]
    return same.index(local_rank), len(same)


def check_alone(taken: Sequence[str], allow_sharing: bool) -> None:
    """Check that no two ranks of a node take one GPU. Raises ValueError.

    Args:
        taken: for each local rank, what identifies its GPU; "" for the CPU.
        allow_sharing: several ranks may take one GPU.
    """
    gpus = [gpu for gpu in taken if gpu]
    if len(set(gpus)) < len(gpus) and not allow_sharing:
        raise ValueError(
            f"device: {len(gpus)} ranks on one node take only {len(set(gpus))} different GPUs; "
            "give each its own, or allow it with allow_gpu_sharing=True (--allow-gpu-sharing)"
        )


def choose_threads(
    requested: int | None,
    omp_num_threads: str,
    affinities: Sequence[Sequence[int]],
    local_rank: int,
) -> int:
    """Threads of a rank: as asked for, else OMP_NUM_THREADS, else the node's cores / its ranks.

    Args:
        requested: an explicit number, or None.
        omp_num_threads: the variable's text, "" if it is not set; its first level counts.
        affinities: for each local rank, the cores it may run on.
        local_rank: the rank concerned.

    Raises:
        ValueError: a number below 1.
    """
    if requested is not None:
        if requested < 1:
            raise ValueError(f"threads: {requested} was asked for; give at least 1")
        return requested
    first = omp_num_threads.split(",")[0].strip()
    if first.isdigit() and int(first) > 0:
        return int(first)
    shared = len(set().union(*affinities)) // len(affinities)
    return max(1, min(shared, len(affinities[local_rank])))


def crowding_warnings(
    node: int, ranks: Sequence[int], affinities: Sequence[Sequence[int]], threads: Sequence[int]
) -> list[str]:
    """Lines for the banner about a node whose cores do not suffice.

    Args:
        node: number of the node.
        ranks: its ranks.
        affinities: for each of them, the cores it may run on.
        threads: for each of them, its number of threads.
    """
    cores = len(set().union(*affinities))
    lines = []
    if len(ranks) > cores:
        lines.append(
            f"node {node} runs {len(ranks)} ranks on {cores} core{'s' * (cores > 1)}: "
            "they take turns, and times say nothing about speed"
        )
    tight = [i for i, own in enumerate(affinities) if len(own) < threads[i]]
    if tight:
        first = tight[0]
        own = len(affinities[first])
        lines.append(
            f"rank {ranks[first]}{' and others' * (len(tight) > 1)} may run on {own} "
            f"core{'s' * (own > 1)} but has {threads[first]} threads: lower --threads "
            "or loosen the launcher's binding"
        )
    return lines
