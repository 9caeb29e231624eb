"""The oracle against cases small enough to work out by hand, against plain torch, and alone."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mpisgd.data.order import minibatch
from mpisgd.quant import QUANTIZERS
from tests.oracle import Local, Oracle, onebit, order, parameter_hash
from tests.oracle.cases import CASES
from tests.oracle.exchange import SimulatedExchange
from tests.oracle.layout import Bucket, cut_buckets, exchanged_parameters

RANKS = [1, 2, 3, 4, 7]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def f4(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# -- it is independent


def test_no_file_of_the_oracle_imports_mpisgd() -> None:
    files = sorted((Path(__file__).parents[1] / "oracle").glob("*.py"))
    assert len(files) > 4
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not [name for name in names if name.split(".")[0] in ("mpisgd", "kernels")]


# -- one column


def test_one_bit_on_cntks_example() -> None:
    coded, residual = onebit.encode(f4(0.5, -1, 0.25, 2), f4(0, 0, 0, 0))
    np.testing.assert_array_equal(coded.bits, [True, False, True, True])
    assert coded.level0 == -1
    assert coded.level1 == np.float32(2.75) / np.float32(3)
    np.testing.assert_allclose(residual, [-0.416667, 0, -0.666667, 1.083333], atol=1e-6)


def test_canonical_sum_adds_in_its_own_order() -> None:
    big = 2.0**24  # absorbs a 1, but not a 2
    sums = {}
    for places in [(32, 64), (2, 4), (2, 6), (1, 3), (1, 17)]:
        values = np.zeros(70, np.float32)
        values[0] = big
        values[list(places)] = 1
        sums[places] = onebit.canonical_sum(values)
    assert sums == {(32, 64): big, (2, 4): big, (2, 6): big + 2, (1, 3): big + 2, (1, 17): big + 2}
    values = np.zeros(70, np.float32)
    values[0], values[16], values[8] = big, 1, 1  # one after the other to partial 0
    assert onebit.canonical_sum(values) == big


@pytest.mark.parametrize("m", [0, 1, 31, 32, 33, 70])
def test_canonical_sum_is_a_sum(m: int) -> None:
    assert onebit.canonical_sum(np.arange(m, dtype=np.float32)) == m * (m - 1) / 2


def test_signs_of_zero_and_not_a_number() -> None:
    coded, residual = onebit.encode(f4(-0.0, 0.0, -0.0), f4(-0.0, 0.0, -0.0))
    assert coded.bits.all()
    assert not np.signbit(onebit.decode(coded)).any()
    assert not np.any(residual)
    for bad in (np.nan, np.inf, -np.inf):
        with np.errstate(invalid="ignore"):
            coded, _ = onebit.encode(f4(1, bad, -1), f4(0, 0, 0))
        assert not coded.finite
        assert coded.bits[1] == (bad > 0)


def test_codes_of_full_columns_come_first() -> None:
    rng = np.random.default_rng(0)
    lengths = [3, 10, 9, 10]
    columns = [onebit.encode(rng.standard_normal(m).astype("f4"), f4(*[0] * m))[0] for m in lengths]
    payload = onebit.pack(columns, full=10)
    assert len(payload) == onebit.payload_bytes(lengths) == 4 * 8 + 1 + 2 + 2 + 2
    levels = np.frombuffer(payload[:32], "<f4").reshape(4, 2)
    np.testing.assert_array_equal(levels, [[c.level0, c.level1] for c in columns])
    at = 32
    for i in (1, 3, 0, 2):
        width = -(-lengths[i] // 8)
        bits = np.unpackbits(np.frombuffer(payload[at : at + width], "u1"), bitorder="little")
        np.testing.assert_array_equal(bits[: lengths[i]], columns[i].bits)
        assert not bits[lengths[i] :].any()
        at += width


@pytest.mark.parametrize("lengths", [[512] * 3, [512, 512, 40], [3, 512, 64, 512, 1], [9, 40]])
def test_the_product_writes_the_same_bytes(lengths: list[int]) -> None:
    rng = np.random.default_rng(0)
    stops = np.cumsum(lengths)
    starts = stops - lengths
    values, residual = rng.standard_normal((2, stops[-1])).astype("f4")
    coded, owed = zip(
        *(onebit.encode(values[a:b], residual[a:b]) for a, b in zip(starts, stops, strict=True)),
        strict=True,
    )
    quantizer = QUANTIZERS[1]()
    columns = quantizer.columns(starts, stops, column=512)
    payload = np.full(quantizer.payload_bytes(columns), 255, np.uint8)
    next_residual = np.empty_like(values)
    assert quantizer.encode(
        values, columns, residual=residual, next_residual=next_residual, payload=payload
    )
    assert payload.tobytes() == onebit.pack(list(coded), full=512)
    np.testing.assert_array_equal(next_residual, np.concatenate(owed))


# -- layout


def test_parameters_go_in_reverse_strangers_first() -> None:
    model = CASES["tied"].build()
    strangers = [nn.Parameter(torch.ones(i)) for i in (1, 2)]
    frozen = next(p for n, p in model.named_parameters() if n == "mix.bias")
    frozen.requires_grad_(False)
    optimizer = torch.optim.SGD([strangers[0], *model.parameters(), strangers[1]], lr=0.1)
    names = {id(p): n for n, p in model.named_parameters()}
    names |= {id(p): f"stranger{i}" for i, p in enumerate(strangers)}
    found = [names[id(p)] for p in exchanged_parameters(model, optimizer)]
    assert found == ["stranger1", "stranger0", "out.bias", "mix.weight", "words.weight"]


def test_small_and_flat_tensors_are_raw_and_first() -> None:
    shapes = [(5, 5), (2, 3), (0, 9), (100,), (4, 4)]
    (bucket,) = cut_buckets(shapes, coding=True, column=10, min_numel=16, bucket_mb=None)
    assert bucket.slots == {1: 0, 3: 6, 0: 106, 4: 131}
    assert bucket.raw == 106
    assert bucket.columns == [(106, 116), (116, 126), (126, 131), (131, 141), (141, 147)]
    assert bucket.payload_bytes() == 4 * 106 + 5 * 8 + 2 + 2 + 1 + 2 + 1
    (exact,) = cut_buckets(shapes, coding=False, column=10, min_numel=16, bucket_mb=None)
    assert exact.slots == {0: 0, 1: 25, 3: 31, 4: 131}
    assert exact.payload_bytes() == 4 * 147


def test_buckets_hold_at_most_their_limit() -> None:
    shapes = [(3,), (4,), (1,), (9,), (2,)]
    limit = 8 * 4 / 2**20  # eight values
    buckets = cut_buckets(shapes, coding=False, column=10, min_numel=1, bucket_mb=limit)
    assert [list(bucket.slots) for bucket in buckets] == [[0, 1, 2], [3], [4]]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("numels", [{0: 3}, {0: 1, 1: 40, 2: 33}, {0: 200, 1: 7}])
def test_sent_bytes_are_the_formula_on_average(numels: dict[int, int], ranks: int) -> None:
    bucket = Bucket(numels, {1}, column=10)
    stripes = [bucket.stripe(rank, ranks) for rank in range(ranks)]
    for ends in ([s.raw for s in stripes], [s.columns for s in stripes]):
        assert [a for a, _ in ends] == [0, *(b for _, b in ends)][:-1]
    assert (stripes[-1].raw[1], stripes[-1].columns[1]) == (bucket.raw, len(bucket.columns))
    sent = sum(bucket.sent_bytes(rank, ranks) for rank in range(ranks))
    assert sent == 2 * (ranks - 1) * bucket.payload_bytes() + 64 * (ranks - 1) * ranks


# -- exchange


def contributions(rng: np.random.Generator, bucket: Bucket, ranks: int) -> list[np.ndarray]:
    return [rng.standard_normal(bucket.size).astype("f4") for _ in range(ranks)]


@pytest.mark.parametrize("ranks", RANKS)
def test_nothing_is_lost_over_many_steps(ranks: int) -> None:
    """Applied + owed = passed, also for a tensor that nobody had a gradient for."""
    rng = np.random.default_rng(ranks)
    bucket = Bucket({0: 11, 1: 70, 2: 45}, {1, 2}, column=32)
    exchange = SimulatedExchange(bucket, ranks=ranks)
    untouched = bucket.range_of(2)
    passed, applied = np.zeros(bucket.size), np.zeros(bucket.size)
    for step in range(60):
        parts = contributions(rng, bucket, ranks)
        if step % 3 == 2:
            for part in parts:
                part[untouched] = 0
        total, clean = exchange.sum(parts)
        assert clean
        passed += np.sum(parts, axis=0, dtype=np.float64)
        if step % 3 == 2:
            exchange.repay(2, total)
            total[untouched] = 0
        exchange.commit()
        applied += total
    owed = np.sum([*exchange.worker, exchange.owner], axis=0, dtype=np.float64)
    np.testing.assert_allclose(applied + owed, passed, atol=1e-3)
    assert not owed[: bucket.raw].any()
    assert np.abs(owed[bucket.raw :]).max() > 0.1  # the balance is not trivially met


def test_sums_are_taken_in_rank_order() -> None:
    bucket = Bucket({0: 1}, set(), column=4)
    total, _ = SimulatedExchange(bucket, ranks=3).sum([f4(2**24), f4(1), f4(-(2**24))])
    assert total[0] == 0
    total, _ = SimulatedExchange(bucket, ranks=3).sum([f4(2**24), f4(-(2**24)), f4(1)])
    assert total[0] == 1


@pytest.mark.parametrize("at", [0, 20])
def test_a_value_that_is_not_finite_is_noticed_and_leaves_no_trace(at: int) -> None:
    rng = np.random.default_rng(1)
    bucket = Bucket({0: 9, 1: 40}, {1}, column=16)
    exchange = SimulatedExchange(bucket, ranks=3)
    exchange.sum(contributions(rng, bucket, 3))
    exchange.commit()
    before = copy.deepcopy((exchange.worker, exchange.owner))
    for bad in (np.nan, np.inf, np.float32(3e38)):  # the last one overflows in the owner's sum
        parts = contributions(rng, bucket, 3)
        for part in parts if bad == np.float32(3e38) else parts[1:2]:
            part[at] = bad
        assert not exchange.sum(parts)[1]
        np.testing.assert_array_equal(exchange.worker, before[0])
        np.testing.assert_array_equal(exchange.owner, before[1])


# -- training


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


@pytest.mark.parametrize("quant", [1, 32])
@pytest.mark.parametrize("name", CASES)
def test_one_rank_is_plain_torch(name: str, quant: int) -> None:
    case = CASES[name]
    model = case.build()
    plain = copy.deepcopy(model)
    optimizer = momentum(plain)
    oracle = Oracle(model, momentum(model), ranks=1, quant=quant, min_numel=16)
    draws = np.random.default_rng(0)
    for step in range(10):
        loss = case.loss(draws, 4, step, 0)
        loss(plain).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert oracle.step([[Local(loss, 4)]])
    assert parameter_hash(model) == parameter_hash(plain)
    for mine, theirs in zip(model.buffers(), plain.buffers(), strict=True):
        assert torch.equal(mine, theirs)
    assert (oracle.samples_seen, oracle.wire[0].bytes, oracle.wire[0].messages) == (40, 0, 0)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("counts", [[4, 4, 4], [9, 0, 3], [0, 0, 12], [12]])
def test_at_32_bits_ranks_do_not_matter(counts: list[int], passes: int) -> None:
    """Law 6: as one rank with the whole batch, however it is dealt out."""
    rng = np.random.default_rng(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    whole = copy.deepcopy(model)
    optimizer = momentum(whole)
    oracle = Oracle(model, momentum(model), ranks=len(counts), quant=32)
    for _ in range(20):
        x = torch.from_numpy(rng.standard_normal((passes, sum(counts), 6)).astype("f4"))
        (whole(x.flatten(0, 1)) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        oracle.step([deal(part, counts) for part in x])
    with torch.no_grad():
        pairs = zip(model.parameters(), whole.parameters(), strict=True)
        gap = sum(float((a - b).norm()) for a, b in pairs)
    assert gap < 1e-5


def deal(x: torch.Tensor, counts: list[int]) -> list[Local]:
    return [
        Local(
            (lambda model, part=part: (model(part) ** 2).mean()) if len(part) else None, len(part)
        )
        for part in x.split(counts)
    ]


def test_warm_up_ends_with_the_first_step_that_starts_late_enough() -> None:
    case = CASES["mlp"]
    model = case.build()
    oracle = Oracle(model, momentum(model), ranks=2, quant=1, warmup=10)
    draws = np.random.default_rng(0)
    coding, sent = [], []
    for step in range(5):
        coding.append(oracle.coding)
        before = oracle.wire[0].bytes + oracle.wire[1].bytes
        oracle.step([[Local(case.loss(draws, m, step, 0), m) for m in (1, 2)]])
        sent.append(oracle.wire[0].bytes + oracle.wire[1].bytes - before)
    assert coding == [False] * 4 + [True]
    matrix, rest = 96 * 70, 96 + 10 * 96 + 10
    assert sent[:4] == [2 * 4 * (matrix + rest) + 4 * 32] * 4
    assert sent[4] == 2 * (4 * rest + matrix // 8 + 8 * 14) + 4 * 32


def test_an_untouched_parameter_is_not_stepped() -> None:
    """Momentum and weight decay would move it; a zero gradient on one rank already does."""
    used, unused = nn.Linear(5, 5), nn.Linear(5, 5)
    model = nn.ModuleList([used, unused])
    oracle = Oracle(model, momentum(model), ranks=2, quant=1, min_numel=1)
    x = torch.ones(3, 5)

    def step(*heads: int) -> None:
        oracle.step([[Local(lambda m, h=h: m[h](x).square().mean(), 3) for h in heads]])

    step(0, 1)
    before = parameter_hash(unused)
    step(0, 0)
    assert parameter_hash(unused) == before
    step(0, 1)
    assert parameter_hash(unused) != before


def test_without_any_sample_nothing_happens() -> None:
    model = CASES["mlp"].build()
    oracle = Oracle(model, momentum(model), ranks=3, quant=1)
    before = parameter_hash(model)
    assert not oracle.step([[Local(None, 0)] * 3])
    assert parameter_hash(model) == before
    assert (oracle.samples_seen, oracle.skipped, oracle.wire[1].messages) == (0, 0, 0)


# -- hash and order of data


def test_hash_is_over_the_values_in_c_order() -> None:
    model = nn.Linear(2, 3).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.copy_(torch.arange(6).view(3, 2))
        model.bias.fill_(1.0)
    # bfloat16 is the upper half of a float32.
    weight = np.arange(6, dtype="<f4").view("<u2")[1::2].tobytes()
    bias = np.ones(3, "<f4").view("<u2")[1::2].tobytes()
    digests = b"".join(hashlib.sha256(values).digest()[:8] for values in (weight, bias))
    assert parameter_hash(model) == hashlib.sha256(digests).hexdigest()[:16]
    transposed = copy.deepcopy(model)
    transposed.weight.data = transposed.weight.data.t().contiguous().t()
    assert parameter_hash(transposed) == parameter_hash(model)


def test_the_stream_visits_every_sample_once_a_sweep() -> None:
    seen = [i for k in range(9) for i in order.minibatch(k, batch=7, samples=21, seed=3)]
    sweeps = [seen[a : a + 21] for a in (0, 21, 42)]
    assert [sorted(sweep) for sweep in sweeps] == [list(range(21))] * 3
    assert len({tuple(sweep) for sweep in sweeps}) == 3
    parts = [order.part(seen[:7], rank, 3) for rank in range(3)]
    assert parts == [[seen[0], seen[3], seen[6]], [seen[1], seen[4]], [seen[2], seen[5]]]


@pytest.mark.parametrize("batch", [4, 21, 50])
def test_the_product_draws_the_same_samples(batch: int) -> None:
    for k in range(12):
        whole = order.minibatch(k, batch=batch, samples=21, seed=3)
        for rank in range(3):
            _, indices = minibatch(k, batch=batch, seed=3, n_samples=21, shard=(rank, 3))
            assert indices.tolist() == order.part(whole, rank, 3)
