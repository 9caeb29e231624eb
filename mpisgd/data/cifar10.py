"""CIFAR-10 from its published files.

A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.

Two layouts, binary and python (pickles), each as a directory or as the .tar.gz it comes in.
Archives are read, never extracted; pickles go through `cifar10_pickle`, which runs no code from the
file.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .base import ImageSet
from .cifar10_pickle import load_batch

RECORDS = 10_000  # images in each of the six files
PIXELS = 3 * 32 * 32
REMEDY = (
    "remove the folder or archive and get the set again with: python -m mpisgd.data fetch cifar10"
)
# A member of a published archive has about 31 MB; more than this is no CIFAR-10.
LARGEST_MEMBER_BYTES = 64 << 20

Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]


class Layout(NamedTuple):
    """One of the two published forms."""

    folder: str
    archive: str
    members: tuple[str, ...]  # five training files and the test file
    decode: Callable[[bytes, str], Batch]


def decode_binary(content: bytes, path: str) -> Batch:
    """Records of a label and 3,072 values: images (n, 3, 32, 32) uint8 and labels (n,) int64."""
    wanted = RECORDS * (1 + PIXELS)
    if len(content) != wanted:
        raise ValueError(
            f"cifar10: {path} has {len(content):,} bytes; wanted {wanted:,} ({RECORDS:,} records "
            "of "
            f"{1 + PIXELS:,}); the file is short or corrupt, {REMEDY}"
        )
    records = np.frombuffer(content, np.uint8).reshape(RECORDS, 1 + PIXELS)
    return records[:, 1:].reshape(RECORDS, 3, 32, 32), records[:, 0].astype(np.int64)


def decode_python(content: bytes, path: str) -> Batch:
    """A pickled dictionary with `data` (n, 3072) uint8 and `labels`: as `decode_binary`."""
    try:
        data, labels = load_batch(content)
    except ValueError as error:
        raise ValueError(f"cifar10: {path}: {error}; the file is corrupt, {REMEDY}") from error
    if data.shape != (RECORDS, PIXELS) or labels.shape != (RECORDS,):
        raise ValueError(
            f"cifar10: {path} has data of shape {data.shape} and labels of shape {labels.shape}; "
            "wanted "
            f"({RECORDS}, {PIXELS}) and ({RECORDS},); the file is short or corrupt, {REMEDY}"
        )
    return data.reshape(RECORDS, 3, 32, 32), labels


LAYOUTS = (
    Layout(
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
        (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"),
        decode_binary,
    ),
    Layout(
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
        (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"),
        decode_python,
    ),
)


def find(directory: Path) -> Path | None:
    """The folder or archive with CIFAR-10: `directory` itself or one under it, or None."""
    if directory.is_file():
        return directory  # whatever it is: if it is no archive, reading it says so
    for layout in LAYOUTS:
        if any((directory / member).is_file() for member in layout.members):
            return directory
    # A folder of the published name is CIFAR-10 even where its files are missing: that is an error
    # to report.
    for layout in LAYOUTS:
        if directory.name == layout.folder and directory.is_dir():
            return directory
    for name in (*(x.folder for x in LAYOUTS), *(x.archive for x in LAYOUTS)):
        if (directory / name).exists():
            return directory / name
    return None


def load(directory: Path) -> ImageSet:
    """50,000 training and 10,000 test images, 3x32x32.

    Raises:
        FileNotFoundError: if `directory` does not hold CIFAR-10, or holds only some of its files.
        ValueError: if a file is short or corrupt.
    """
    place = find(directory)
    if place is None:
        raise FileNotFoundError(
            f"cifar10: nothing found in {directory}; wanted {LAYOUTS[0].folder}/, "
            f"{LAYOUTS[1].folder}/ or "
            "one of their .tar.gz; name its place with --data-dir, or get it with: "
            "python -m mpisgd.data fetch cifar10"
        )
    contents = _archive(place) if place.is_file() else _folder(place)
    layout = _layout_of(contents, place)
    images = np.empty((6, RECORDS, 3, 32, 32), np.uint8)
    labels = np.empty((6, RECORDS), np.int64)
    for k, name in enumerate(layout.members):
        # Popped: every rank of a node holds the set, so the raw bytes go as soon as they can.
        images[k], labels[k] = layout.decode(contents.pop(name), f"{place}/{name}")
    return ImageSet(
        name="cifar10",
        classes=10,
        train_images=torch.from_numpy(images[:5].reshape(-1, 3, 32, 32)),
        train_labels=torch.from_numpy(labels[:5].reshape(-1)),
        test_images=torch.from_numpy(images[5]),
        test_labels=torch.from_numpy(labels[5]),
        # Of the published training set (D. Page, cifar10-fast).
        mean=(125.31, 122.95, 113.87),
        std=(62.99, 62.09, 66.70),
        # CNTK's ResNet example crops 32 of 40 pixels, padded with 128.
        shift=4,
        flip=True,
        fill=128,
    )


def _layout_of(names: Mapping[str, bytes], place: Path) -> Layout:
    """The layout whose files are there. Raises FileNotFoundError naming what is missing."""
    layout = max(LAYOUTS, key=lambda x: sum(member in names for member in x.members))
    missing = [member for member in layout.members if member not in names]
    if missing:
        raise FileNotFoundError(
            f"cifar10: {place} lacks {', '.join(missing)}; wanted {', '.join(layout.members)}; "
            f"{REMEDY}"
        )
    return layout


def _folder(place: Path) -> dict[str, bytes]:
    for layout in LAYOUTS:
        contents = {x: (place / x).read_bytes() for x in layout.members if (place / x).is_file()}
        if contents:
            return contents
    return {}


def _archive(place: Path) -> dict[str, bytes]:
    """The files of either layout in a .tar.gz, by name; paths inside it are not used."""
    wanted = {member for layout in LAYOUTS for member in layout.members}
    contents: dict[str, bytes] = {}
    try:
        with gzip.open(place) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    name = member.name.rsplit("/", 1)[-1]
                    if name in wanted and member.isfile():
                        contents[name] = _member(archive, member)
            # gzip compares its checksum at the very end, which tar has no reason to read.
            while stream.read(1 << 20):
                pass
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise ValueError(
            f"cifar10: {place} cannot be read as a .tar.gz ({error}); the file is short or "
            "corrupt, "
            f"{REMEDY}"
        ) from error
    return contents


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if member.size > LARGEST_MEMBER_BYTES:
        raise tarfile.ReadError(f"{member.name} has {member.size:,} bytes")
    file = archive.extractfile(member)
    assert file is not None, "only called for regular files"
    return file.read()
