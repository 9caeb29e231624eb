"""From the option to a set: names, `auto`, the data directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mpisgd.data import DATA, VECTOR_DATA, data_directory, load
from mpisgd.data.base import AbstractDataset

from .layouts import pack, write_binary, write_python

HINT = "get it with: python -m mpisgd.data fetch cifar10"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, so that no ./data of the developer is found."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.delenv("MPISGD_DATA", raising=False)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_sets_without_files_by_name(name: str) -> None:
    loaded = load(name)
    assert isinstance(loaded.dataset, AbstractDataset)
    assert loaded.dataset.name == name
    assert loaded.dataset.image_size > 0
    assert loaded.hint == ""


def test_auto_falls_back_to_digits_and_says_how_to_get_cifar10() -> None:
    loaded = load("auto")
    assert loaded.dataset.name == "digits"
    assert loaded.hint.endswith(HINT)
    assert "no CIFAR-10 under data" in loaded.hint


@pytest.mark.usefixtures("few_records")
@pytest.mark.parametrize("layout", ["binary", "python", "archive"])
def test_auto_takes_cifar10_from_the_directory(tmp_path: Path, layout: str) -> None:
    folder = tmp_path / "d"
    if layout == "python":
        write_python(folder / "cifar-10-batches-py")
    else:
        written = write_binary(folder / "cifar-10-batches-bin")
        if layout == "archive":
            pack(written, folder / "cifar-10-binary.tar.gz")
            shutil.rmtree(written)
    loaded = load("auto", data_dir=folder)
    assert loaded.dataset.name == "cifar10"
    assert loaded.hint == ""


@pytest.mark.usefixtures("few_records")
def test_auto_takes_an_archive_by_its_name(tmp_path: Path) -> None:
    archive = pack(write_binary(tmp_path / "cifar-10-batches-bin"), tmp_path / "mine.tgz")
    assert load("auto", data_dir=archive).dataset.name == "cifar10"


@pytest.mark.usefixtures("few_records")
def test_auto_does_not_hide_a_damaged_cifar10(tmp_path: Path) -> None:
    path = write_binary(tmp_path / "cifar-10-batches-bin") / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"data_batch_2\.bin"):
        load("auto", data_dir=tmp_path)


def test_vectors() -> None:
    for name in ("auto", "synthetic"):
        loaded = load(name, kind="vectors")
        assert (loaded.dataset.channels, loaded.dataset.image_size) == (440, 0)
    with pytest.raises(
        ValueError, match="'digits' has no vectors; the sets that have are auto, syn"
    ):
        load("digits", kind="vectors")


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'nosuch'.*auto, cifar10, fashion-mnist, digits, synth"):
        load("nosuch")


def test_directory_that_does_not_exist(tmp_path: Path) -> None:
    for name in ("auto", "cifar10", "digits"):
        with pytest.raises(FileNotFoundError, match=r"nosuch does not exist.*correct --data-dir"):
            load(name, data_dir=tmp_path / "nosuch")


def test_directory_of_the_environment_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPISGD_DATA", str(tmp_path / "nosuch"))
    for name in ("auto", "cifar10", "fashion-mnist"):
        with pytest.raises(FileNotFoundError, match=r"nosuch does not exist.*correct MPISGD_DATA"):
            load(name)
    for name in ("digits", "synthetic"):  # they read no files
        assert load(name).dataset.name == name
    assert load("auto", kind="vectors").dataset.image_size == 0
    with pytest.raises(FileNotFoundError, match=r"other does not exist.*correct --data-dir"):
        load("auto", data_dir=tmp_path / "other")
    assert load("auto", data_dir=tmp_path).dataset.name == "digits"


def test_file_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"notes\.txt cannot be read"):
        load("auto", data_dir=tmp_path / "notes.txt")


def test_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_directory() == Path("data")
    monkeypatch.setenv("MPISGD_DATA", "/elsewhere")
    assert data_directory() == Path("/elsewhere")
    assert data_directory("given") == Path("given")


@pytest.mark.usefixtures("few_records")
def test_directory_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_binary(tmp_path / "env" / "cifar-10-batches-bin")
    monkeypatch.setenv("MPISGD_DATA", str(tmp_path / "env"))
    assert load("auto").dataset.name == "cifar10"


def test_registries_hold_what_they_name() -> None:
    assert list(DATA) == ["cifar10", "fashion-mnist", "digits", "synthetic"]
    assert list(VECTOR_DATA) == ["synthetic"]
    for registry in (DATA, VECTOR_DATA):
        for name in registry:
            assert callable(registry[name])
