"""mpisgd: MPI-native data-parallel training for PyTorch with quantized gradient exchange.

Importing this package does not initialise MPI and needs no CUDA: public names are imported when
they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> module that defines it.
_PUBLIC = {
    "COLLECTIVES": "mpisgd.collectives",
    "DataParallel": "mpisgd.sync.data_parallel",
    "Exchange": "mpisgd.exchange",
    "Local": "mpisgd.sync.local",
    "QUANTIZERS": "mpisgd.quant",
    "RankFailure": "mpisgd.world",
    "SYNCS": "mpisgd.sync",
    "World": "mpisgd.world",
    "param_hash": "mpisgd.parameters",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mpisgd' has no attribute {name!r}; public names: {__all__}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, whether imported yet or not."""
    return sorted(__all__)
