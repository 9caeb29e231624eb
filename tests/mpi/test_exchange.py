"""The sum over ranks: right, the same everywhere, and as many bytes as the formula says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mpisgd
from mpisgd.collectives import COLLECTIVES
from mpisgd.quant import QUANTIZERS

pytestmark = pytest.mark.mpi

SIZES = [0, 1, 31, 1000, 5000, 2**17 + 1]
PAIRS = [
    (name, bits)
    for name in COLLECTIVES
    for bits in QUANTIZERS
    if COLLECTIVES[name].legal_bits is None or bits in COLLECTIVES[name].legal_bits
]


def vector(rank: int, numel: int, step: int = 0) -> np.ndarray:
    """What `rank` contributes; heavy-tailed and of mixed signs."""
    rng = np.random.default_rng((rank, numel, step))
    return (rng.standard_normal(numel) ** 3).astype(np.float32)


def all_equal(world, tensor: torch.Tensor) -> bool:
    """Whether all ranks hold the same bits."""
    mine = tensor.numpy().view(np.uint8).astype(np.int64)
    position = np.arange(1, mine.size + 1)
    checks = np.array([(mine * (position % 8191)).sum(), mine.sum()], np.int64)
    return (world.sum(checks) == checks * world.size).all()


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize(("name", "bits"), PAIRS)
def test_integers_are_summed_exactly_at_32_bits(world, name, bits, numel):
    if bits != 32:
        numel = min(numel, 1)  # one value in a column loses nothing at any width
    exchange = mpisgd.Exchange(numel, world=world, quant=bits, collective=name, column=1)
    flat = torch.arange(numel, dtype=torch.float32) % 97 + world.rank
    assert exchange.exchange(flat)
    ranks = sum(range(world.size))
    expected = (torch.arange(numel, dtype=torch.float32) % 97) * world.size + ranks
    assert torch.equal(flat, expected)


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize(("name", "bits"), PAIRS)
def test_all_ranks_hold_the_same_bits(world, name, bits, numel):
    exchange = mpisgd.Exchange(numel, world=world, quant=bits, collective=name)
    for step in range(3):
        flat = torch.from_numpy(vector(world.rank, numel, step))
        assert exchange.exchange(flat)
        assert all_equal(world, flat)


@pytest.mark.parametrize(("name", "bits"), PAIRS)
def test_what_was_summed_plus_what_is_owed_is_what_was_given(world, name, bits):
    """Law 1 over the whole protocol: sums + all residuals = all gradients, over several steps."""
    numel, steps = 1777, 5
    exchange = mpisgd.Exchange(numel, world=world, quant=bits, collective=name, column=100)
    received = np.zeros(numel)
    given = np.zeros(numel)
    for step in range(steps):
        flat = torch.from_numpy(vector(world.rank, numel, step))
        given += sum(vector(rank, numel, step).astype(float) for rank in range(world.size))
        exchange.exchange(flat)
        received += flat.numpy()
    owed = world.sum(exchange.residual.numpy().astype(np.float64))
    owed += world.sum(owner_residual(exchange, world))
    np.testing.assert_allclose(received + owed, given, rtol=1e-4, atol=1e-3)


def owner_residual(exchange, world) -> np.ndarray:
    """This rank's owner residual at its place in the whole vector."""
    whole = np.zeros(exchange.layout.numel)
    mine = exchange.owner_residual.numpy()
    if mine.size:
        first, _ = exchange.layout.column_bounds(world.rank, world.size)
        start = exchange.layout.raw_numel + int(exchange.layout.starts[first])
        whole[start : start + mine.size] = mine
    return whole


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize(("name", "bits"), PAIRS)
def test_bytes_and_messages_equal_the_formula(world, name, bits, numel):
    exchange = mpisgd.Exchange(numel, world=world, quant=bits, collective=name)
    steps = 2
    for step in range(steps):
        exchange.exchange(torch.from_numpy(vector(world.rank, numel, step)))
    n = world.size
    payload = 4 * numel
    if bits == 1:
        lengths = [min(512, numel - at) for at in range(0, numel, 512)]
        payload = sum(8 + -(-length // 8) for length in lengths)
    assert exchange.payload_bytes == payload
    total = int(world.sum(np.array([exchange.wire.bytes]))[0])
    messages = exchange.wire.messages
    if n == 1:
        assert (total, messages) == (0, 0)
    elif name == "stripes":
        assert total == steps * (2 * (n - 1) * payload + 64 * n * (n - 1))
        assert messages == steps * 2 * (n - 1)
    else:
        assert total == n * (steps * 2 * (n - 1) * payload // n)  # rounded once, not each step
        assert messages == steps * (numel > 0)


def test_constant_gradients_arrive_in_the_mean(world):
    """With both residuals the running mean of what was applied tends to the true sum.

    What is owed stays bounded, so twice the steps leave about half the error; a quantizer or an
    owner that forgets leaves the same error for ever.
    """
    numel = 3000
    gradients = [np.random.default_rng(r).standard_normal(numel) for r in range(world.size)]
    true = sum(gradient.astype(np.float32) for gradient in gradients)
    exchange = mpisgd.Exchange(numel, world=world, quant=1, column=64)
    applied = np.zeros(numel)
    errors = {}
    for step in range(1, 201):
        flat = torch.from_numpy(gradients[world.rank].astype(np.float32))
        exchange.exchange(flat)
        applied += flat.numpy()
        errors[step] = np.linalg.norm(applied / step - true) / np.linalg.norm(true)
    assert errors[200] <= 0.65 * errors[100] or errors[200] < 1e-6
    assert errors[200] < 0.1


def test_without_error_feedback_nothing_is_remembered(world):
    exchange = mpisgd.Exchange(1000, world=world, quant=1, error_feedback=False)
    results = []
    for _ in range(2):
        flat = torch.from_numpy(vector(world.rank, 1000))
        exchange.exchange(flat)
        results.append(flat)
    assert torch.equal(*results)
    assert not exchange.residual.any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize(("name", "bits"), PAIRS)
def test_a_non_finite_value_on_any_rank_changes_no_residual(world, name, bits, bad):
    numel = 2000
    exchange = mpisgd.Exchange(numel, world=world, quant=bits, collective=name)
    exchange.exchange(torch.from_numpy(vector(world.rank, numel)))
    before = (exchange.residual.clone(), exchange.owner_residual.clone())
    for culprit in range(world.size):
        flat = torch.from_numpy(vector(world.rank, numel, 1))
        if culprit == world.rank:
            flat[1234:1240] = bad
        overflows = bad == 3e38 and bits == 32  # one rank's finite value is no overflow
        assert exchange.exchange(flat) == (overflows or (world.size == 1 and bad == 3e38))
        if not overflows:
            assert torch.equal(exchange.residual, before[0])
            assert torch.equal(exchange.owner_residual, before[1])


def test_state_goes_on_bit_for_bit(world):
    def run(exchange, steps):
        for step in steps:
            flat = torch.from_numpy(vector(world.rank, 1500, step))
            exchange.exchange(flat)
        return flat

    whole = mpisgd.Exchange(1500, world=world, quant=1)
    expected = run(whole, range(10))
    first = mpisgd.Exchange(1500, world=world, quant=1)
    run(first, range(5))
    second = mpisgd.Exchange(1500, world=world, quant=1)
    second.load_state_dict(first.state_dict())
    assert torch.equal(run(second, range(5, 10)), expected)


def test_shapes_never_share_a_column(world):
    exchange = mpisgd.Exchange([(10, 10), (7,), (0, 3), ()], world=world, quant=1, column=64)
    assert exchange.layout.numel == 108
    assert (exchange.layout.stops - exchange.layout.starts).tolist() == [64, 36, 7, 1]


def test_two_exchanges_do_not_mix(world):
    one, two = (mpisgd.Exchange(100, world=world, quant=bits) for bits in (1, 32))
    a, b = torch.ones(100), torch.full((100,), 2.0)
    one.exchange(a)
    two.exchange(b)
    assert (a == world.size).all()
    assert (b == 2 * world.size).all()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"quant": 7}, ValueError, "must be one of"),
        ({"collective": "nosuch"}, ValueError, "auto or one of"),
        ({"collective": "plain", "quant": 1}, ValueError, "plain carries"),
        ({"column": 0}, ValueError, "column"),
    ],
)
def test_requests_that_cannot_be_honoured_are_refused(world, options, error, words):
    with pytest.raises(error, match=words):
        mpisgd.Exchange(100, world=world, **options)


@pytest.mark.parametrize(
    ("flat", "error"),
    [
        (torch.zeros(100, dtype=torch.float64), TypeError),
        (torch.zeros(99), ValueError),
        (torch.zeros(10, 10), ValueError),
        (torch.zeros(200)[::2], ValueError),
    ],
)
def test_vectors_that_do_not_fit_are_refused(world, flat, error):
    exchange = mpisgd.Exchange(100, world=world)
    with pytest.raises(error, match="exchange:"):
        exchange.exchange(flat)


def test_ranks_with_different_sizes_are_told_so(world):
    if world.size == 1:
        mpisgd.Exchange(100, world=world)
        return
    with pytest.raises(ValueError, match=r"tensor 0|rank"):
        mpisgd.Exchange(100 + (world.rank == 1), world=world)
