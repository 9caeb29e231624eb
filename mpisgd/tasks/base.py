"""What the trainer sees of a task: minibatches, a loss, and counts to evaluate by.

A task knows nothing of ranks but its shard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Indices: TypeAlias = NDArray[np.int64]
Shard: TypeAlias = "tuple[int, int]"


class Outcome(NamedTuple):
    """What a model did on some samples."""

    loss: Tensor  # scalar, the mean over the samples
    errors: Tensor  # scalar int64, how many were wrong


class Counts(NamedTuple):
    """Sums over samples."""

    samples: int
    errors: int
    loss: float


class Minibatch(NamedTuple):
    """This shard's part of a global minibatch."""

    x: Tensor
    y: Tensor
    samples: int  # in this part; 0 if the minibatch is too small for the shard


class AbstractTask(ABC):
    """Batches, loss and metric; the order of samples is the same at every number of ranks."""

    train_size: int  # samples
    test_size: int

    @abstractmethod
    def minibatch(self, k: int, *, batch: int, shard: Shard) -> Minibatch:
        """Part `shard` of global minibatch number `k`, which has `batch` samples.

        shard (rank, n) is every n-th of them, starting with the rank-th.
        """

    @abstractmethod
    def outcome(self, model: nn.Module, part: Minibatch) -> Outcome:
        """Run `model` on a part that is not empty; the loss can be differentiated."""

    @abstractmethod
    def evaluate(self, model: nn.Module, *, batch: int, shard: Shard) -> Counts:
        """Sums over the shard's test samples: of each `batch` of them every n-th, from the rank-th.

        All shards together are the whole test set once. The model is used as it is, without
        gradients; no random number is drawn.
        """


def no_counts(device: torch.device) -> Outcome:
    """Zero sums on `device`: where a run starts to add up."""
    return Outcome(
        torch.zeros((), dtype=torch.float64, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
    )
