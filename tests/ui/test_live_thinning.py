"""How much the live view keeps of a long run."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from front_end import FrontEnd
from run_events import T0, run_started

from hfta_nb import events as ev
from hfta_nb.records.history import Curve
from hfta_nb.ui import live_view
from hfta_nb.ui.live_state import DEVICE, LIMIT, STEP_LOSS, thin
from hfta_nb.ui.live_view import LiveView
from tests.node import result


def test_events_that_nobody_flushes_do_not_pile_up() -> None:
    view = LiveView()
    view.add(run_started({"seed": [0]}))
    for step in range(10 * LIMIT):
        view.add(ev.StepsDone(T0 + step, 0, step + 1, 10**6, step / 10, 1.0, 1.0, 1.0, (0,), (1.0,)))
    assert len(view._pending) <= live_view._BACKLOG
    assert len(view._state.history.members[0].step_loss.values) <= LIMIT
    assert view._state.points <= LIMIT


def noisy(count: int) -> list[float]:
    chance = random.Random(7)
    return [math.sin(i / 300) + chance.gauss(0, 0.1) for i in range(count)]


def test_thinning_bounds_a_curve_and_keeps_its_extremes() -> None:
    values = noisy(100_000)
    values[12_345], values[54_321], values[777] = 50.0, -40.0, math.nan
    view = LiveView()
    front = FrontEnd(view)
    view.add(run_started({"seed": [0]}))
    for step, value in enumerate(values):
        view.add(ev.StepsDone(T0 + step, 0, step + 1, 10**6, step / 10, 1.0, 1.0, 1.0, (0,), (value,)))
    view.flush()
    curve = front.curves[(0, STEP_LOSS)]
    assert LIMIT / 3 < len(curve.values) <= LIMIT
    assert max(curve.values) == 50.0
    assert min(curve.values) == -40.0
    assert curve.steps[-1] == 100_000
    assert curve.steps == sorted(set(curve.steps))
    assert all(curve.values[i] == pytest.approx(values[s - 1], rel=1e-6) for i, s in enumerate(curve.steps))
    # Not only the two: the outline of each part survives, old ones as well as new ones (to within two stretches).
    for begin in range(0, 100_000, 5_000):
        kept = [v for v, s in zip(curve.values, curve.steps, strict=True) if begin - 200 < s <= begin + 5_200]
        assert max(kept) >= np.float32(np.nanmax(values[begin : begin + 5_000]))
        assert min(kept) <= np.float32(np.nanmin(values[begin : begin + 5_000]))


def test_thinning_leaves_short_curves_alone_and_stands_nan() -> None:
    short = Curve()
    for i, value in enumerate(noisy(LIMIT)):
        short.add(i, i, value, T0 + i)
    before = list(short.values)
    thin(short)
    assert short.values == before
    lost = Curve()
    for i in range(LIMIT + 1):
        lost.add(i, i, math.nan, T0 + i)
    thin(lost)
    assert len(lost.values) < LIMIT
    assert len(lost.steps) == len(lost.times) == len(lost.epochs) == len(lost.values)


def test_the_page_thins_curves_as_python_does() -> None:
    chance = random.Random(5)
    values = [chance.gauss(0, 1) if i % 97 else math.nan for i in range(3 * LIMIT)]
    kept = result(
        "trace.js",
        """(() => {
          const trace = new module.Trace();
          given.forEach((v, i) => trace.add(i / 10, 3 * i, i / 5, v ?? NaN));
          return [...trace.step.subarray(0, trace.n)];
        })()""",
        [None if math.isnan(v) else v for v in values],
    )
    curve = Curve()
    for i, value in enumerate(values):
        curve.add(i / 10, 3 * i, value, i / 5)
        thin(curve)
    assert kept == curve.steps


def test_device_measurements_are_bounded_too() -> None:
    view = LiveView()
    front = FrontEnd(view)
    view.add(run_started({"seed": [0]}))
    for i in range(3 * LIMIT):
        view.add(ev.DeviceSampled(T0 + i, "cpu", {"core0": 1.0 if i == 1000 else 0.25}))
    view.flush()
    curve = front.curves[(DEVICE, "core_mean")]
    assert len(curve.values) <= LIMIT
    assert max(curve.values) == 1.0
