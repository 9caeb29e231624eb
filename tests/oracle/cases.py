"""Small models and their batches, chosen for what they exercise; all ranks can draw all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

Loss = Callable[[nn.Module], torch.Tensor]


class Case(NamedTuple):
    """A model, the loss of a batch, and the layout options it is trained with."""

    build: Callable[[], nn.Module]
    loss: Callable[[np.random.Generator, int, int, int], Loss]  # draws, samples, step, rank
    column: int = 512
    min_numel: int = 4096


def floats(draws: np.random.Generator, *shape: int) -> torch.Tensor:
    """(shape) float32, standard normal."""
    return torch.from_numpy(draws.standard_normal(shape, dtype=np.float32))


def classes(draws: np.random.Generator, count: int, *shape: int) -> torch.Tensor:
    """(shape) int64 in [0, count)."""
    return torch.from_numpy(draws.integers(0, count, shape))


def mlp() -> nn.Module:
    """The first matrix is coded and its last column is short: 6720 = 13 * 512 + 64."""
    return nn.Sequential(nn.Linear(70, 96), nn.ReLU(), nn.Linear(96, 10))


def vectors_loss(draws: np.random.Generator, samples: int, step: int, rank: int) -> Loss:
    x, y = floats(draws, samples, 70), classes(draws, 10, samples)
    return lambda model: F.cross_entropy(model(x), y)


def mlp_of(dtype: torch.dtype) -> Callable[[], nn.Module]:
    return lambda: mlp().to(dtype)


def vectors_loss_of(dtype: torch.dtype) -> Callable[[np.random.Generator, int, int, int], Loss]:
    """The loss itself is taken at float32, so a loss scale overflows in the gradients first."""

    def make(draws: np.random.Generator, samples: int, step: int, rank: int) -> Loss:
        x, y = floats(draws, samples, 70).to(dtype), classes(draws, 10, samples)
        return lambda model: F.cross_entropy(model(x).float(), y)

    return make


def convolutions() -> nn.Module:
    """Batch norm (buffers differ by rank), channels_last weights; 4608 = 9 * 512 are coded."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 5),
    )
    return model.to(memory_format=torch.channels_last)


def images_loss(draws: np.random.Generator, samples: int, step: int, rank: int) -> Loss:
    x = floats(draws, samples, 3, 9, 9).to(memory_format=torch.channels_last)
    y = classes(draws, 5, samples)
    return lambda model: F.cross_entropy(model(x), y)


class WordBag(nn.Module):
    """A large gradient with columns that are all zero on a rank; an empty and a frozen tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(150, 33)
        self.nothing = nn.Parameter(torch.zeros(0, 7))
        self.still = nn.Parameter(torch.ones(33, 33), requires_grad=False)
        self.out = nn.Linear(33, 9)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(words).mean(1) @ self.still)


def words_loss(draws: np.random.Generator, samples: int, step: int, rank: int) -> Loss:
    words, y = classes(draws, 150, samples, 4), classes(draws, 9, samples)
    return lambda model: F.cross_entropy(model(words), y)


class TiedWords(nn.Module):
    """The embedding is the output layer, too: one parameter, two gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(90, 64)
        self.mix = nn.Linear(64, 64)
        self.out = nn.Linear(64, 90)
        self.out.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.mix(self.words(words))))


def next_word_loss(draws: np.random.Generator, samples: int, step: int, rank: int) -> Loss:
    words, y = classes(draws, 90, samples, 3), classes(draws, 90, samples, 3)
    return lambda model: F.cross_entropy(model(words).flatten(0, 1), y.flatten())


class Heads(nn.Module):
    """Three heads, coded and raw, of which a step uses some on some ranks and none on others."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(20, 65)
        self.heads = nn.ModuleList(nn.Linear(65, 64) for _ in range(3))

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        return self.heads[head](torch.tanh(self.trunk(x)))


def heads_loss(draws: np.random.Generator, samples: int, step: int, rank: int) -> Loss:
    x, y = floats(draws, samples, 20), classes(draws, 64, samples)
    head = (step // 7 + (rank > 0 and step % 3 == 0)) % 3
    return lambda model: F.cross_entropy(model(x, head), y)


CASES = {
    "mlp": Case(mlp, vectors_loss),
    "mlp-short-columns": Case(mlp, vectors_loss, column=100, min_numel=64),
    "mlp-one-long-column": Case(mlp, vectors_loss, column=100_000, min_numel=1),
    "bfloat16": Case(mlp_of(torch.bfloat16), vectors_loss_of(torch.bfloat16)),
    "float16": Case(mlp_of(torch.float16), vectors_loss_of(torch.float16)),
    "convolutions": Case(convolutions, images_loss),
    "embedding": Case(WordBag, words_loss, column=77, min_numel=256),
    "tied": Case(TiedWords, next_word_loss),
    "heads": Case(Heads, heads_loss, min_numel=1024),
}
