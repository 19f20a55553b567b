"""Figures: every member in its colour, whatever happened and whatever its name."""

from __future__ import annotations

import dataclasses
import io
import math
import re
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from run_events import T0, cpu_sample, epoch_done, folded, gpu_sample, learning, run_started, whole_run

from hfta_nb import events as ev
from hfta_nb import figures
from hfta_nb.errors import HftaError
from hfta_nb.figures import canvas, colors
from hfta_nb.records.history import History

FEW = {"lr": [1e-3, 1e-2], "width": [8, 16]}
MANY = {"lr": [1e-4, 1e-3, 1e-2, 1e-1], "width": [8, 16, 32, 64]}


def pixels(figure: Figure) -> np.ndarray[Any, Any]:
    return np.asarray(imread(io.BytesIO(figures.png(figure, dpi=60))))


def solid(figure: Figure) -> list[Any]:
    """The main curves of the first axes, in the order of the members."""
    return [line for line in figure.axes[0].get_lines() if line.get_linewidth() == 1.6]


def legend_texts(figure: Figure, axes: int = 0) -> list[str]:
    legend = figure.axes[axes].get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend else []


def test_curves_hold_the_history_in_the_members_colours() -> None:
    history = folded(whole_run(FEW))
    lines = solid(figures.curves(history, "val_loss"))
    assert [to_hex(line.get_color()) for line in lines] == [colors.member(i).light for i in range(4)]
    curve = history.members[2].curves["val_loss"]
    assert list(lines[2].get_xdata()) == curve.epochs
    assert list(lines[2].get_ydata()) == curve.values


@pytest.mark.parametrize("x_axis", ["step", "time"])
def test_other_axes(x_axis: str) -> None:
    history = folded(whole_run(FEW))
    curve = history.members[0].curves["val_loss"]
    expected = curve.steps if x_axis == "step" else [t - T0 for t in curve.times]
    assert list(solid(figures.curves(history, x_axis=x_axis))[0].get_xdata()) == expected


def test_times_of_a_resumed_run_count_from_its_first_start() -> None:
    again = dataclasses.replace(run_started(FEW, resumed=True), time_s=T0 + 60)
    events = [run_started(FEW), epoch_done(1, 4, learning), again, epoch_done(2, 4, learning, T0 + 70)]
    (line, *_) = solid(figures.curves(folded(events), x_axis="time"))
    assert list(line.get_xdata()) == [2.0, 70.0]


def test_training_is_dotted_beside_validation() -> None:
    history = folded(whole_run(FEW))
    dotted = [line for line in figures.curves(history).axes[0].get_lines() if line.get_linewidth() == 1.0]
    assert list(dotted[0].get_ydata()) == history.members[0].curves["train_loss"].values
    assert len(figures.curves(history, train=False).axes[0].get_lines()) == 5  # four members and a cross


def test_legend_up_to_twelve_members_and_colour_bar_beyond() -> None:
    few = figures.curves(folded(whole_run(FEW)))
    assert legend_texts(few)[0] == "#0 lr=0.001, width=8"
    assert len(few.axes) == 1
    many = figures.curves(folded(whole_run(MANY)))
    assert legend_texts(many) == []
    bar = many.axes[1]
    assert bar.get_ylabel() == "lr"
    assert [t.get_text() for t in bar.get_yticklabels()] == ["0.0001", "0.001", "0.01", "0.1"]
    chosen = figures.curves(folded(whole_run(MANY)), color_by="width")
    assert chosen.axes[1].get_ylabel() == "width"
    scheme = colors.axis("width", (8, 16, 32, 64))
    assert [to_hex(line.get_color()) for line in solid(chosen)[:4]] == [s.light for s in scheme.strokes]


def test_ended_member_is_marked_at_its_last_point_and_named() -> None:
    figure = figures.curves(folded(whole_run(FEW)), log_y=True)
    crosses = [line for line in figure.axes[0].get_lines() if line.get_marker() == "x"]
    assert [(list(c.get_xdata()), list(c.get_ydata())) for c in crosses] == [([7], [100.0])]
    assert "#1 lr=0.001, width=16 (diverged)" in legend_texts(figure)


def test_one_member_gone_off_leaves_the_others_legible() -> None:
    history = folded(whole_run(FEW))
    _, high = figures.curves(history).axes[0].get_ylim()
    assert high < 10  # member 1 went to 100
    log_high = figures.curves(history, log_y=True).axes[0].get_ylim()[1]
    assert log_high > 100


def test_curves_that_cross_are_seen_whole() -> None:
    told = [[0.85, 1.14, 0.78, 1.51], [0.38, 0.32, 1.13, 0.78], [0.71, 0.94, 1.11, 0.69], [0.8, 0.26, 0.82, 0.7]]
    done = [epoch_done(e, 4, lambda epoch, member: told[member][epoch - 1]) for e in range(1, 5)]
    low, high = figures.curves(folded([run_started(FEW), *done]), train=False).axes[0].get_ylim()
    assert low < 0.26
    assert high > 1.51
    far = epoch_done(5, 4, lambda epoch, member: 1e12 if member == 2 else 1.0)
    assert figures.curves(folded([run_started(FEW), *done, far])).axes[0].get_ylim()[1] < 10


def test_stopped_early_is_marked_and_simply_complete_is_not() -> None:
    history = folded(whole_run({"lr": [1.0, 2.0]}))
    history.add(ev.MemberChanged(T0, 0, ev.COMPLETE))
    history.add(ev.MemberChanged(T0, 1, ev.COMPLETE, "no better for 5 epochs"))
    assert legend_texts(figures.curves(history)) == ["#0 lr=1", "#1 lr=2 (complete)"]


@pytest.mark.parametrize("make", [figures.curves, figures.utilization, figures.summary])
def test_nothing_yet(make: Any) -> None:
    for history in (History(), folded([run_started(FEW)])):
        figure = make(history)
        assert any("yet" in text.get_text() for axes in figure.axes for text in axes.texts)
        assert figures.png(figure).startswith(b"\x89PNG")


def test_one_point_only_can_be_seen() -> None:
    history = folded([run_started({"lr": [1e-3, 1e-2]}), epoch_done(1, 2, learning), cpu_sample(1.0)])
    for log_y in (False, True):
        lines = solid(figures.curves(history, train=False, log_y=log_y))
        assert [line.get_marker() for line in lines] == ["o", "o"]
    blue = np.array([0x00, 0x72, 0xB2]) / 255
    drawn = np.abs(pixels(figures.curves(history, train=False))[..., :3] - blue).max(axis=-1) < 0.05
    assert drawn.sum() > 10
    assert figures.png(figures.utilization(history)).startswith(b"\x89PNG")


@pytest.mark.each("value")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, 1e300, 1e-300, -1.0])
@pytest.mark.parametrize("log_y", [False, True])
def test_any_value_draws(value: float, log_y: bool) -> None:
    events = [run_started({"lr": [1e-3, 1e-2]})]
    events += [epoch_done(e, 2, lambda epoch, m: value if m else learning(epoch, m)) for e in range(1, 4)]
    assert figures.png(figures.curves(folded(events), log_y=log_y)).startswith(b"\x89PNG")


def test_all_values_lost() -> None:
    events = [run_started({"lr": [1e-3, 1e-2]}), epoch_done(1, 2, lambda *_: math.nan)]
    for log_y in (False, True):
        assert figures.png(figures.curves(folded(events), log_x=log_y, log_y=log_y)).startswith(b"\x89PNG")


def test_names_are_drawn_letter_by_letter() -> None:
    names = ["$x^2$", "_a_", "**b**", "<script>alert(1)</script>", "back\\slash$", "two\nlines", "日本"]
    figure = figures.summary(folded(whole_run({"name": names})))
    texts = legend_texts(figure)
    assert texts[0] == r"#0 name=\$x^2\$"
    assert texts[3] == "#3 name=<script>alert(1)</script>"
    assert "\n" not in texts[5]
    assert figures.png(figure).startswith(b"\x89PNG")  # an unescaped $...$ with a bad formula would raise here


def test_long_names_are_shortened() -> None:
    assert len(canvas.plain("x" * 500)) == 60
    assert canvas.plain("a$b") == r"a\$b"


def test_utilization_has_fractions_and_memory_in_gib() -> None:
    history = folded(whole_run(FEW))
    left, right = figures.utilization(history).axes
    names = legend_texts(figures.utilization(history))
    assert names == ["SM active", "SM occupancy", "tensor cores", "DRAM", "memory (right)"]
    assert right.get_ylabel() == "memory, GiB"
    (memory,) = right.get_lines()
    assert memory.get_ydata()[-1] == pytest.approx(history.samples[-1].values["memory_bytes"] / 2**30)
    assert list(left.get_lines()[0].get_xdata()) == [s.time_s - T0 for s in history.samples]


def test_another_device_has_thin_lines_of_its_own() -> None:
    def sample(second: float, device: str) -> ev.DeviceSampled:
        return dataclasses.replace(gpu_sample(second), device=device)

    events = [sample(s, device) for s in (1.0, 2.0) for device in ("cuda:1", "cuda:0")]
    left, right = figures.utilization(folded([run_started(FEW, device="cuda:0"), *events])).axes
    own, other = left.get_lines()[:2]
    assert (len(own.get_xdata()), len(other.get_xdata())) == (2, 2)
    assert own.get_linewidth() > other.get_linewidth()
    assert len(right.get_lines()) == 2


SECONDS, CLOCK = r"-?[\d.]+ s", r"-?(\d+:)?\d+:\d\d"


@pytest.mark.parametrize(("length_s", "kind"), [(0.1, SECONDS), (5.6, SECONDS), (50.0, CLOCK), (7300.0, CLOCK)])
def test_times_on_an_axis_are_of_one_kind(length_s: float, kind: str) -> None:
    figure = figures.utilization(folded([run_started(FEW), cpu_sample(0.0), cpu_sample(length_s)]))
    pixels(figure)
    shown = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert len(set(shown)) == len(shown) > 2
    assert [text for text in shown if not re.fullmatch(kind, text)] == []


def test_pauses_are_shaded() -> None:
    axes = figures.utilization(folded(whole_run(FEW))).axes[0]
    (shade,) = axes.patches
    assert (shade.get_x(), shade.get_width()) == (19.0, 7.0)
    still = folded([run_started(FEW), cpu_sample(1.0), cpu_sample(9.0), ev.RunChanged(T0 + 5, ev.PAUSED)])
    (open_shade,) = figures.utilization(still).axes[0].patches
    assert open_shade.get_x() + open_shade.get_width() == pytest.approx(9.0)


def test_many_cores_stand_behind_their_mean() -> None:
    figure = figures.utilization(folded(whole_run(FEW, sample=lambda s: cpu_sample(s, 16))))
    assert legend_texts(figure)[0] == "CPU"
    assert len(legend_texts(figure)) == 3


def test_summary_says_what_ran_and_draws_the_monitored_metric() -> None:
    history = folded(whole_run(FEW))
    figure = figures.summary(history)
    assert figure.get_suptitle() == "cnn on digits, 4 members, a CPU: running"
    assert figure.axes[0].get_ylabel() == "validation loss, training dotted"


def test_unknown_metric_says_which_there_are() -> None:
    with pytest.raises(HftaError, match=r"metric: the run has no such metric.*val_loss, train_accuracy"):
        figures.curves(folded(whole_run(FEW)), "val_los")
    with pytest.raises(HftaError, match="x_axis: no such axis"):
        figures.curves(folded(whole_run(FEW)), x_axis="epochs")
