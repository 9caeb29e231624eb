"""The unpickler: rebuilds data and runs nothing."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from mpisgd.data import cifar10
from mpisgd.data.cifar10_pickle import load_batch

from .layouts import write_python


class Runs:
    """Unpickled in the ordinary way, this calls `function(*arguments)`."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


def batch(**changes: object) -> dict[str, object]:
    return {"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2], **changes}


def test_a_plain_batch() -> None:
    data, labels = load_batch(pickle.dumps(batch(), 2))
    assert data.shape == (2, 3072)
    assert labels.tolist() == [1, 2]
    assert labels.dtype == np.int64


def test_a_pickle_of_python_2() -> None:
    """Byte strings of Python 2 are other opcodes than Python 3 writes: here they are, by hand."""
    dtype = b"cnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntb"
    values = b"\\x00\\xff\\x80\\x7f"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
        b"(I1\n(I2\nI2\nt" + dtype + b"I00\nS'" + values + b"'\ntb"
    )
    data, labels = load_batch(b"(dS'data'\n" + array + b"sS'labels'\n(lI7\naI9\nas.")
    np.testing.assert_array_equal(data, [[0, 255], [128, 127]])
    assert labels.tolist() == [7, 9]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_code_is_never_run(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "was here"
    content = pickle.dumps({"extra": Runs(os.system, f"touch '{marker}'"), **batch()}, protocol)
    with pytest.raises(ValueError, match=r"asks for posix\.system, which is not data"):
        load_batch(content)
    assert not marker.exists()
    # The same file does run in an ordinary load: the test would notice.
    pickle.loads(pickle.dumps(Runs(os.system, f"touch '{marker}'"), protocol))
    assert marker.exists()


@pytest.mark.parametrize("function", [eval, exec, getattr, __import__, open, np.load, np.fromfile])
def test_other_names_are_refused(function: object) -> None:
    with pytest.raises(ValueError, match="which is not data"):
        load_batch(pickle.dumps(batch(extra=Runs(function, "1")), 2))


def test_dotted_names_do_not_get_through() -> None:
    # Protocol 4 looks up attributes of attributes: numpy's "ndarray.tofile" must not slip in.
    content = b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."
    with pytest.raises(ValueError, match=r"asks for numpy\.ndarray\.tofile"):
        load_batch(content)


def test_reconstruct_makes_only_empty_arrays() -> None:
    huge = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I999999999\ntS'b'\ntR."
    with pytest.raises(ValueError, match="an array of type"):
        load_batch(huge)
    other = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(I0\ntS'b'\ntR."
    with pytest.raises(ValueError, match="an array of type"):
        load_batch(other)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable pickle"),
        (b"\x80\x02garbage", "not a readable pickle"),
        (pickle.dumps([1, 2], 2), "holds a list"),
        (pickle.dumps({"labels": [1]}, 2), "no entry 'data'"),
        (pickle.dumps(batch(data=np.zeros((2, 3072), np.float32)), 2), "no entry 'data'"),
        (pickle.dumps(batch(data=[1, 2]), 2), "no entry 'data'"),
        (pickle.dumps(batch(labels=["a", "b"]), 2), "no entry 'labels'"),
        (pickle.dumps(batch(labels=None), 2), "no entry 'labels'"),
    ],
)
def test_pickles_that_hold_something_else(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_batch(content)


@pytest.mark.usefixtures("few_records")
def test_a_batch_file_that_asks_for_code_is_named(tmp_path: Path) -> None:
    path = write_python(tmp_path / "cifar-10-batches-py") / "data_batch_5"
    path.write_bytes(pickle.dumps(batch(extra=Runs(os.system, "true")), 2))
    with pytest.raises(ValueError, match=r"data_batch_5: .*asks for posix\.system") as caught:
        cifar10.load(tmp_path)
    assert str(path) in str(caught.value)
