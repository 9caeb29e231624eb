"""CIFAR-10: both layouts in all places, and everything that can be wrong with the files."""

from __future__ import annotations

import pickle
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from mpisgd.data import cifar10
from mpisgd.data.base import ImageSet

from .layouts import RECORDS, images_of, pack, write_binary, write_python

pytestmark = pytest.mark.usefixtures("few_records")

WRITERS = {"cifar-10-batches-bin": write_binary, "cifar-10-batches-py": write_python}
ARCHIVES = {
    "cifar-10-batches-bin": "cifar-10-binary.tar.gz",
    "cifar-10-batches-py": "cifar-10-python.tar.gz",
}


def check(data: ImageSet) -> None:
    assert (data.name, data.classes, data.channels, data.image_size) == ("cifar10", 10, 3, 32)
    assert (data.train_size, data.test_size) == (5 * RECORDS, RECORDS)
    for k in range(6):
        images, labels = images_of(k)
        part = slice(k * RECORDS, (k + 1) * RECORDS) if k < 5 else slice(None)
        got = (
            (data.train_images, data.train_labels)
            if k < 5
            else (data.test_images, data.test_labels)
        )
        assert got[0].dtype == torch.uint8
        np.testing.assert_array_equal(got[0][part].numpy(), images)
        np.testing.assert_array_equal(got[1][part].numpy(), labels)


@pytest.mark.parametrize("folder", list(WRITERS))
@pytest.mark.parametrize("place", ["itself", "parent", "renamed", "archive", "archive in parent"])
def test_every_layout_in_every_place(tmp_path: Path, folder: str, place: str) -> None:
    written = WRITERS[folder](tmp_path / folder)
    archive = tmp_path / ARCHIVES[folder]
    if place == "renamed":
        written = written.rename(tmp_path / "images")
    if place.startswith("archive"):
        pack(written, archive)
        shutil.rmtree(written)
    where = {"itself": written, "renamed": written, "archive": archive}.get(place, tmp_path)
    check(cifar10.load(where))


@pytest.mark.parametrize("protocol", range(5))  # 2 is that of the published files
@pytest.mark.parametrize("text", [False, True])
def test_pickles_of_every_protocol(tmp_path: Path, protocol: int, text: bool) -> None:
    check(cifar10.load(write_python(tmp_path / "p", protocol=protocol, text=text)))


def test_nothing_there(tmp_path: Path) -> None:
    assert cifar10.find(tmp_path) is None
    with pytest.raises(FileNotFoundError, match="fetch cifar10") as caught:
        cifar10.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("folder", list(WRITERS))
@pytest.mark.parametrize("gone", [0, 4, 5])
def test_missing_file_is_named(tmp_path: Path, folder: str, gone: int) -> None:
    written = WRITERS[folder](tmp_path / folder)
    names = next(x.members for x in cifar10.LAYOUTS if x.folder == folder)
    (written / names[gone]).unlink()
    with pytest.raises(FileNotFoundError, match=f"lacks {names[gone]}; wanted .*fetch cifar10"):
        cifar10.load(tmp_path)


def test_empty_folder_of_the_published_name_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for where in (tmp_path, tmp_path / "cifar-10-batches-bin"):
        with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-bin lacks data_batch_1"):
            cifar10.load(where)


@pytest.mark.parametrize("kept", [0, 3073 * 5, 3073 * RECORDS - 1])
def test_truncated_binary_file(tmp_path: Path, kept: int) -> None:
    path = write_binary(tmp_path / "cifar-10-batches-bin") / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"data_batch_3\.bin has .* short or corrupt") as caught:
        cifar10.load(tmp_path)
    assert str(path) in str(caught.value)
    assert f"{kept:,} bytes" in str(caught.value)


def test_overlong_binary_file(tmp_path: Path) -> None:
    path = write_binary(tmp_path / "b") / "test_batch.bin"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ValueError, match=r"test_batch\.bin has"):
        cifar10.load(path.parent)


def test_label_out_of_range(tmp_path: Path) -> None:
    path = write_binary(tmp_path / "b") / "data_batch_2.bin"
    path.write_bytes(bytes([10]) + path.read_bytes()[1:])
    with pytest.raises(ValueError, match="training labels from 0 to 10; wanted 0 to 9"):
        cifar10.load(path.parent)


def test_truncated_pickle(tmp_path: Path) -> None:
    path = write_python(tmp_path / "p") / "data_batch_4"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"data_batch_4: not a readable pickle .*fetch cifar10"):
        cifar10.load(path.parent)


def test_pickle_with_too_few_images(tmp_path: Path) -> None:
    path = write_python(tmp_path / "p") / "data_batch_1"
    batch = {"data": np.zeros((3, 3072), np.uint8), "labels": [0, 1, 2]}
    path.write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(ValueError, match=r"data of shape \(3, 3072\)"):
        cifar10.load(path.parent)


@pytest.mark.parametrize("kept", [0, 10, 2000])
def test_truncated_archive(tmp_path: Path, kept: int) -> None:
    archive = pack(write_binary(tmp_path / "cifar-10-batches-bin"), tmp_path / "x.tar.gz")
    archive.write_bytes(archive.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"cannot be read as a \.tar\.gz") as caught:
        cifar10.load(archive)
    assert str(archive) in str(caught.value)


def test_flipped_byte_in_an_archive(tmp_path: Path) -> None:
    archive = pack(write_binary(tmp_path / "cifar-10-batches-bin"), tmp_path / "x.tar.gz")
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.tar\.gz"):
        cifar10.load(archive)


def test_file_that_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(ValueError, match=r"notes\.txt cannot be read as a \.tar\.gz"):
        cifar10.load(path)


def test_archive_is_read_and_never_extracted(tmp_path: Path) -> None:
    written = write_binary(tmp_path / "cifar-10-batches-bin")
    archive = tmp_path / "in" / "x.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(written.iterdir()):
            tar.add(path, f"../../evil/{path.name}")
    shutil.rmtree(written)
    check(cifar10.load(archive))
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["in", "x.tar.gz"]


def test_links_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    written = write_binary(tmp_path / "cifar-10-batches-bin")
    (written / "test_batch.bin").rename(tmp_path / "outside.bin")
    (written / "test_batch.bin").symlink_to(tmp_path / "outside.bin")
    archive = pack(written, tmp_path / "x.tar.gz")
    with pytest.raises(FileNotFoundError, match=r"lacks test_batch\.bin"):
        cifar10.load(archive)


def test_huge_member_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = pack(write_binary(tmp_path / "cifar-10-batches-bin"), tmp_path / "x.tar.gz")
    monkeypatch.setattr(cifar10, "LARGEST_MEMBER_BYTES", 1000)
    with pytest.raises(ValueError, match="bytes"):
        cifar10.load(archive)
