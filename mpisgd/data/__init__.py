"""Data sets by name.

Importing this package imports neither torch nor MPI: a set is imported when it is loaded.
"""

from __future__ import annotations

from .choice import Loaded as Loaded
from .choice import data_directory as data_directory
from .choice import load as load
from .download import FetchError as FetchError
from .download import fetch as fetch
from .members import DATA as DATA
from .members import VECTOR_DATA as VECTOR_DATA

__all__ = ["DATA", "VECTOR_DATA", "FetchError", "Loaded", "data_directory", "fetch", "load"]
