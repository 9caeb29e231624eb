"""The data sets: name -> loader, which takes the data directory and returns an AbstractDataset."""

from __future__ import annotations

from mpisgd.registry import Registry

DATA: Registry[str] = Registry(
    {
        "cifar10": "mpisgd.data.cifar10:load",
        "fashion-mnist": "mpisgd.data.fashion_mnist:load",
        "digits": "mpisgd.data.digits:load",
        "synthetic": "mpisgd.data.synthetic:load_images",
    }
)
# Those that read no files.
WITHOUT_FILES = ("digits", "synthetic")
# For models whose input is a vector.
VECTOR_DATA: Registry[str] = Registry({"synthetic": "mpisgd.data.synthetic:load_vectors"})
