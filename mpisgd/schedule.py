"""Learning rate and length of a run, in global samples: CNTK's recipe, and the digits' own."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

REFERENCE_BATCH = 128  # the minibatch that the learning rates are meant for

# CNTK Examples/Image/Classification/ResNet/Python/TrainResNet_CIFAR10.py: 160 epochs, a tenth of
# the rate after 80 and after 120. ResNet-110 first trains one epoch at a tenth, then these follow.
EPOCHS = 160
DROPS = (80, 120)
STARTS_SLOWLY = ("resnet110",)

# The embedded digits: 64 sweeps, a tenth of the rate after half and after three quarters of them.
DIGITS_SWEEPS = 64
DIGITS_DROPS = (0.5, 0.75)


@dataclass(frozen=True)
class Schedule:
    """A rate that changes at given numbers of samples."""

    rate: float
    starts: tuple[int, ...] = ()  # samples, ascending, at which the factors come into force
    factors: tuple[float, ...] = (1.0,)  # one more than `starts`

    def at(self, samples: int) -> float:
        """The learning rate of a step that starts with `samples` global samples seen."""
        return self.rate * self.factors[bisect_right(self.starts, samples)]


@dataclass(frozen=True)
class Plan:
    """How long a run is and how it learns."""

    epoch_samples: int  # an epoch ends with the first minibatch that reaches a multiple of this
    total_samples: int  # the run ends with the first minibatch that reaches this
    schedule: Schedule


def scaled_rate(rate: float, scale: float | str, batch: int) -> float:
    """`rate` times 1 ("none"), batch/128 ("linear"), its root ("sqrt"), or a given factor.

    Raises:
        ValueError: the product is not finite.
    """
    if isinstance(scale, str):
        ratio = batch / REFERENCE_BATCH
        scale = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[scale]
    scaled = rate * scale
    if not math.isfinite(scaled):
        raise ValueError(f"--lr: {rate:g} times --lr-scale {scale:g} is {scaled:g}; give less")
    return scaled


def make_plan(
    *,
    model: str,
    data: str,
    train_size: int,
    rate: float,
    epochs: int | None = None,
    epoch_size: int | None = None,
    max_samples: int | None = None,
) -> Plan:
    """The run's length and schedule.

    Args:
        model: its name; resnet110 starts slowly.
        data: the data set's name; digits have a default run of their own.
        train_size: training samples in the set.
        rate: the learning rate at full height.
        epochs: number of epochs; None: the recipe's.
        epoch_size: samples of an epoch; None: the training set.
        max_samples: where the run ends if that is earlier.
    """
    epoch_samples = epoch_size or train_size
    if data == "digits" and epochs is None:
        total = DIGITS_SWEEPS * train_size
        starts = tuple(int(part * total) for part in DIGITS_DROPS)
        factors: tuple[float, ...] = (1.0, 0.1, 0.01)
    else:
        total = (epochs or EPOCHS) * epoch_samples
        slow = model in STARTS_SLOWLY
        begins = (1, *(1 + drop for drop in DROPS)) if slow else DROPS
        starts = tuple(epoch_samples * epoch for epoch in begins)
        factors = (0.1, 1.0, 0.1, 0.01) if slow else (1.0, 0.1, 0.01)
    if max_samples is not None:
        total = min(total, max_samples)
    return Plan(epoch_samples, total, Schedule(rate, starts, factors))
