from __future__ import annotations

import pytest

from mpisgd.schedule import Schedule, make_plan, scaled_rate


def test_cntk_recipe():
    plan = make_plan(model="resnet20", data="cifar10", train_size=50_000, rate=0.1)
    assert (plan.epoch_samples, plan.total_samples) == (50_000, 8_000_000)
    at = plan.schedule.at
    assert at(0) == at(3_999_999) == 0.1
    assert at(4_000_000) == at(5_999_999) == pytest.approx(0.01)
    assert at(6_000_000) == at(7_999_999) == pytest.approx(0.001)


def test_resnet110_has_one_slow_epoch_first():
    plan = make_plan(model="resnet110", data="cifar10", train_size=50_000, rate=0.1)
    at = plan.schedule.at
    assert at(0) == at(49_999) == pytest.approx(0.01)
    assert at(50_000) == at(81 * 50_000 - 1) == 0.1
    assert at(81 * 50_000) == pytest.approx(0.01)
    assert at(121 * 50_000) == pytest.approx(0.001)


def test_epochs_mean_epoch_size_samples_and_milestones_do_not_scale():
    plan = make_plan(
        model="resnet20", data="cifar10", train_size=50_000, rate=0.1, epochs=4, epoch_size=12_500
    )
    assert (plan.epoch_samples, plan.total_samples) == (12_500, 50_000)
    assert plan.schedule.at(49_999) == 0.1
    assert plan.schedule.at(80 * 12_500) == pytest.approx(0.01)


def test_digits_have_a_run_of_their_own_unless_epochs_are_given():
    plan = make_plan(model="resnet20", data="digits", train_size=1437, rate=0.1)
    assert (plan.epoch_samples, plan.total_samples) == (1437, 91_968)
    at = plan.schedule.at
    assert at(45_983) == 0.1
    assert at(45_984) == at(68_975) == pytest.approx(0.01)
    assert at(68_976) == pytest.approx(0.001)
    other = make_plan(model="resnet20", data="digits", train_size=1437, rate=0.1, epochs=64)
    assert other.total_samples == 91_968
    assert other.schedule.at(91_967) == 0.1


def test_max_samples_ends_earlier_and_changes_no_milestone():
    plan = make_plan(model="resnet20", data="digits", train_size=1437, rate=0.1, max_samples=50_000)
    assert plan.total_samples == 50_000
    assert plan.schedule.at(45_984) == pytest.approx(0.01)
    longer = make_plan(
        model="resnet20", data="digits", train_size=1437, rate=0.1, epochs=1, max_samples=9_999
    )
    assert longer.total_samples == 1437


@pytest.mark.parametrize(
    ("scale", "batch", "rate"),
    [
        ("none", 512, 0.1),
        ("linear", 512, 0.4),
        ("linear", 32, 0.025),
        ("sqrt", 512, 0.2),
        (3.0, 512, 0.3),
    ],
)
def test_scaled_rate(scale, batch, rate):
    assert scaled_rate(0.1, scale, batch) == pytest.approx(rate)


def test_a_schedule_without_changes():
    assert Schedule(0.5).at(10**15) == 0.5


def test_a_rate_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="give less"):
        scaled_rate(1e308, 1e308, 128)
