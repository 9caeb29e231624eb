"""A second, slow and plain implementation of docs/arithmetic.md: n ranks simulated in one process.

It shares no line and no import with mpisgd: where the two differ, one of them or the page is wrong.
"""

from __future__ import annotations

from .hashing import parameter_hash
from .training import Local, Oracle, Scaler

__all__ = ["Local", "Oracle", "Scaler", "parameter_hash"]
