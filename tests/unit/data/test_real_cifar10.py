"""The real images, where they are: all 60,000 through both ways in."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import torch

from mpisgd.data import load
from mpisgd.data.order import minibatch


def test_real_images(real_data: Path, tmp_path: Path) -> None:
    dataset = load("auto", data_dir=real_data).dataset
    assert (dataset.name, dataset.train_size, dataset.test_size) == ("cifar10", 50_000, 10_000)
    assert torch.bincount(dataset.train_labels).tolist() == [5000] * 10
    assert torch.bincount(dataset.test_labels).tolist() == [1000] * 10
    every_hundredth = np.arange(0, 50_000, 100)
    device = torch.device("cpu")
    x, _ = dataset.train_batch(
        every_hundredth, every_hundredth * 0, device=device, augmentation=None
    )
    assert x.mean((0, 2, 3)).abs().max() < 0.1
    assert (x.std((0, 2, 3)) - 1).abs().max() < 0.1

    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=0) as tar:
        tar.add(real_data / "cifar-10-batches-bin", "cifar-10-batches-bin")
    packed = load("cifar10", data_dir=tmp_path).dataset
    for k in range(3):
        sweeps, indices = minibatch(k, batch=128, seed=1, n_samples=50_000)
        rule = dataset.augmentation(1)
        for ours, theirs in zip(
            dataset.train_batch(indices, sweeps, device=device, augmentation=rule),
            packed.train_batch(indices, sweeps, device=device, augmentation=rule),
            strict=True,
        ):
            assert torch.equal(ours, theirs)
