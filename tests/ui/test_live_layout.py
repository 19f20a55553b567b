"""The live view's text on members, metrics and measurements, and its traits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import traitlets
from front_end import FrontEnd
from run_events import T0, cpu_sample, epoch_done, run_started

from hfta_nb import events as ev
from hfta_nb.figures import colors
from hfta_nb.ui.live_state import DEVICE, STEP_LOSS
from hfta_nb.ui.live_view import LiveView

AXES = {"lr": [1e-3, 1e-2], "width": [8, 16]}


def test_layout_names_and_colours() -> None:
    view = LiveView()
    front = FrontEnd(view)
    view.start(run_started({"activation": ["<script>alert(1)</script>", "**relu**"], "lr": [1e-3, 1e-2]}))
    layout = front.messages[-1][0]["layout"]
    assert layout["members"][0]["label"] == "#0 activation=<script>alert(1)</script>, lr=0.001"
    assert [m["light"] for m in layout["members"]] == [colors.member(i).light for i in range(4)]
    assert [a["name"] for a in layout["axes"]] == ["activation", "lr"]
    lr = layout["axes"][1]
    assert lr["values"] == ["0.001", "0.01"]
    assert lr["light"] == [s.light for s in colors.axis("lr", (1e-3, 1e-2)).strokes]
    assert lr["of"] == [0, 1, 0, 1]
    assert layout["auto"] == ""


def test_names_leave_out_what_all_members_share() -> None:
    view = LiveView()
    front = FrontEnd(view)
    view.start(run_started({"lr": [1e-3, 1e-2], "batch_size": [64]}))
    assert [m["label"] for m in front.messages[-1][0]["layout"]["members"]] == ["#0 lr=0.001", "#1 lr=0.01"]


def test_the_best_and_the_blown_up_are_named() -> None:
    view = LiveView()
    front = FrontEnd(view)
    view.start(run_started(AXES))
    assert front.messages[-1][0]["run"] | {"best": None, "blown": []} == front.messages[-1][0]["run"]
    losses = [[2.3, 2.2, 2.4, 2.3], [1.0, 0.9, 2.3, 1e5], [0.8, 0.7, math.nan, 20.0]]
    for epoch, row in enumerate(losses, 1):
        view.add(epoch_done(epoch, 4, lambda _, m, row=row: row[m]))
    view.add(ev.MemberImproved(T0 + 7, 1, 3, "val_loss", 0.7))
    view.flush()
    run = front.messages[-1][0]["run"]
    assert run["best"] == 1
    assert run["blown"] == []  # 20 * 0.8 is less than ten times what they begin at
    view.add(epoch_done(4, 4, lambda _, m: 1e5 if m == 3 else 0.5))
    view.flush()
    assert front.messages[-1][0]["run"]["blown"] == [[3, "blown up: its training loss is 8e+04, members begin at 1.84"]]


def test_colour_is_by_an_axis_beyond_twelve_members() -> None:
    view = LiveView()
    front = FrontEnd(view)
    view.start(run_started({"lr": [1e-3, 1e-2], "width": list(range(1, 9))}))
    assert front.messages[-1][0]["layout"]["auto"] == "lr"


def test_metrics_are_paired() -> None:
    view = LiveView()
    front = FrontEnd(view)
    view.start(run_started(AXES, metrics=("train_loss", "val_loss", "grad_norm")))
    metrics = {m["name"]: m for m in front.messages[-1][0]["layout"]["metrics"]}
    assert metrics["loss"] == {"name": "loss", "label": "loss", "train": "train_loss", "validation": "val_loss"}
    assert metrics["grad_norm"]["validation"] == "grad_norm"
    assert metrics[STEP_LOSS]["train"] == STEP_LOSS


def test_cores_and_their_mean() -> None:
    view = LiveView()
    front = FrontEnd(view)
    sample = cpu_sample(1.0, cores=16)
    view.add(run_started(AXES))
    view.add(sample)
    view.flush()
    mean = sum(v for k, v in sample.values.items() if k.startswith("core")) / 16
    assert front.curves[(DEVICE, colors.CORES)].values[0] == pytest.approx(mean, rel=1e-6)
    lines = front.messages[-1][0]["device"]
    assert [line["key"] for line in lines if line["kind"] in ("fraction", "spread")] == [colors.CORES, *colors.SPREAD]
    cores = [v for k, v in sample.values.items() if k.startswith("core")]
    assert front.curves[(DEVICE, "core_max")].values[0] == pytest.approx(max(cores), rel=1e-6)


def test_measurement_that_appears_later_is_announced() -> None:
    view = LiveView()
    front = FrontEnd(view)
    front.hello()
    view.start(run_started(AXES))
    view.add(ev.DeviceSampled(T0 + 1, "cpu", {"core0": 0.5}))
    view.flush()
    view.add(ev.DeviceSampled(T0 + 2, "cpu", {"core0": 0.5}))
    view.flush()
    assert "device" not in front.messages[-1][0]
    view.add(ev.DeviceSampled(T0 + 3, "cpu", {"core0": 0.5, "power_w": 30.0}))
    view.flush()
    assert [line["key"] for line in front.messages[-1][0]["device"]] == [
        "core_mean",
        "core_min",
        "core_max",
        "power_w",
    ]


def test_traits_follow_the_run() -> None:
    view = LiveView(selected=[2, 9], color_by="gone")
    view.start(run_started(AXES, monitor="val_accuracy"))
    assert view.metric == "accuracy"
    assert view.selected == [2]
    assert view.color_by == ""
    assert view.running
    view.add(ev.RunChanged(T0 + 1, ev.PAUSED))
    view.flush()
    assert view.running  # it may go on
    view.add(ev.RunChanged(T0 + 2, ev.STOPPED))
    view.flush()
    assert not view.running


def test_metric_is_understood_with_its_split() -> None:
    view = LiveView(metric="val_accuracy")
    assert view.metric == "accuracy"
    view.start(run_started(AXES))
    assert view.metric == "accuracy"  # a choice that the run has is kept


@pytest.mark.parametrize("bad", [{"x_axis": "epochs"}, {"smoothing": 1.0}, {"split": "test"}, {"selected": ["a"]}])
def test_bad_traits_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(traitlets.TraitError):
        LiveView(**bad)
