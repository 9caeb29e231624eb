"""A family of classes by name: a literal dict whose members are imported when they are asked for.

`python -m mpisgd.train --help` lists every registered name without importing torch or numba;
joining a family is one line.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

K = TypeVar("K")


class Registry(Mapping[K, Any], Generic[K]):
    """Maps a name to the object at `"module:attribute"`, imported on first access."""

    def __init__(self, members: Mapping[K, str]) -> None:
        """`members`: name -> "package.module:attribute"."""
        self._members = dict(members)

    def __getitem__(self, name: K) -> Any:
        """The registered object. Raises KeyError for an unknown name."""
        module, _, attribute = self._members[name].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def __iter__(self) -> Iterator[K]:
        """The names, in the order in which they were written down."""
        return iter(self._members)

    def __len__(self) -> int:
        """Number of members."""
        return len(self._members)
