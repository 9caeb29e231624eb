"""How many bits a gradient takes on the wire: `--quant BITS` -> quantizer class."""

from __future__ import annotations

from mpisgd.registry import Registry

from .base import AbstractQuantizer as AbstractQuantizer

QUANTIZERS: Registry[int] = Registry(
    {
        1: "mpisgd.quant.onebit:OneBit",
        32: "mpisgd.quant.float32:Float32",
    }
)

__all__ = ["QUANTIZERS", "AbstractQuantizer"]
