"""Writes small data sets in their published layouts."""

from __future__ import annotations

import gzip
import pickle
import tarfile
from pathlib import Path

import numpy as np

from mpisgd.data import cifar10

RECORDS = 12  # images in a file, where the published ones have 10,000


def images_of(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (12, 3, 32, 32) and labels (12,) of file number k, 0 to 5."""
    rng = np.random.default_rng(k)
    return (
        rng.integers(0, 256, (RECORDS, 3, 32, 32), dtype=np.uint8),
        rng.integers(0, 10, RECORDS),
    )


def write_binary(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for k, name in enumerate(cifar10.LAYOUTS[0].members):
        images, labels = images_of(k)
        records = np.concatenate([labels.astype(np.uint8)[:, None], images.reshape(RECORDS, -1)], 1)
        records.tofile(folder / name)
    (folder / "batches.meta.txt").write_text("airplane\n")
    return folder


def write_python(folder: Path, *, protocol: int = 2, text: bool = False) -> Path:
    folder.mkdir(parents=True)
    for k, name in enumerate(cifar10.LAYOUTS[1].members):
        images, labels = images_of(k)
        entries = {
            "data": images.reshape(RECORDS, -1),
            "labels": labels.tolist(),
            "batch_label": "x",
        }
        batch = {key if text else key.encode(): value for key, value in entries.items()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol))
    return folder


def pack(folder: Path, archive: Path) -> Path:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    return archive


def write_idx(path: Path, values: np.ndarray) -> None:
    lengths = np.array(values.shape, ">u4").tobytes()
    content = bytes((0, 0, 8, values.ndim)) + lengths + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_fashion(folder: Path, *, suffix: str = ".gz") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, count in (("train", 9), ("t10k", 4)):
        images = rng.integers(0, 256, (count, 28, 28))
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", np.arange(count))
    return folder
