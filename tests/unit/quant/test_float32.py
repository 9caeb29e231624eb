"""32 bits: nothing is lost, with residuals or without."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisgd.quant.float32 import Float32
from tests import vectors
from tests.unit.quant.test_laws import decode, encode


@given(data=st.data())
def test_values_travel_as_they_are(data: st.DataObject) -> None:
    table = data.draw(vectors.tables(max_size=70))
    x = data.draw(vectors.any_floats(table.size))
    columns = Float32().columns(table.starts, table.stops)
    payload = vectors.Guarded(Float32().payload_bytes(columns), np.uint8)
    finite = Float32().encode(x, columns, residual=None, next_residual=None, payload=payload.array)
    payload.check()
    inside = ~vectors.outside(table)
    assert finite == np.isfinite(x[inside]).all()
    sent = decode(Float32(), payload.array, columns, table.size)
    vectors.assert_same_bits(sent[inside], x[inside])


@given(data=st.data())
def test_the_whole_debt_is_paid(data: st.DataObject) -> None:
    table = data.draw(vectors.tables())
    x, e = data.draw(vectors.pairs(table.size))
    columns = Float32().columns(table.starts, table.stops)
    payload, owed, _ = encode(Float32(), x, e, columns)
    inside = ~vectors.outside(table)
    sent = decode(Float32(), payload, columns, table.size)
    vectors.assert_same_bits(sent[inside], (x + e)[inside])
    vectors.assert_same_bits(owed[inside], np.zeros_like(x)[inside])


def test_one_residual_alone_is_refused() -> None:
    columns = Float32().columns(np.array([0]), np.array([1]))
    x, payload = np.zeros(1, np.float32), np.zeros(4, np.uint8)
    with pytest.raises(ValueError, match="residual: got one of residual and next_residual"):
        Float32().encode(x, columns, residual=x, next_residual=None, payload=payload)
