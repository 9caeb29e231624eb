"""Reads a pickled CIFAR-10 batch without trusting it.

A pickle names the functions that rebuild it, so an ordinary load runs whatever the file says. Here
a name is looked up in a short table and everything else is refused.
"""

from __future__ import annotations

import codecs
import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _empty_array(kind: Any, shape: Any, dtype: Any) -> NDArray[Any]:
    """Stands in for numpy's `_reconstruct`: an empty array, which the pickle then fills."""
    if kind is not np.ndarray or tuple(shape) != (0,):
        raise pickle.UnpicklingError(f"an array of type {kind!r} and shape {shape!r}")
    empty: NDArray[Any] = np.ndarray((0,), dtype)
    return empty


def _latin1(text: str, encoding: str) -> bytes:
    """Stands in for `_codecs.encode`, which Python 3 pickles of protocol 2 call to make bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes encoded as {encoding!r}")
    return codecs.latin_1_encode(text)[0]


# Both names of numpy's module: before and since numpy 2.
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}


class RestrictedUnpickler(pickle.Unpickler):
    """Rebuilds plain values and numpy arrays, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        """What stands for `module.name`. Raises UnpicklingError unless it is in ALLOWED."""
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which is not data") from None


def load_batch(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """`data`, (n, 3072) uint8, and `labels`, (n,) int64, of one pickled batch.

    Keys may be text or bytes: the published files were written by Python 2.

    Raises:
        ValueError: if the pickle cannot be read, asks for code, or has no such entries.
    """
    try:
        # latin1 keeps the bytes of Python 2 strings, which numpy turns back into array contents.
        batch = RestrictedUnpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"not a readable pickle ({error})") from error
    if not isinstance(batch, dict):
        raise ValueError(f"holds a {type(batch).__name__}; wanted a dictionary")
    entries = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in batch.items()}
    data, labels = entries.get("data"), entries.get("labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8:
        raise ValueError("has no entry 'data' that is a uint8 array")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError("has no entry 'labels' that is a list of integers")
    return data, np.array(labels, np.int64)
