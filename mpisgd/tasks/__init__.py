"""What a run trains: data, loss and metric together. Importing this package imports no torch."""

from __future__ import annotations

__all__: list[str] = []
