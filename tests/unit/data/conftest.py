"""Fixtures for data sets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mpisgd.data import cifar10

from .layouts import RECORDS

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.fixture
def few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10 files of 12 images instead of 10,000."""
    monkeypatch.setattr(cifar10, "RECORDS", RECORDS)


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real CIFAR-10 images, unpacked once."""
    script = SHARED / "unpack.py"
    if not script.is_file():
        pytest.skip(f"no {script}: the real images are not part of the repository")
    pytest.importorskip("PIL", reason="Pillow unpacks the real images")
    folder = tmp_path_factory.mktemp("real")
    subprocess.run(
        [sys.executable, str(script), str(folder)], check=True, stdout=subprocess.DEVNULL
    )
    return folder
