"""The Gantt chart of a plan: a box for each group on its devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from hfta_nb import events as ev
from hfta_nb import figures, fleet
from hfta_nb.errors import StudyError
from hfta_nb.figures import colors
from hfta_nb.records.history import History
from tests.executors.fakes import started

RATES = {"a": [60.0, 61], "b": [50.0, 51], "c": [50.0, 51]}


def collections(figure: Figure) -> list[PolyCollection]:
    return [c for c in figure.axes[0].collections if isinstance(c, PolyCollection)]


def corners(collection: PolyCollection) -> list[tuple[float, ...]]:
    """Left, right, and the first and last device of each box."""
    found = []
    for path in collection.get_paths():
        points: Any = np.asarray(path.vertices)
        (left, low), (right, high) = points.min(axis=0), points.max(axis=0)
        found.append((float(left), float(right), round(float(low)), round(float(high))))
    return found


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_boxes_are_where_the_plan_has_them_and_a_checkpoint_is_hatched() -> None:
    plan = fleet.plan(RATES, 2, {"a": 1, "b": 2, "c": 1}, samples_per_epoch=100, gpus_per_node=1, method="global")
    figure = figures.gantt(plan)
    finished, stopped = collections(figure)
    assert corners(finished) == [(0.0, 2.0, 0, 0), (2.0, 4.0, 0, 0), (2.0, 4.0, 1, 1)]
    assert corners(stopped) == [(0.0, 2.0, 1, 1)]
    assert (finished.get_hatch() or "", bool(stopped.get_hatch())) == ("", True)
    shades = [to_hex(color) for color in finished.get_facecolor()]
    assert shades == [colors.OKABE_ITO[i].light for i in (0, 1, 2)]
    assert to_hex(stopped.get_facecolor()[0]) == colors.OKABE_ITO[1].light
    assert texts(figure) == ["a", "b", "b", "c"]
    (line,) = figure.axes[0].get_lines()
    assert list(line.get_xdata()) == [2.0, 2.0]
    (title,) = [text.get_text() for text in figure.texts]
    assert title == f"2 flotillas on 2 devices, which compute {plan.utilization:.0%} of the time"


def test_names_are_readable_where_boxes_are_hatched() -> None:
    plan = fleet.plan(RATES, 2, {"a": 1, "b": 2, "c": 1}, samples_per_epoch=100, gpus_per_node=1, method="global")
    patches = [text.get_bbox_patch() for text in figures.gantt(plan).axes[0].texts]
    assert [patch is not None for patch in patches] == [False, True, False, False]
    assert patches[1] is not None
    assert to_hex(patches[1].get_facecolor()) == colors.OKABE_ITO[1].light


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (1.5, ["0 s", "0.3 s", "0.6 s", "0.9 s", "1.2 s", "1.5 s"]),
        (11, ["0:00", "0:02", "0:04", "0:06", "0:08", "0:10"]),
        (260, ["0:00", "1:00", "2:00", "3:00", "4:00"]),
        (17_000, ["0:00", "1:00:00", "2:00:00", "3:00:00", "4:00:00"]),
    ],
)
def test_ticks_are_those_of_a_clock(seconds: float, told: list[str]) -> None:
    flotilla = fleet.Flotilla(0.0, 1.0, {"a": (0,)}, {"a": seconds}, ("a",))
    figure = figures.gantt(fleet.Plan("", 1, (flotilla,), seconds))
    figures.png(figure)
    axis = figure.axes[0].xaxis
    low, high = axis.get_view_interval()
    shown = [(t.get_loc(), t.label1.get_text()) for t in axis.get_major_ticks()]
    assert [text for place, text in shown if low <= place <= high + 1e-9] == told


def test_devices_apart_are_boxes_apart() -> None:
    flotilla = fleet.Flotilla(0.0, 1.0, {"a": (0, 1, 3), "b": (2,)}, {"a": 5.0, "b": 5.0}, ("a", "b"))
    finished, _ = collections(figures.gantt(fleet.Plan("", 4, (flotilla,), 20.0)))
    assert corners(finished) == [(0.0, 5.0, 0, 1), (0.0, 5.0, 3, 3), (0.0, 5.0, 2, 2)]


@pytest.mark.parametrize(("groups", "axes"), [(12, 1), (13, 2)])
def test_of_many_groups_colour_is_the_number_of_devices(groups: int, axes: int) -> None:
    rates = {f"${i}": [100.0 + 10 * i, 180.0 + 10 * i] for i in range(groups)}
    figure = figures.gantt(fleet.plan(rates, 4, 1, method="global"))
    assert len(figure.axes) == axes
    assert (figure.axes[0].get_legend() is None) == (axes == 2)
    assert figures.png(figure)


def test_a_group_has_the_same_colour_in_every_plan_of_it() -> None:
    rates = {"array 10": [30.0], "array 9": [20.0], "array 2": [10.0]}
    legends = []
    for plan in fleet.simulate(rates, 2, 1).plans.values():
        legend = figures.gantt(plan).axes[0].get_legend()
        assert legend is not None
        legends.append([text.get_text() for text in legend.get_texts()])
    assert legends == [["array 2", "array 9", "array 10"]] * 5


def test_names_are_drawn_where_they_fit() -> None:
    rates = {"quick": [1000.0], "a name that is long enough not to fit": [1.0]}
    figure = figures.gantt(fleet.plan(rates, 1, 1, method="global"))
    assert texts(figure) == ["a name that is long…"]
    assert figure.get_figheight() < 5


def test_a_cluster_is_drawn() -> None:
    rates = {str(i): [20.0 + i, 35.0 + i] for i in range(400)}
    plan = fleet.plan(rates, 100, 3, method="local")
    figure = figures.gantt(plan)
    assert sum(map(len, map(corners, collections(figure)))) >= 400
    assert figure.get_figheight() <= 7
    assert figures.png(figure, dpi=50)


# A run.


def ran() -> History:
    """Two arrays on two places; one ends in a checkpoint, and goes on with both."""
    history = History()
    for event in [
        started(),
        ev.ArrayPlaced(100.0, 0, "process 1", (0,), 2),
        ev.ArrayPlaced(100.0, 1, "process 2", (1,), 2),
        ev.ArrayPlaced(104.0, 0, "process 1", (), 2, True),
        ev.ArrayPlaced(106.0, 1, "process 2", (), 2),
        ev.ArrayPlaced(106.0, 1, "process 3", (0, 1), 2),
    ]:
        history.add(event)
    return history


def test_a_run_has_a_box_for_each_worker_of_an_array() -> None:
    history = ran()
    history.add(ev.RunChanged(110.0, ev.STOPPED))
    figure = figures.placements(history)
    finished, stopped = collections(figure)
    assert corners(finished) == [(0.0, 4.0, 0, 0)]
    assert corners(stopped) == [(0.0, 6.0, 1, 1), (6.0, 10.0, 0, 1)]
    assert {"array 0", "array 1"} == set(texts(figure))
    assert figure.axes[0].get_ylabel() == "worker"
    assert figure._suptitle is not None  # type: ignore[attr-defined]
    assert figure._suptitle.get_text() == "2 arrays on 2 workers, which train 90% of the time"  # type: ignore[attr-defined]


def test_an_array_that_still_trains_has_a_box_up_to_now() -> None:
    history = ran()
    history.add(ev.StepsDone(108.0, 1, 3, 9, 0.5, 1e4, 2.0, 1.0, (0, 1), (0.5, 0.5)))
    _, stopped = collections(figures.placements(history))
    assert corners(stopped)[-1] == (6.0, 8.0, 0, 1)


def test_a_run_in_one_process_has_no_such_figure() -> None:
    with pytest.raises(StudyError, match="no array was given to a worker"):
        figures.placements(History())
