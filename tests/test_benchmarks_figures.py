"""What the suite computes from what it measures: work, bounds, tolerances, shares."""

from __future__ import annotations

import pytest

from benchmarks.suite import machine
from benchmarks.suite.agreement import LAST, TOLERANCES, agrees, differences, tolerances
from benchmarks.suite.modes import MODES
from benchmarks.suite.shares import Profile, Spent, profiled
from benchmarks.suite.tasks import Feed
from benchmarks.suite.work import Work, roofline
from tests.test_benchmarks_suite import PEAKS, job


def test_work_of_a_multilayer_perceptron_is_what_arithmetic_says() -> None:
    work = Work.of(job())
    layers = 64 * 16 + 16 * 16 + 16 * 10
    assert work.flop == 2 * 8 * (3 * layers - 64 * 16)  # nothing is differentiated by x
    assert work.parameter_bytes == 4 * (layers + 16 + 16 + 10)
    assert work.batch_bytes == 8 * (64 * 4 + 8)
    # Both activations and the log-probabilities at least; x, y and the loss' weight may be kept, too.
    assert 4 * 8 * (16 + 16 + 10) <= work.activation_bytes <= 4 * 8 * (64 + 16 + 16 + 10) * 2 + 1024


def test_the_recurrence_has_the_same_work_whatever_computes_it() -> None:
    assert Work.of(job("lstm")).flop > 2 * 2 * 5 * (2 * 8 * 32) * 2  # per token and gate, forward and backward


def test_the_roofline_takes_the_tighter_bound() -> None:
    work = Work(flop=10**6, parameter_bytes=100, activation_bytes=50, batch_bytes=10)
    kinds = {"products": 0.005, "others": 0.004, "optimizer": 0.001, "data": 0.0}
    found = roofline(work, 2, 0.02, PEAKS, Profile(1000, 0.02, {kind: Spent(s) for kind, s in kinds.items()}))
    assert found["operations_s"] == pytest.approx(2e-3)
    assert found["bound"] == "operations"
    assert found["bytes_s"] == pytest.approx(2 * (10 * 100 + 4 * 50 + 10) / 4e9)
    assert found["achieved"] == pytest.approx(0.1)
    assert found["calls_share"] == pytest.approx(0.05)
    assert found["shares"] == pytest.approx(
        {"products": 0.25, "others": 0.2, "optimizer": 0.05, "data": 0.0, "between": 0.5}
    )
    # Of the 5 ms of products 2 would do at the measured rate.
    assert found["held_back"]["note"] == (
        "50% between calls, 25% products at 40% of the measured rate, 20% other kernels, 5% optimizer; "
        "most is lost to between calls (50%)"
    )
    assert [roofline(work, 2, 0.02, PEAKS, None)[k] for k in ("calls_share", "shares", "held_back")] == [None] * 3


@pytest.mark.parametrize("name", ["serial", "vmap", "ours"])
def test_a_profile_tells_products_optimizer_and_data_apart(name: str) -> None:
    seen = profiled(MODES[name](job()), 0.01)
    assert seen is not None
    assert all(seen.spent[kind].seconds > 0 for kind in ("products", "others", "optimizer", "data"))
    # Three layers forward, two times as many backward less the input's gradient, for each member or for all at once.
    # Half of a record counts; the variant that was found to be fastest may call nothing within.
    products = seen.spent["products"].records
    assert products >= 8 / 2 * (2 if name == "serial" else 1)
    assert not Feed.marked


def test_a_working_set_gets_the_bandwidth_of_what_it_fits_in() -> None:
    assert [machine.bandwidth(PEAKS, size) for size in (50, 101, 10**6)] == [8e9, 4e9, 1e9]


def test_losses_that_are_not_numbers_never_agree() -> None:
    apart = differences([[1.0], [float("nan")]], [[1.0], [1.0]], 2)
    assert not agrees(apart, tolerances("float32", dict.fromkeys(apart, 0.0)))


def test_the_last_loss_of_all_is_that_of_some_steps() -> None:
    serial = [[1.0]] * 100
    apart = differences([*serial[:99], [2.0]], serial, 10)
    assert apart["last_of_check"] == 0
    assert apart["last_of_all"] == pytest.approx(1 / LAST / 1.0)
    assert differences([*serial[:50], *[[1.2]] * 50], serial, 10)["last_of_all"] == pytest.approx(0.2)


def test_rounding_widens_a_tolerance_only_where_it_moves_the_loss() -> None:
    moved = {"first": 0.0, "second": 1e-6, "last_of_check": 0.05, "last_of_all": 0.0}
    found = tolerances("float32", moved)
    assert found == TOLERANCES["float32"] | {"last_of_check": 0.5, "last_of_all": 0.5}
