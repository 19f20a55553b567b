"""Figures of a sweep: speed relative to serial training, and a metric over two axes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from run_events import T0, epoch_done, folded, run_started, whole_run

from hfta_nb import events as ev
from hfta_nb import figures
from hfta_nb.errors import HftaError
from hfta_nb.figures import colors
from hfta_nb.records import speeds
from hfta_nb.records.history import History

TWO = {"width": [16, 8], "lr": [1e-3, 1e-2, 1e-1]}


def texts(figure: Figure, axes: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[axes].texts if text.get_text()]


# Speed.


def measured(*paces: tuple[float, float]) -> History:
    """A run whose arrays take these times, in seconds: one after another, fused."""
    history = folded(whole_run({"lr": [1e-3, 1e-2]}))
    for group, (serial_s, fused_s) in enumerate(paces):
        history.add(ev.SpeedMeasured(T0, group, 3, 20, fused_s, serial_s, serial_s / fused_s, "all at once"))
    return history


def bars(figure: Figure) -> list[tuple[str, list[float]]]:
    """Colour and lengths of each kind of bar, from top to bottom."""
    return [(to_hex(c[0].get_facecolor()), [bar.get_width() for bar in c]) for c in figure.axes[0].containers]


def test_each_array_and_all_of_them_have_a_bar_of_each_kind() -> None:
    figure = figures.speedup(measured((0.03, 0.01), (0.01, 0.0025)))
    assert bars(figure) == [
        (colors.OKABE_ITO[1].light, pytest.approx([30, 10, 40])),
        (colors.OKABE_ITO[0].light, pytest.approx([10, 2.5, 12.5])),
    ]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [
        "array 0, 3 members", "array 1, 3 members", "all 6 members"]  # fmt: skip
    assert texts(figure)[3:] == [
        "10 ms, 3.00 times as fast", "2.5 ms, 4.00 times as fast", "12.5 ms, 3.20 times as fast"]  # fmt: skip
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [t.get_text() for t in legend.get_texts()] == ["one after another", "fused"]
    title = "Fused against one after another: a step 3.20x as fast\ncnn on digits, float32, a CPU"
    assert figure.get_suptitle() == title


def test_the_whole_run_is_drawn_above_its_steps() -> None:
    history = folded(whole_run({"lr": [1e-3, 1e-2]}))
    run = history.took_s
    steps = sum(m.step_loss.steps[-1] for m in history.members.values())
    validated = sum(len(m.curves["val_loss"].values) for m in history.members.values())
    history.add(ev.SpeedMeasured(T0, 0, 2, 20, 0.01, 0.04, 4.0, "all at once", serial_validation_s=0.5))
    serial = steps * 0.02 + validated * 0.25
    above, below = figures.speedup(history).axes
    assert [c[0].get_width() for c in above.containers] == pytest.approx([serial, run])  # type: ignore[index]
    assert [c[0].get_width() for c in below.containers] == pytest.approx([40, 10])  # type: ignore[index]
    assert (above.get_legend(), above.get_xlabel()) == (
        None,
        "time of the whole run so far; one after another is predicted",
    )
    title = figures.speedup(history).get_suptitle()
    assert title.startswith(f"Fused against one after another: the run {serial / run:.2f}x, a step 4.00x as fast\n")
    assert speeds.words(history) == f"slower: {serial / run:.3g}x as fast as one after another so far, a step 4x"
    history.add(ev.RunChanged(T0, ev.COMPLETE))
    assert "another, a step" in speeds.words(history)
    assert speeds.basis(history).startswith(
        "Against plain modules, timed beside 20 of the first steps in 1 of 1 arrays"
    )


def test_an_array_that_is_slower_is_called_so_with_the_reason() -> None:
    history = folded(whole_run({"lr": [1e-3, 1e-2]}))
    history.add(ev.SpeedMeasured(T0, 0, 2, 20, 0.01, 0.008, 0.8, "all at once"))
    assert speeds.words(history).startswith("slower: ")
    assert "serial=True" in speeds.basis(history)
    history.add(ev.SpeedMeasured(T0, 0, 2, 20, 1e4, 1e3, 0.1, "all at once", serial_validation_s=0.0))
    assert speeds.words(history).endswith("x as fast as one after another so far")
    assert "serial=True" not in speeds.basis(history)
    history.add(ev.SpeedMeasured(T0, 0, 2, 20, 1e-7, 1e-6, 10.0, "all at once", serial_validation_s=0.0))
    assert "a longer run gains more" in speeds.basis(history)


def steps_at(elapsed_s: float, samples_per_s: float) -> ev.StepsDone:
    return ev.StepsDone(T0, 0, 1, 2, 0.5, samples_per_s, elapsed_s, 1.0, (0,), (0.5,))


def test_a_rate_is_steady_while_something_is_tried() -> None:
    rate, shown = speeds.SteadyRate(), []
    for second in range(40):
        now = 253.0 if second in (0, 20, 21) else 17_500.0
        shown.append(rate.after(steps_at(second + 1.0, now)))
        assert rate.after(steps_at(second + 1.0, now)) == pytest.approx(shown[-1]), "one event is drawn more than once"
    assert 253 <= shown[0] < shown[5]
    assert min(shown[10:]) > 10_000
    assert shown[-1] > 17_000
    assert rate.after(steps_at(1.0, 100.0)) == pytest.approx(100.0)  # another run


def test_pauses_and_the_time_between_two_runs_are_no_part_of_a_run() -> None:
    history = History()
    told: list[tuple[float, type[ev.Event], tuple[Any, ...]]] = [
        (1, ev.PhaseChanged, (0, "building")), (3, ev.RunChanged, (ev.PAUSED,)), (50, ev.RunChanged, (ev.RUNNING,)),
        (52, ev.PhaseChanged, (0, "training"))]  # fmt: skip
    for run in range(2):
        start = run_started({"lr": [1e-3]}, resumed=bool(run))
        history.add(replace(start, time_s=T0 + 1000 * run))  # the first process was killed
        for after, event, fields in told:
            history.add(event(T0 + 1000 * run + after, *fields))
    assert history.took_s == 2 * 5


def test_one_array_is_all_and_of_many_the_sum_is_drawn() -> None:
    assert [len(lengths) for _, lengths in bars(figures.speedup(measured((0.03, 0.01))))] == [1, 1]
    many = figures.speedup(measured(*[(0.3, 0.1)] * 9))
    assert [t.get_text() for t in many.axes[0].get_yticklabels()] == ["all 27 members"]
    assert texts(many) == ["2.7 s", "0.9 s, 3.00 times as fast"]


def test_an_array_that_is_slower_is_shown_as_it_is() -> None:
    figure = figures.speedup(measured((0.01, 0.02)))
    assert texts(figure) == ["10 ms", "20 ms, 0.50 times as fast"]
    assert figure.axes[0].get_xlim()[1] > 20
    assert texts(figures.speedup(measured((0.9, 1.04)))) == ["0.9 s", "1.04 s, 0.87 times as fast"]
    assert figures.png(figure).startswith(b"\x89PNG")


def test_without_a_measurement_the_figure_says_so() -> None:
    for history in (History(), folded(whole_run({"lr": [1e-3, 1e-2]}))):
        figure = figures.speedup(history)
        assert texts(figure) == ["no array's speed was measured yet; a short first run on a machine has no time for it"]
        assert figures.png(figure).startswith(b"\x89PNG")


# Two axes.


def swept(losses: list[float], axes: dict[str, Any] | None = None) -> History:
    """A run of one epoch with these losses, in the order of the grid."""
    history = folded([run_started(axes or TWO, epochs=1), epoch_done(1, len(losses), lambda _, member: losses[member])])
    for member, loss in enumerate(losses):
        if math.isfinite(loss):
            history.add(ev.MemberImproved(T0, member, 1, "val_loss", loss))
        else:
            history.add(ev.MemberChanged(T0, member, ev.DIVERGED, "the loss is not finite"))
    return history


def cells(figure: Figure) -> dict[tuple[float, float], Rectangle]:
    """By column and row, from the lower left."""
    found = [p for p in figure.axes[0].patches if isinstance(p, Rectangle) and p.get_fill()]
    return {(p.get_x() + 0.5, p.get_y() + 0.5): p for p in found}


def frames(figure: Figure) -> list[tuple[int, int]]:
    found = [p for p in figure.axes[0].patches if isinstance(p, Rectangle) and not p.get_fill()]
    return [(round(p.get_x() + 0.46), round(p.get_y() + 0.44)) for p in found]


def test_values_of_both_axes_ascend_and_cells_hold_their_metric() -> None:
    figure = figures.heat_map(swept([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), "lr", "width")
    axes, bar = figure.axes
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0.001", "0.01", "0.1"]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["8", "16"]
    assert (axes.get_xlabel(), axes.get_ylabel(), bar.get_ylabel()) == ("lr", "width", "validation loss")
    told = {(t.get_position()): t.get_text() for t in axes.texts}
    assert told[(0, 1)] == "0.1"  # width 16, which the grid has first
    assert told[(2, 0)] == "0.6"
    found = cells(figure)
    assert to_hex(found[(0, 1)].get_facecolor()) == colors.sequential(0).light
    assert to_hex(found[(2, 0)].get_facecolor()) == colors.sequential(1).light
    assert frames(figure) == [(0, 1)]
    assert figures.png(figure).startswith(b"\x89PNG")


def test_another_metric_is_drawn_without_saying_which_is_best() -> None:
    history = swept([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    figure = figures.heat_map(history, "lr", "width", "val_accuracy")
    assert frames(figure) == []
    assert texts(figure)[0] == f"{math.exp(-0.1):.4g}"


def test_more_axes_are_averaged_over_and_lost_members_told_of() -> None:
    axes = {"width": [8, 16], "lr": [1e-3, 1e-2], "seed": [0, 1]}
    figure = figures.heat_map(swept([0.1, 0.3, 0.01, math.nan, math.nan, math.nan, 0.25, 0.35], axes), "lr", "width")
    assert texts(figure) == ["0.2", "0.01\n1 of 2", "lost", "0.3"]
    assert figure.axes[1].get_ylabel() == "validation loss, mean over seed"
    assert frames(figure) == [(0, 0)]  # that with the lucky seed lost the other one
    assert cells(figure)[(0, 1)].get_facecolor()[:3] == pytest.approx((0.93, 0.94, 0.95))


def test_a_member_gone_off_leaves_the_others_to_be_told_apart() -> None:
    figure = figures.heat_map(swept([0.1, 0.2, 0.3, 0.4, 0.5, 1e12]), "lr", "width")
    found = cells(figure)
    assert found[(0, 1)].get_facecolor() != found[(1, 0)].get_facecolor()
    assert figures.png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("losses", [[0.5] * 6, [math.nan] * 6, [0.0, 1e300, 1.0, 1.0, 1.0, 1.0]])
def test_any_values_draw(losses: list[float]) -> None:
    figure = figures.heat_map(swept(losses), "lr", "width")
    assert len(cells(figure)) == 6
    assert figures.png(figure).startswith(b"\x89PNG")


def test_numbers_are_legible_on_their_cells_and_left_out_of_many() -> None:
    figure = figures.heat_map(swept([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), "lr", "width")
    for text in figure.axes[0].texts:
        cell = cells(figure)[text.get_position()]
        contrast = abs(sum(to_rgba(text.get_color())[:3]) - sum(cell.get_facecolor()[:3]))
        assert contrast > 0.9
    many = {"lr": [k / 100 for k in range(1, 13)], "width": [8, 16]}
    assert texts(figures.heat_map(swept([0.1 + k / 10 for k in range(24)], many), "lr", "width")) == []


def test_nothing_yet() -> None:
    assert texts(figures.heat_map(History(), "lr", "width")) == ["no run yet"]
    assert texts(figures.heat_map(folded([run_started(TWO)]), "lr", "width")) == ["-"] * 6


def test_wrong_axes_and_metrics_say_which_there_are() -> None:
    history = swept([0.1] * 6)
    with pytest.raises(HftaError, match=r"y: not an axis of the grid; got 'wdth'; accepted: width, lr"):
        figures.heat_map(history, "lr", "wdth")
    with pytest.raises(HftaError, match=r"y: the axis of the other direction; got 'lr'; accepted: width"):
        figures.heat_map(history, "lr", "lr")
    with pytest.raises(HftaError, match="metric: the run has no such metric"):
        figures.heat_map(history, "lr", "width", "val_los")
