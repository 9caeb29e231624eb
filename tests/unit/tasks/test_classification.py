from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mpisgd.data.base import ImageSet
from mpisgd.data.order import minibatch
from mpisgd.tasks.base import Minibatch
from mpisgd.tasks.classification import Classification

CPU = torch.device("cpu")


def images(train: int = 50, test: int = 37) -> ImageSet:
    generator = torch.Generator().manual_seed(1)

    def some(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = torch.randint(0, 256, (count, 3, 4, 4), generator=generator, dtype=torch.uint8)
        return pixels, torch.randint(0, 5, (count,), generator=generator)

    (train_images, train_labels), (test_images, test_labels) = some(train), some(test)
    return ImageSet(
        name="made up",
        classes=5,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        mean=(128.0,) * 3,
        std=(64.0,) * 3,
        shift=1,
        flip=True,
        fill=0,
    )


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 5))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_parts_of_a_minibatch_are_the_whole(size):
    task = Classification(images(), seed=3, device=CPU)
    whole = task.minibatch(2, batch=21, shard=(0, 1))
    assert whole.samples == 21
    _, indices = minibatch(2, batch=21, seed=3, n_samples=50)
    assert torch.equal(whole.y, images().train_labels[torch.from_numpy(indices.copy())])
    for rank in range(size):
        part = task.minibatch(2, batch=21, shard=(rank, size))
        assert part.samples == len(range(rank, 21, size))
        assert torch.equal(part.x, whole.x[rank::size])
        assert torch.equal(part.y, whole.y[rank::size])


def test_a_part_may_be_empty():
    part = Classification(images(), seed=3, device=CPU).minibatch(0, batch=2, shard=(3, 4))
    assert part.samples == 0


def test_outcome_is_mean_cross_entropy_and_wrong_answers():
    x = torch.eye(3)
    y = torch.tensor([0, 1, 0])
    task = Classification(images(), seed=0, device=CPU)
    outcome = task.outcome(nn.Identity(), Minibatch(x, y, 3))
    logits = np.eye(3)
    log_sum = np.log(np.exp(logits).sum(1))
    assert float(outcome.loss) == pytest.approx((log_sum - logits[range(3), y.numpy()]).mean())
    assert int(outcome.errors) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 4, 40])
@pytest.mark.parametrize("batch", [8, 128])
def test_evaluation_counts_every_test_sample_once(size, batch):
    task = Classification(images(), seed=0, device=CPU)
    net = model()
    x, y = images().test_batch(np.arange(37), device=CPU)
    logits = net(x).detach()
    expected_loss = float(nn.functional.cross_entropy(logits, y, reduction="sum"))
    parts = [task.evaluate(net, batch=batch, shard=(rank, size)) for rank in range(size)]
    assert sum(part.samples for part in parts) == 37
    assert sum(part.errors for part in parts) == int((logits.argmax(1) != y).sum())
    assert sum(part.loss for part in parts) == pytest.approx(expected_loss, rel=1e-6)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_evaluation_draws_no_random_number():
    before = torch.get_rng_state()
    task = Classification(images(), seed=0, device=CPU)
    net = model().eval()
    before = torch.get_rng_state()
    task.evaluate(net, batch=16, shard=(0, 1))
    assert torch.equal(before, torch.get_rng_state())
