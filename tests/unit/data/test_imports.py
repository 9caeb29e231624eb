"""What importing costs: --help lists the names of sets and models and must be quick."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["mpisgd.data", "mpisgd.models"])
def test_names_are_listed_without_torch(package: str) -> None:
    program = (
        f"import sys, {package} as package\n"
        "names = [list(x) for x in vars(package).values() if type(x).__name__ == 'Registry']\n"
        "assert names and all(names), names\n"
        "heavy = {'torch', 'torchvision', 'numpy', 'sklearn', 'mpi4py', 'numba'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_loading_starts_no_mpi() -> None:
    """Processes that load data may be started by others than mpiexec (mlcommons/storage#415)."""
    program = (
        "import sys\n"
        "from mpisgd import data, models\n"
        "data.load('digits')\n"
        "models.build('resnet20', classes=10, channels=3, image_size=8)\n"
        "heavy = {'mpi4py', 'mpi4py.MPI', 'torchvision', 'numba'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
