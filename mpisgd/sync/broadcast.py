"""Rank 0's parameters, buffers and optimizer state on every rank."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from mpisgd.world import World


def broadcast_model(model: nn.Module, world: World) -> None:
    """Overwrite parameters and buffers by rank 0's. Collective. Cost: their bytes, once."""
    with torch.no_grad():
        world.broadcast([*model.parameters(), *model.buffers()])


def broadcast_optimizer(optimizer: torch.optim.Optimizer, world: World) -> None:
    """Overwrite optimizer state and hyper-parameters by rank 0's, in place. Collective.

    The dicts of `optimizer.param_groups` stay the same objects: schedulers and callers hold them.
    Cost: the serialised state once, set-up only.

    Raises:
        ValueError: on all ranks, if rank 0's state holds other than tensors and plain values.
    """
    packed, error = torch.empty(0, dtype=torch.uint8), None
    if world.is_main:
        packed, error = _pack(optimizer.state_dict())
    world.collect_errors(error)
    length = torch.tensor([packed.numel()])
    world.broadcast([length])
    if not world.is_main:
        packed = torch.empty(int(length), dtype=torch.uint8)
    world.broadcast([packed])
    if not world.is_main:
        _load(optimizer, _unpack(packed))


def _pack(state: dict[str, Any]) -> tuple[Tensor, ValueError | None]:
    """The state as bytes, or why it cannot be sent."""
    for group in state["param_groups"]:
        for name, value in group.items():
            if isinstance(value, np.generic):
                group[name] = value.item()
    stream = io.BytesIO()
    try:
        torch.save(state, stream)
        packed = torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)
        _unpack(packed)  # as the other ranks will
    except (pickle.PickleError, AttributeError, TypeError) as error:
        reason = str(error).strip().splitlines()[-1]
        return torch.empty(0, dtype=torch.uint8), ValueError(
            "optimizer: its state holds something other than tensors, numbers and strings, which"
            f" is not sent to other ranks ({reason}); keep such objects out of its param_groups"
        )
    return packed, None


def _unpack(packed: Tensor) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(
        io.BytesIO(packed.numpy().tobytes()), map_location="cpu", weights_only=True
    )
    return state


def _load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`optimizer.load_state_dict(state)`, but into the group dicts that are there."""
    groups = optimizer.param_groups
    optimizer.load_state_dict(state)
    for group, loaded in zip(groups, optimizer.param_groups, strict=True):
        for name, value in loaded.items():
            mine = group.get(name)
            if isinstance(mine, Tensor) and isinstance(value, Tensor):
                mine.copy_(value)
            else:
                group[name] = value
    optimizer.param_groups = groups
