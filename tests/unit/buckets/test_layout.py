"""How tensors are laid out in a bucket and cut into columns and stripes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisgd.buckets import Layout, columns_of, cut_buckets

SHAPES = st.lists(
    st.lists(st.integers(0, 9), min_size=0, max_size=3).map(tuple), min_size=0, max_size=6
)


def named(shapes):
    return [(f"t{i}", shape) for i, shape in enumerate(shapes)]


@given(shapes=SHAPES, column=st.integers(1, 20), min_numel=st.integers(0, 30))
def test_every_value_lies_in_one_place(shapes, column, min_numel):
    layout = Layout(named(shapes), column=column, min_numel=min_numel)
    covered = np.zeros(layout.numel, int)
    for piece in layout.pieces:
        covered[piece.start : piece.stop] += 1
        assert piece.coded == (len(piece.shape) >= 2 and piece.numel >= min_numel)
        assert piece.coded == (piece.start >= layout.raw_numel) or piece.numel == 0
    assert (covered == 1).all()
    assert layout.numel == sum(math.prod(shape) for shape in shapes)


@given(shapes=SHAPES, column=st.integers(1, 20))
def test_columns_cover_the_coded_values_and_never_span_two_tensors(shapes, column):
    layout = Layout(named(shapes), column=column, min_numel=0, min_dims=0)
    assert layout.raw_numel == 0
    covered = np.zeros(layout.numel, int)
    edges = {piece.start for piece in layout.pieces if piece.numel}
    for start, stop in zip(layout.starts, layout.stops, strict=True):
        assert 1 <= stop - start <= column
        covered[start:stop] += 1
        assert not any(start < edge < stop for edge in edges)
    assert (covered == 1).all()
    short = (layout.stops - layout.starts < column).sum()
    assert short == sum(1 for piece in layout.pieces if piece.numel % column)


@given(shapes=SHAPES, column=st.integers(1, 20), size=st.integers(1, 7))
def test_stripes_partition_the_bucket(shapes, column, size):
    layout = Layout(named(shapes), column=column, min_numel=12)
    for bounds, total in (
        (layout.raw_bounds, layout.raw_numel),
        (layout.column_bounds, len(layout.starts)),
    ):
        cuts = [bounds(rank, size) for rank in range(size)]
        assert cuts[0][0] == 0
        assert cuts[-1][1] == total
        assert all(a[1] == b[0] for a, b in itertools.pairwise(cuts))
        widths = [hi - lo for lo, hi in cuts]
        assert max(widths) - min(widths) <= 1


def test_order_is_kept_within_raw_and_coded():
    layout = Layout([("a", (2, 4)), ("b", (3,)), ("c", (4, 4)), ("d", (1,))], min_numel=8)
    assert [piece.name for piece in layout.pieces] == ["b", "d", "a", "c"]
    assert [piece.start for piece in layout.pieces] == [0, 3, 4, 12]


def test_32_bits_leave_everything_raw():
    layout = Layout([("a", (100, 100)), ("b", (5,))], min_numel=0, all_raw=True)
    assert (layout.raw_numel, layout.coded_numel, len(layout.starts)) == (10005, 0, 0)


def test_full_columns_are_coded_before_short_ones():
    starts = np.array([0, 16, 19, 35], np.int64)
    stops = np.array([16, 19, 35, 40], np.int64)
    columns = columns_of(starts, stops, bits=1, column=16)
    assert columns.code_at.tolist() == [0, 4, 2, 5]
    assert columns.code_bytes == 6


@pytest.mark.parametrize("bits", [1, 2, 3, 8])
def test_codes_are_packed_without_gaps(bits):
    starts = np.arange(0, 70, 7, dtype=np.int64)
    columns = columns_of(starts, starts + 7, bits=bits, column=7)
    each = math.ceil(7 * bits / 8)
    assert columns.code_at.tolist() == [each * i for i in range(10)]
    assert columns.code_bytes == 10 * each


def test_no_columns():
    none = np.empty(0, np.int64)
    assert columns_of(none, none, bits=1).code_bytes == 0


@pytest.mark.parametrize("options", [{"column": 0}, {"column": -1}, {"min_numel": -1}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Layout([("a", (2, 2))], **options)


def test_buckets_keep_order_and_size():
    tensors = [("a", (2**18,)), ("b", (2**17,)), ("c", (2**20,)), ("d", (1,))]
    groups = cut_buckets(tensors, bucket_mb=1.0)
    assert [[name for name, _ in group] for group in groups] == [["a"], ["b"], ["c"], ["d"]]
    assert cut_buckets(tensors, bucket_mb=None) == [tensors]
    with pytest.raises(ValueError, match="bucket_mb"):
        cut_buckets(tensors, bucket_mb=0)
