"""Fashion-MNIST from its idx files, plain or .gz.

H. Xiao et al., arXiv 1708.07747. Debian has the files in its package dataset-fashion-mnist.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from .base import ImageSet
from .grey import repeated

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
# Under the data directory: our own fetch, torchvision's place, the directory itself.
FOLDERS = ("fashion-mnist", "FashionMNIST/raw", ".")
TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
REMEDY = "get it again with: python -m mpisgd.data fetch fashion-mnist"


def load(directory: Path) -> ImageSet:
    """60,000 training and 10,000 test images, grey 28x28 repeated to three channels.

    Raises:
        FileNotFoundError: if neither `directory` nor Debian's place has the files.
        ValueError: if a file is short or corrupt.
    """
    place = find(directory)
    if place is None:
        raise FileNotFoundError(
            f"fashion-mnist: nothing found in {directory} nor in {DEBIAN}; wanted {TRAIN[0]}.gz "
            "and its "
            "three companions; name their place with --data-dir, install Debian's "
            "dataset-fashion-mnist, "
            "or get them with: python -m mpisgd.data fetch fashion-mnist"
        )
    train_images, train_labels = _part(place, *TRAIN)
    test_images, test_labels = _part(place, *TEST)
    return ImageSet(
        name="fashion-mnist",
        classes=10,
        train_images=repeated(train_images),
        train_labels=train_labels,
        test_images=repeated(test_images),
        test_labels=test_labels,
        mean=(72.94,) * 3,  # of the published training set
        std=(90.02,) * 3,
        shift=2,
        flip=True,
        fill=0,
    )


def find(directory: Path) -> Path | None:
    """The folder with the first of the four files; None if there is none."""
    for place in (*(directory / folder for folder in FOLDERS), DEBIAN):
        if _file(place, TRAIN[0]) is not None:
            return place
    return None


def _file(place: Path, name: str) -> Path | None:
    return next((p for p in (place / f"{name}.gz", place / name) if p.is_file()), None)


def _part(place: Path, images_name: str, labels_name: str) -> tuple[torch.Tensor, torch.Tensor]:
    images = read_idx(_existing(place, images_name), dimensions=3)
    labels = read_idx(_existing(place, labels_name), dimensions=1)
    if images.shape[1:] != (28, 28):
        raise ValueError(
            f"fashion-mnist: {place}/{images_name} holds images of {images.shape[1:]}; wanted (28, "
            "28); "
            f"{REMEDY}"
        )
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


def _existing(place: Path, name: str) -> Path:
    path = _file(place, name)
    if path is None:
        raise FileNotFoundError(
            f"fashion-mnist: {place} lacks {name}.gz; wanted {', '.join(TRAIN + TEST)}; {REMEDY}"
        )
    return path


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """A uint8 array from an idx file.

    Two zero bytes, type 8, the number of dimensions, big-endian lengths, then the values.

    Raises:
        ValueError: if the header or the number of values is not as announced, or the compression is
            damaged.
    """
    content = _content(path)
    header = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < header:
        raise ValueError(
            f"fashion-mnist: {path} starts with {content[:4].hex() or 'nothing'}; wanted 000008"
            f"{dimensions:02x} (an idx file of bytes in {dimensions} dimensions); {REMEDY}"
        )
    shape = tuple(int(x) for x in np.frombuffer(content, ">u4", dimensions, 4))
    wanted = header + int(np.prod(shape, dtype=object))
    if len(content) != wanted:
        raise ValueError(
            f"fashion-mnist: {path} has {len(content):,} bytes; wanted {wanted:,} for {shape}; the "
            "file is "
            f"short or corrupt, {REMEDY}"
        )
    return np.frombuffer(bytearray(content), np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"fashion-mnist: {path} cannot be decompressed ({error}); the file is short or "
            "corrupt, "
            f"{REMEDY}"
        ) from error
