"""What a run says before its first step: who trains what, what travels, and what looks wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

_POOR_RATIO = 2.0  # below this a code hardly pays for its own arithmetic
_LISTED_NODES = 8


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the banner shows. Bytes are those of all gradients once, headers excluded."""

    version: str
    ranks: int
    devices: tuple[tuple[str, ...], ...]  # for each node, the device of each of its ranks
    threads: int  # of a rank
    mpi: str
    model: str
    parameters: int
    tensors: int
    data: str
    train_size: int
    test_size: int
    hint: str  # how to get better data; "" if these are what was asked for
    sync: str
    batch: int  # global
    rate: float
    momentum: float
    weight_decay: float
    seed: int
    total_samples: int
    epoch_samples: int
    bits: int
    collective: str
    warmup: int
    warmup_mode: str
    payload_32: int
    payload_bits: int
    idle_options: tuple[str, ...]  # given, but without effect at this width
    world_warnings: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """How many times fewer payload bytes the code sends."""
        return self.payload_32 / self.payload_bits if self.payload_bits else 1.0

    @property
    def exchanges(self) -> bool:
        """Whether gradients travel at all."""
        return self.ranks > 1 and self.sync != "local"

    def as_event(self) -> dict[str, Any]:
        """The same for the JSON file."""
        own = ("devices", "world_warnings")
        plain = {key: value for key, value in asdict(self).items() if key not in own}
        devices = {"nodes": len(self.devices), "devices": self.devices}
        return {**plain, **devices, "warnings": warnings(self)}


def banner(facts: Facts) -> str:
    """The banner, several lines."""
    return "\n".join(
        [
            *_machine_lines(facts),
            f"Model: {facts.model}, {facts.parameters:,} parameters in {facts.tensors} tensors",
            f"Data: {facts.data}, {facts.train_size:,} training and {facts.test_size:,} test"
            " samples" + (f" ({facts.hint})" if facts.hint else ""),
            _training_line(facts),
            *_exchange_lines(facts),
            *(f"Warning: {text}" for text in warnings(facts)),
        ]
    )


def _machine_lines(facts: Facts) -> list[str]:
    """Ranks, nodes, devices, MPI."""
    nodes = len(facts.devices)
    kinds = sorted({device.partition(":")[0] for node in facts.devices for device in node})
    lines = [
        f"mpisgd {facts.version}: {_count(facts.ranks, 'rank')} on {_count(nodes, 'node')},"
        f" device {' and '.join(kinds)}, {_count(facts.threads, 'thread')} a rank, {facts.mpi}"
    ]
    if nodes > 1 or kinds != ["cpu"]:
        for number, devices in enumerate(facts.devices[:_LISTED_NODES]):
            lines.append(f"  node {number}: {_count(len(devices), 'rank')} on {', '.join(devices)}")
        if nodes > _LISTED_NODES:
            lines.append(f"  and {nodes - _LISTED_NODES} more")
    return lines


def _training_line(facts: Facts) -> str:
    """Minibatch, rate, length."""
    per_rank = facts.batch / facts.ranks
    share = f"{per_rank:g}" if per_rank == int(per_rank) else f"about {per_rank:.1f}"
    return (
        f"Training: {facts.sync}, minibatch {facts.batch} ({share} a rank), lr {facts.rate:g}, "
        f"momentum {facts.momentum:g}, weight decay {facts.weight_decay:g}, "
        f"{facts.total_samples:,} samples in epochs of {facts.epoch_samples:,}, seed {facts.seed}"
    )


def _exchange_lines(facts: Facts) -> list[str]:
    """Payload, and when quantization starts."""
    if not facts.exchanges:
        why = "one rank" if facts.ranks == 1 else "ranks train alone, rank 0's model is evaluated"
        return [
            f"Payload per step: none ({why}); gradients are {facts.payload_32:,} bytes at 32 bits"
        ]
    coded = (
        f", {facts.payload_bits:,} at {_count(facts.bits, 'bit')} ({facts.ratio:.1f} times fewer)"
        if facts.bits < 32
        else ""
    )
    lines = [
        f"Payload per step: {facts.payload_32:,} bytes at 32 bits{coded}, by {facts.collective}"
    ]
    if facts.bits < 32 or facts.warmup_mode == "replicate":
        lines.append(_warm_start_line(facts))
    return lines


def _warm_start_line(facts: Facts) -> str:
    then = _count(facts.bits, "bit")
    if facts.warmup == 0:
        return f"Warm start: none, {then} from the first step"
    first = (
        "every rank computes the whole minibatch" if facts.warmup_mode == "replicate" else "32 bits"
    )
    late = facts.warmup >= facts.total_samples
    return f"Warm start: {first} for the first {facts.warmup:,} samples, " + (
        f"which is the whole run: {then} never starts" if late else f"then {then}"
    )


def warnings(facts: Facts) -> list[str]:
    """What looks wrong, one line each."""
    found = list(facts.world_warnings)
    if facts.bits < 32 and facts.ranks == 1:
        found.append(
            f"--quant {facts.bits} with one rank: nothing is exchanged, so nothing is quantized;"
            " start several ranks with mpiexec -n"
        )
    if facts.exchanges and facts.bits < 32 and facts.ratio < _POOR_RATIO:
        found.append(
            f"{_count(facts.bits, 'bit')} sends only {facts.ratio:.2f} times fewer bytes than 32"
            " here: most tensors are too small to be coded; lower --min-numel or use --quant 32"
        )
    found += [f"{option} changes nothing at 32 bits" for option in facts.idle_options]
    return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
