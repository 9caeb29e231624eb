"""Rank 0's parameters, buffers and optimizer state on every rank."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from mpisgd.world import World


def broadcast_model(model: nn.Module, world: World) -> None:
    """Overwrite parameters and buffers by rank 0's. Collective. Cost: their bytes, once."""
    with torch.no_grad():
        world.broadcast([*model.parameters(), *model.buffers()])


def broadcast_optimizer(optimizer: torch.optim.Optimizer, world: World) -> None:
    """Overwrite optimizer state and hyper-parameters by rank 0's. Collective.

    Cost: the serialised state once, set-up only.
    """
    packed = _pack(optimizer.state_dict()) if world.is_main else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([packed.numel()])
    world.broadcast([length])
    if not world.is_main:
        packed = torch.empty(int(length), dtype=torch.uint8)
    world.broadcast([packed])
    if not world.is_main:
        optimizer.load_state_dict(_unpack(packed))


def _pack(state: dict[str, Any]) -> Tensor:
    stream = io.BytesIO()
    torch.save(state, stream)
    return torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)


def _unpack(packed: Tensor) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(
        io.BytesIO(packed.numpy().tobytes()), map_location="cpu", weights_only=True
    )
    return state
