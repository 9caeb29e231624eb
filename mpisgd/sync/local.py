"""No exchange at all: every rank trains by itself, the baseline for what exchanging costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .base import AbstractLearner, check_keys
from .broadcast import broadcast_model, broadcast_optimizer
from .counting import CountRequest

if TYPE_CHECKING:
    from mpisgd.world import World


class Local(AbstractLearner):
    """Plain training on each rank's shard, from rank 0's initial state. Cost per step: nothing.

    samples_seen is global where backward() is told `global_samples`; otherwise it counts this
    rank's own samples until finish() makes it the exact sum.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        world: World,
        scaler: Any | None = None,
    ) -> None:
        """Broadcast rank 0's parameters, buffers and optimizer state. Collective."""
        super().__init__(model, optimizer, world=world, scaler=scaler)
        world.check_same("learner", self._state_items())
        self.comm = world.dup()
        broadcast_model(model, world)
        broadcast_optimizer(optimizer, world)
        self._clean: bool | None = None
        self._own_samples = 0  # of this rank, in steps whose global count nobody gave

    def _start_step(self) -> None:
        """There is nothing to start."""

    def payload_bytes(self, bits: int) -> int:
        """Bytes that an exchange at 32 bits would move."""
        if bits != 32:
            raise ValueError(
                f"payload_bytes: got {bits}; local training has no codes, only 32 bits"
            )
        return sum(4 * parameter.numel() for _, parameter in self.parameters)

    def wait(self) -> bool:
        """p.grad is this rank's own mean; False if it is not finite or there was no sample."""
        if self._clean is None:
            if not self._open:
                raise RuntimeError(
                    "wait: nothing to wait for; call backward() outside no_sync() first"
                )
            self._clean = self._local_weight > 0 and self._finish_alone()
            if not self._clean:
                self._drop_gradients()
        return self._clean

    def step(self) -> bool:
        """wait(), then the optimizer step unless skipped. True if the weights moved."""
        clean = self.wait()
        if self._global_samples is None:
            self.samples_seen += self._local_samples
            self._own_samples += self._local_samples
        else:
            self.samples_seen += self._global_samples
        if self._local_weight > 0:
            self._apply(clean)
        else:
            self._reset_step()
        self._clean = None
        return clean

    def finish(self) -> None:
        """Make samples_seen the exact sum over ranks. Collective."""
        self._check_between_steps("finish")
        if not self._finished and self.world.size > 1:
            own = self._own_samples
            total = CountRequest(self.comm, self.wire, samples=own, weight=0.0).result()
            self.samples_seen += total.samples - own
        if not self._finished:
            self.world.free(self.comm)
        self._finished = True

    def state_dict(self) -> dict[str, Any]:
        """Counters of this rank."""
        counters = ("samples_seen", "steps", "skipped_steps", "_own_samples")
        return {name.lstrip("_"): getattr(self, name) for name in counters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave.

        Raises:
            RuntimeError: between backward() and step().
            ValueError: not the state of such a learner.
        """
        self._check_between_steps("load_state_dict")
        check_keys(state, ("samples_seen", "steps", "skipped_steps", "own_samples"))
        for name in ("samples_seen", "steps", "skipped_steps"):
            setattr(self, name, int(state[name]))
        self._own_samples = int(state["own_samples"])
