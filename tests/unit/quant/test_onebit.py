"""What only one bit promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisgd.kernels import threads
from mpisgd.quant.onebit import OneBit
from tests import vectors
from tests.unit.quant.test_laws import decode, encode


def test_a_vector_of_cntk() -> None:
    x = np.array([0.5, -1, 0.25, 2], np.float32)
    columns = OneBit().columns(np.array([0]), np.array([4]))
    payload, owed, _ = encode(OneBit(), x, np.zeros_like(x), columns)
    assert payload.size == 9
    np.testing.assert_allclose(payload[:8].view("<f4"), [-1, 0.916667], rtol=1e-6)
    assert payload[8] == 0b1101
    np.testing.assert_allclose(owed, [-0.416667, 0, -0.666667, 1.083333], atol=1e-6)


def test_512_values_take_72_bytes() -> None:
    columns = OneBit().columns(np.array([0, 512]), np.array([512, 1024]))
    assert OneBit().payload_bytes(columns) == 2 * (8 + 64)


@given(data=st.data())
def test_the_sum_of_a_column_is_kept(data: st.DataObject) -> None:
    table = data.draw(vectors.tables())
    x, e = data.draw(vectors.pairs(table.size))
    columns = OneBit().columns(table.starts, table.stops)
    payload, _, _ = encode(OneBit(), x, e, columns)
    sent = decode(OneBit(), payload, columns, table.size)
    for start, stop in zip(table.starts, table.stops, strict=True):
        debt = (x[start:stop] + e[start:stop]).astype(np.float64)
        got = sent[start:stop].astype(np.float64).sum()
        # denormal levels are rounded to their grid
        tiny = 1e-6 * np.abs(debt).sum() + debt.size * 2.0**-149
        assert got == pytest.approx(debt.sum(), rel=0, abs=tiny)


@pytest.mark.parametrize("x", [[0.3], [-7.25], [0.1] * 33, [-0.5, 0.25, 0.25, -0.5]])
def test_one_magnitude_a_side_is_sent_without_loss(x: list[float]) -> None:
    values = np.array(x, np.float32)
    columns = OneBit().columns(np.array([0]), np.array([values.size]))
    payload, _, _ = encode(OneBit(), values, np.zeros_like(values), columns)
    sent = decode(OneBit(), payload, columns, values.size)
    np.testing.assert_allclose(sent, values, rtol=3e-7)


@pytest.mark.parametrize("length", range(1, 34))
def test_bits_after_the_last_value_are_zero(length: int) -> None:
    ones = np.ones(length, np.float32)
    columns = OneBit().columns(np.array([0]), np.array([length]))
    payload, _, _ = encode(OneBit(), ones, ones.copy(), columns)
    codes = int.from_bytes(payload[8:].tobytes(), "little")
    assert codes == 2**length - 1


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MIN_VALUES_PER_THREAD", 100)
    x, e = (vectors.numbers(np.random.default_rng(k), 5003, "heavy") for k in range(2))
    table = vectors.evenly(5003, 100)
    columns = OneBit().columns(table.starts, table.stops)
    found = []
    for n in (1, 3):
        threads.set_threads(n)
        try:
            payload, owed, _ = encode(OneBit(), x, e, columns)
            found.append((payload, owed, decode(OneBit(), payload, columns, x.size)))
        finally:
            threads.set_threads(1)
    for one, three in zip(*found, strict=True):
        vectors.assert_same_bits(one, three)


def test_a_missing_residual_is_refused() -> None:
    columns = OneBit().columns(np.array([0]), np.array([1]))
    x, payload = np.zeros(1, np.float32), np.zeros(9, np.uint8)
    with pytest.raises(ValueError, match="residual: got None"):
        OneBit().encode(x, columns, residual=None, next_residual=x, payload=payload)
