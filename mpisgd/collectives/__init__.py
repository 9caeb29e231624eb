"""Ways to sum one bucket over all ranks. To add one: a file here and a line in COLLECTIVES."""

from __future__ import annotations

from mpisgd.registry import Registry

COLLECTIVES: Registry[str] = Registry(
    {
        "plain": "mpisgd.collectives.plain:Plain",
        "stripes": "mpisgd.collectives.stripes:Stripes",
    }
)

__all__ = ["COLLECTIVES"]
