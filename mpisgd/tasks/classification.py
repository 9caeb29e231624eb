"""Classification of images or vectors: cross-entropy, and the fraction of wrong answers."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mpisgd.data.base import AbstractDataset
from mpisgd.data.order import minibatch

from .base import AbstractTask, Counts, Minibatch, Outcome, Shard, no_counts


class Classification(AbstractTask):
    """A data set in memory, its order and its augmentation."""

    def __init__(self, dataset: AbstractDataset, *, seed: int, device: torch.device) -> None:
        """`seed` decides order and augmentation; batches are made on `device`."""
        self.dataset = dataset
        self.train_size = dataset.train_size
        self.test_size = dataset.test_size
        self._seed = seed
        self._device = device
        self._augmentation = dataset.augmentation(seed)

    def minibatch(self, k: int, *, batch: int, shard: Shard) -> Minibatch:
        """See `AbstractTask`."""
        sweeps, indices = minibatch(
            k, batch=batch, seed=self._seed, n_samples=self.train_size, shard=shard
        )
        x, y = self.dataset.train_batch(
            indices, sweeps, device=self._device, augmentation=self._augmentation
        )
        return Minibatch(x, y, len(indices))

    def outcome(self, model: nn.Module, part: Minibatch) -> Outcome:
        """Mean cross-entropy and number of wrong answers."""
        logits = model(part.x)
        wrong = (logits.detach().argmax(1) != part.y).sum()
        return Outcome(F.cross_entropy(logits, part.y), wrong)

    def evaluate(self, model: nn.Module, *, batch: int, shard: Shard) -> Counts:
        """See `AbstractTask`."""
        rank, size = shard
        loss, errors = no_counts(self._device)
        samples = 0
        with torch.no_grad():
            for start in range(0, self.test_size, batch):
                stop = min(start + batch, self.test_size)
                indices = np.arange(start + rank, stop, size, dtype=np.int64)
                if len(indices):
                    x, y = self.dataset.test_batch(indices, device=self._device)
                    outcome = self.outcome(model, Minibatch(x, y, len(indices)))
                    loss += outcome.loss.double() * len(indices)
                    errors += outcome.errors
                    samples += len(indices)
        return Counts(samples, int(errors), float(loss))
