"""Which values travel, how and in what order ("Parameters and buckets"), and who owns them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from . import onebit

HEADER_BYTES = 32


class Stripe(NamedTuple):
    """What one rank owns of a bucket: half-open ranges of raw values and of coded columns."""

    raw: tuple[int, int]
    columns: tuple[int, int]


class Bucket:
    """One flat buffer: raw tensors first, then the coded ones, each cut into columns.

    Attributes:
        slots: where tensor i of the exchanged list starts in the buffer, {i: start}.
        coded: the i that are coded.
        raw: number of raw values; they are the first of the buffer.
        size: number of values.
        columns: (start, stop) in the buffer, in order.
    """

    def __init__(self, numels: dict[int, int], coded: set[int], *, column: int) -> None:
        self.slots: dict[int, int] = {}
        self.coded = coded
        self.columns: list[tuple[int, int]] = []
        self.numels = numels
        at = 0
        for i in [i for i in numels if i not in coded]:
            self.slots[i] = at
            at += numels[i]
        self.raw = at
        for i in [i for i in numels if i in coded]:
            self.slots[i] = at
            stop = at + numels[i]
            self.columns += [(a, min(a + column, stop)) for a in range(at, stop, column)]
            at = stop
        self.size = at

    def range_of(self, i: int) -> slice:
        """Values of tensor i in the buffer."""
        return slice(self.slots[i], self.slots[i] + self.numels[i])

    def stripe(self, rank: int, ranks: int) -> Stripe:
        """What `rank` owns."""
        count = len(self.columns)
        return Stripe(
            raw=(self.raw * rank // ranks, self.raw * (rank + 1) // ranks),
            columns=(count * rank // ranks, count * (rank + 1) // ranks),
        )

    def message_bytes(self, stripe: Stripe) -> int:
        """A message about a stripe: header, raw values, levels and codes."""
        lengths = [b - a for a, b in self.columns[slice(*stripe.columns)]]
        raw = stripe.raw[1] - stripe.raw[0]
        return HEADER_BYTES + 4 * raw + onebit.payload_bytes(lengths)

    def sent_bytes(self, rank: int, ranks: int) -> int:
        """By `rank` in a step: to every owner its stripe, and the sums of its own to everyone."""
        sizes = [self.message_bytes(self.stripe(owner, ranks)) for owner in range(ranks)]
        return sum(sizes) - sizes[rank] + (ranks - 1) * sizes[rank]

    def payload_bytes(self) -> int:
        """All values once, without headers."""
        return 4 * self.raw + onebit.payload_bytes([b - a for a, b in self.columns])


def exchanged_parameters(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> list[torch.nn.Parameter]:
    """In the order of the exchange: first what the model does not own, all reversed."""
    in_optimizer = [p for group in optimizer.param_groups for p in group["params"]]
    wanted = {id(p) for p in in_optimizer if p.requires_grad}
    of_model = list(model.parameters())  # tied weights once, at their first name
    own = {id(p) for p in of_model}
    strangers = [p for p in in_optimizer if id(p) not in own]
    return [p for p in reversed(of_model + strangers) if id(p) in wanted]


def cut_buckets(
    shapes: Sequence[tuple[int, ...]],
    *,
    coding: bool,
    column: int,
    min_numel: int,
    bucket_mb: float | None,
) -> list[Bucket]:
    """Buckets over the exchanged tensors, in order, each of at most `bucket_mb` MB of fp32."""
    limit = math.inf if bucket_mb is None else bucket_mb * 2**20 / 4
    groups: list[dict[int, int]] = []
    for i, shape in enumerate(shapes):
        numel = math.prod(shape)
        if numel == 0:
            continue
        if not groups or sum(groups[-1].values()) + numel > limit:
            groups.append({})
        groups[-1][i] = numel
    coded = {
        i
        for i, shape in enumerate(shapes)
        if coding and len(shape) >= 2 and math.prod(shape) >= min_numel
    }
    return [Bucket(group, coded & set(group), column=column) for group in groups]
