"""Flat buffers: where every tensor lies, how it is cut into columns and stripes.

`layout` is numpy only; `flat` (imported by name) is where torch tensors meet them.
"""

from __future__ import annotations

from .layout import Columns as Columns
from .layout import Layout as Layout
from .layout import Piece as Piece
from .layout import columns_of as columns_of
from .layout import cut_buckets as cut_buckets

__all__ = ["Columns", "Layout", "Piece", "columns_of", "cut_buckets"]
