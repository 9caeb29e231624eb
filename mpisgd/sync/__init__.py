"""When ranks exchange, and what they do with the result.

To add a mode: a file here and a line in SYNCS.
"""

from __future__ import annotations

from mpisgd.registry import Registry

SYNCS: Registry[str] = Registry(
    {
        "data-parallel": "mpisgd.sync.data_parallel:DataParallel",
        "local": "mpisgd.sync.local:Local",
    }
)

__all__ = ["SYNCS"]
