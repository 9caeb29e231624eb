"""The model that is evaluated: a copy, so that evaluating never changes a run."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from mpisgd.world import World


class PublishedModel:
    """A copy of a model, the same on all ranks after every `refill`.

    Training keeps each rank's own batch-norm statistics. The copy gets their average: the mean of
    the means, and as variance the mean of the variances plus the variance of the means, which is
    the variance of all ranks' samples together.
    """

    def __init__(self, model: nn.Module, world: World, *, from_main: bool = False) -> None:
        """Copy `model`, once.

        Args:
            model: the model that trains; it is never written to.
            world: the ranks that publish together.
            from_main: publish rank 0's parameters and statistics (ranks that train alone have
                different ones, whose average is no model); otherwise parameters are the same on all
                ranks already.
        """
        self._source = model
        self._world = world
        self._from_main = from_main
        self.model = copy.deepcopy(model)
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None

    def refill(self) -> nn.Module:
        """Bring the copy up to date, in evaluation mode. Collective if there is more than one rank.

        Cost: two sums of 8 bytes a channel of batch norm, and the other buffers once; with
        `from_main` the model once.
        """
        with torch.no_grad():
            self.model.load_state_dict(self._source.state_dict())
            if self._world.size > 1:
                self._agree()
        return self.model.eval()

    def _agree(self) -> None:
        """Make the copies equal."""
        if self._from_main:
            self._world.broadcast([*self.model.parameters(), *self.model.buffers()])
            return
        pairs = statistics_of(self.model)
        averaged = {id(tensor) for pair in pairs for tensor in pair}
        others = [buffer for buffer in self.model.buffers() if id(buffer) not in averaged]
        if others:  # counters, and what a model keeps for itself: rank 0's
            self._world.broadcast(others)
        if pairs:
            average(pairs, self._world)


def statistics_of(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """(running mean, running variance), each (channels,), of every layer that keeps them."""
    found = (
        (m, getattr(m, "running_mean", None), getattr(m, "running_var", None))
        for m in model.modules()
    )
    return [(mean, var) for _, mean, var in found if mean is not None and var is not None]


def average(pairs: list[tuple[Tensor, Tensor]], world: World) -> None:
    """Replace means and variances by those of all ranks together, in place. Collective.

    Both are summed in float64, means first: a variance as a mean of squares less a squared mean
    would lose its digits where the mean is large.
    """
    means = _flat([mean for mean, _ in pairs])
    variances = _flat([variance for _, variance in pairs])
    together = world.sum(means) / world.size
    spread = world.sum(variances + (means - together) ** 2) / world.size
    _fill([mean for mean, _ in pairs], together)
    _fill([variance for _, variance in pairs], spread)


def _flat(tensors: list[Tensor]) -> np.ndarray:
    """All values in one float64 vector on the host."""
    values: np.ndarray = torch.cat([t.detach().reshape(-1).double().cpu() for t in tensors]).numpy()
    return values


def _fill(tensors: list[Tensor], values: np.ndarray) -> None:
    """The inverse of `_flat`, rounded to each tensor's dtype."""
    parts = torch.split(torch.from_numpy(values), [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.reshape(tensor.shape))
