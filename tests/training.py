"""A small training job that tests of learners share."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import nn

import mpisgd

FEATURES, CLASSES = 80, 10


def network(seed: int = 0) -> nn.Module:
    """A small net whose two matrices are coded with min_numel=512, without batch norm."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, CLASSES)
    )


def data(step: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The global minibatch of a step, the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(batch, FEATURES, generator=generator)
    return x, torch.randint(0, CLASSES, (batch,), generator=generator)


def parts(batch: int, size: int, shares: str) -> list[slice]:
    """How a minibatch is dealt out: equally, unequally, or with empty ranks."""
    if shares == "equal":
        cuts = [batch * r // size for r in range(size + 1)]
    elif shares == "unequal":
        weights = np.cumsum([0, *range(1, size + 1)])
        cuts = [batch * int(w) // int(weights[-1]) for w in weights]
    else:  # all in the last rank
        cuts = [0] * size + [batch]
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


def make(world, model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    options.setdefault("min_numel", 512)
    return mpisgd.DataParallel(model, optimizer, world=world, **options)


def train(world, steps=20, batch=24, shares="equal", known=False, **options):
    """Train `network()` and return it with its learner and the losses of the whole minibatch."""
    model = network()
    learner = make(world, model, **options)
    losses = []
    for step in range(steps):
        x, y = data(step, batch)
        with torch.no_grad():
            losses.append(float(nn.functional.cross_entropy(model(x), y)))
        mine = parts(batch, world.size, shares)[world.rank]
        x, y = x[mine], y[mine]
        loss = nn.functional.cross_entropy(model(x), y) if len(x) else None
        learner.backward(loss, samples=len(x), global_samples=batch if known else None)
        assert learner.step()
    learner.finish()
    return model, learner, losses


def alone(steps=20, batch=24):
    """Plain torch on one process."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    losses = []
    for step in range(steps):
        x, y = data(step, batch)
        loss = nn.functional.cross_entropy(model(x), y)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, losses


def distance(one: nn.Module, two: nn.Module) -> float:
    a = torch.cat([p.detach().reshape(-1) for p in one.parameters()])
    b = torch.cat([p.detach().reshape(-1) for p in two.parameters()])
    return float((a - b).norm() / b.norm())
