"""Random streams during a replicated warm start: all ranks draw what rank 0 draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from mpisgd.world import World


class RankStreams:
    """Puts rank 0's torch random state on every rank, and remembers each rank's own.

    CNTK gets the same effect from equal seeds; dropout then makes the same choice everywhere, so
    that replicas of the same minibatch stay equal.
    """

    def __init__(self, world: World) -> None:
        """Adopt rank 0's streams. Collective."""
        self._device = world.device if world.device.type == "cuda" else None
        self._is_main = world.is_main
        self._own = self._get()
        adopted = [state.clone() for state in self._own]
        world.broadcast(adopted)
        self._set(adopted)

    def restore(self) -> None:
        """Go back to the streams that this rank had; rank 0's are its own and simply go on."""
        if not self._is_main:
            self._set(self._own)

    def _get(self) -> list[torch.Tensor]:
        states = [torch.get_rng_state()]
        if self._device is not None:
            states.append(torch.cuda.get_rng_state(self._device))
        return states

    def _set(self, states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        if self._device is not None:
            torch.cuda.set_rng_state(states[1], self._device)
