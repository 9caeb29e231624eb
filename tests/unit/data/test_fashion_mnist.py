"""Fashion-MNIST: its places, plain and compressed, and damaged files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from mpisgd.data import fashion_mnist
from mpisgd.data.base import ImageSet

from .layouts import write_fashion, write_idx

IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"


@pytest.fixture(autouse=True)
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Debian's place, empty unless a test fills it."""
    place = tmp_path / "usr"
    monkeypatch.setattr(fashion_mnist, "DEBIAN", place)
    return place


def check(data: ImageSet) -> None:
    assert (data.name, data.classes, data.channels, data.image_size) == ("fashion-mnist", 10, 3, 28)
    assert (data.train_size, data.test_size) == (9, 4)
    assert data.test_labels.tolist() == [0, 1, 2, 3]
    rng = np.random.default_rng(0)
    train, test = rng.integers(0, 256, (9, 28, 28)), rng.integers(0, 256, (4, 28, 28))
    for c in range(3):
        np.testing.assert_array_equal(data.train_images[:, c].numpy(), train)
        np.testing.assert_array_equal(data.test_images[:, c].numpy(), test)


@pytest.mark.parametrize("suffix", [".gz", ""])
@pytest.mark.parametrize("folder", ["fashion-mnist", "FashionMNIST/raw", "."])
def test_places_under_the_data_directory(tmp_path: Path, folder: str, suffix: str) -> None:
    write_fashion(tmp_path / "data" / folder, suffix=suffix)
    check(fashion_mnist.load(tmp_path / "data"))


def test_debian_package(tmp_path: Path, debian: Path) -> None:
    write_fashion(debian)
    check(fashion_mnist.load(tmp_path / "nothing"))


def test_batches_are_grey_in_three_channels(tmp_path: Path) -> None:
    data = fashion_mnist.load(write_fashion(tmp_path / "fashion-mnist"))
    x, _ = data.train_batch(
        np.arange(9),
        np.zeros(9, int),
        device=torch.device("cpu"),
        augmentation=data.augmentation(1),
    )
    assert x.shape == (9, 3, 28, 28)
    assert torch.equal(x[:, 0], x[:, 1])
    assert torch.equal(x[:, 0], x[:, 2])


def test_nothing_there(tmp_path: Path, debian: Path) -> None:
    with pytest.raises(FileNotFoundError, match="fetch fashion-mnist") as caught:
        fashion_mnist.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert str(debian) in str(caught.value)


@pytest.mark.parametrize("name", [LABELS, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_missing_companion_is_named(tmp_path: Path, name: str) -> None:
    folder = write_fashion(tmp_path / "fashion-mnist")
    (folder / f"{name}.gz").unlink()
    with pytest.raises(FileNotFoundError, match=f"lacks {name}"):
        fashion_mnist.load(tmp_path)


@pytest.mark.parametrize("suffix", [".gz", ""])
@pytest.mark.parametrize("kept", [0, 3, 11, 200, -1])
def test_short_files(tmp_path: Path, suffix: str, kept: int) -> None:
    path = write_fashion(tmp_path, suffix=suffix) / f"{IMAGES}{suffix}"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.*fetch fashion-mnist"):
        fashion_mnist.load(tmp_path)


def test_flipped_byte_in_a_compressed_file(tmp_path: Path) -> None:
    path = write_fashion(tmp_path) / f"{IMAGES}.gz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be decompressed"):
        fashion_mnist.load(tmp_path)


def test_more_values_than_announced(tmp_path: Path) -> None:
    path = write_fashion(tmp_path) / f"{LABELS}.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + b"\0"))
    with pytest.raises(ValueError, match=r"has 18 bytes; wanted 17 for \(9,\)"):
        fashion_mnist.load(tmp_path)


def test_images_and_labels_exchanged(tmp_path: Path) -> None:
    folder = write_fashion(tmp_path)
    (folder / f"{LABELS}.gz").replace(folder / f"{IMAGES}.gz")
    write_idx(folder / f"{LABELS}.gz", np.arange(9))
    with pytest.raises(ValueError, match="starts with 00000801; wanted 00000803"):
        fashion_mnist.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (IMAGES, np.zeros((9, 32, 32)), r"images of \(32, 32\); wanted \(28, 28\)"),
        (LABELS, np.arange(8), "9 training images and 8 labels"),
        (LABELS, np.arange(9) + 2, "training labels from 2 to 10"),
    ],
)
def test_files_that_do_not_fit_together(
    tmp_path: Path, name: str, values: np.ndarray, message: str
) -> None:
    write_idx(write_fashion(tmp_path) / f"{name}.gz", values)
    with pytest.raises(ValueError, match=message):
        fashion_mnist.load(tmp_path)
