"""Figures of what decides: of grids and of searches, with few variants and with many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch

import hfta_nb as hfta
from hfta_nb import figures
from hfta_nb.errors import HftaError, StudyError
from hfta_nb.figures import colors
from hfta_nb.figures.fronts import front
from hfta_nb.records.history import History
from tests.tried import ACTIVATIONS, grid, random_configs, swept

BEST = colors.OKABE_ITO[3].light
GRID = {"lr": [1e-4, 1e-3, 1e-2, 1e-1], "width": [8, 16, 24]}
DRAW: dict[str, Callable[[History], Figure]] = {
    "parallel": figures.parallel_coordinates,
    "slices": figures.slices,
    "best_so_far": figures.best_so_far,
    "contour": lambda history: figures.contour(history, "lr", "width"),
    "pareto": lambda history: figures.pareto(history, [("val_accuracy", True), ("train_loss", False)]),
}


def scattered(figure: Figure, panel: int = 0) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for c in figure.axes[panel].collections if isinstance(c, PathCollection)
            for x, y in c.get_offsets()]  # type: ignore[union-attr]  # fmt: skip


@pytest.mark.parametrize("kind", DRAW)
@pytest.mark.parametrize("count", [2, 200])
def test_figures_of_few_and_of_many_variants(kind: str, count: int) -> None:
    history = swept(random_configs(count), pruned=0.5 if count > 2 else 0.0, bad=3 if count > 2 else 0)
    assert figures.png(DRAW[kind](history), dpi=40).startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", DRAW)
def test_nothing_finite_is_told(kind: str) -> None:
    history = swept(grid(**GRID), bad=12)
    with pytest.raises(StudyError, match="no member has a finite"):
        DRAW[kind](history)
    with pytest.raises(StudyError, match="not run yet"):
        DRAW[kind](History())


def test_what_makes_no_sense_is_told() -> None:
    one = swept(grid(lr=GRID["lr"]))
    for draw in (figures.parallel_coordinates, DRAW["contour"]):
        with pytest.raises(StudyError, match=r"only one axis varies; got .'lr'.; accepted: 2 or more"):
            draw(one)
    figures.slices(one)
    with pytest.raises(StudyError, match="no axis varies"):
        figures.slices(swept(grid(lr=[1e-3], width=[8])))
    both = swept(grid(**GRID))
    with pytest.raises(StudyError, match="b: not an axis that varies; got 'widht'; accepted: lr, width"):
        figures.contour(both, "lr", "widht")
    with pytest.raises(StudyError, match="b: the axis of the other direction"):
        figures.contour(both, "lr", "lr")
    with pytest.raises(StudyError, match="metric: the run has no such metric; got 'val_f1'"):
        figures.slices(both, "val_f1")
    for wrong in (["val_loss"], ["val_loss", "val_loss"], ["val_loss", *"abcd"]):
        with pytest.raises(StudyError, match="objectives: a Pareto front needs several objectives"):
            figures.pareto(both, [(name, False) for name in wrong])
    with pytest.raises(StudyError, match="no such metric; got 'val_f1'"):
        figures.pareto(both, [("val_loss", False), ("val_f1", True)])


def test_axes_are_logarithmic_where_they_are() -> None:
    slices = figures.slices(swept(grid(**GRID)))
    assert [axes.get_xscale() for axes in slices.axes] == ["log", "linear"]
    drawn = swept(grid(lr=[1e-3, 2e-3], width=[8, 16]))  # two values don't say what they are
    assert figures.slices(drawn).axes[0].get_xscale() == "linear"
    assert figures.slices(drawn, log={"lr"}).axes[0].get_xscale() == "log"
    contour = figures.contour(swept(grid(**GRID)), "width", "lr")
    assert (contour.axes[0].get_xscale(), contour.axes[0].get_yscale()) == ("linear", "log")


def test_a_slice_has_a_point_of_each_configuration() -> None:
    history = swept(grid(**GRID, activation=ACTIVATIONS))
    figure = figures.slices(history)
    assert [axes.get_xlabel() for axes in figure.axes] == ["lr", "width", "activation"]
    expected = sorted((m.config["lr"], m.best_value) for m in history.members.values())
    assert sorted(scattered(figure)) == [pytest.approx(pair) for pair in expected]
    best = [c for c in figure.axes[1].collections if to_hex(c.get_edgecolor()[0]) == BEST]  # type: ignore[index]
    assert [tuple(c.get_offsets()[0]) for c in best] == [  # type: ignore[index]
        pytest.approx((24.0, min(m.best_value for m in history.members.values())))]  # fmt: skip
    assert [t.get_text() for t in figure.axes[2].get_xticklabels()] == ["gelu", "relu", "tanh"]


def test_outliers_lie_at_the_edge_and_pruned_ones_are_rings() -> None:
    history = swept(random_configs(40), pruned=0.3)
    history.members[3].best_value = 1e6
    history.members[3].curves["val_loss"].values = [1e6] * 6
    figure = figures.slices(history)
    assert max(y for _, y in scattered(figure)) < 10
    rings = [c for c in figure.axes[0].collections if to_hex(c.get_facecolor()[0]) == "#ffffff"]  # type: ignore[index]
    assert [len(ring.get_offsets()) for ring in rings] == [12]  # type: ignore[arg-type]


def test_seeds_are_averaged_and_are_no_axis() -> None:
    history = swept(grid(**GRID), seeds=[0, 1, 2])
    figure = figures.slices(history)
    assert [axes.get_xlabel() for axes in figure.axes] == ["lr", "width"]
    assert len(scattered(figure)) == 12
    alone = swept(grid(lr=[1e-3]), seeds=[0, 1, 2])
    assert [axes.get_xlabel() for axes in figures.slices(alone).axes] == ["seed"]


def test_each_configuration_is_a_line_through_all_axes_and_the_best_is_on_top() -> None:
    history = swept(grid(**GRID, activation=ACTIVATIONS))
    [axes] = figures.parallel_coordinates(history).axes
    lines = [p for p in axes.patches if isinstance(p, PathPatch)]
    assert len(lines) == len(history.members)
    best = max(lines, key=lambda line: line.get_zorder())
    assert to_hex(best.get_edgecolor()) == BEST
    points = best.get_path().vertices
    member = history.leaderboard()[0]
    assert points[0][1] == pytest.approx(GRID["lr"].index(member.config["lr"]) / 3)  # type: ignore[arg-type, index]
    assert points[-1][1] == pytest.approx(0)  # the least loss
    assert [t.get_text() for t in axes.get_xticklabels()] == ["lr", "width", "activation", "validation loss"]


def test_a_contour_is_of_the_means_over_other_axes() -> None:
    history = swept(grid(**GRID, activation=ACTIVATIONS))
    figure = figures.contour(history, "lr", "width")
    points = figure.axes[0].collections[-2]
    offsets = [tuple(p) for p in points.get_offsets()]  # type: ignore[union-attr]
    values: Any = points.get_array()
    assert len(offsets) == 12
    mine = [m.best_value for m in history.members.values() if (m.config["lr"], m.config["width"]) == (1e-2, 16)]
    assert values[offsets.index((1e-2, 16.0))] == pytest.approx(sum(mine) / 3)
    assert figure.axes[1].get_ylabel() == "validation loss"
    figures.contour(history, "lr", "activation")
    figures.contour(history, "activation", "lr")


def test_the_front_is_of_members_that_no_other_beats() -> None:
    values = {0: (0.9, 10.0), 1: (0.8, 5.0), 2: (0.8, 6.0), 3: (0.7, 5.0), 4: (0.95, 20.0), 5: (0.9, 10.0)}
    assert front(values, [True, False]) == [0, 1, 4, 5]
    assert front(values, [True, True]) == [4]
    assert front({0: (1.0, 1.0, 2.0), 1: (2.0, 2.0, 1.0), 2: (2.0, 2.0, 2.0)}, [False] * 3) == [0, 1]


def test_a_front_is_drawn_with_the_members_numbers() -> None:
    history = swept(grid(**GRID))
    sizes = {m.id: float(m.config["width"]) for m in history.members.values()}  # type: ignore[arg-type]
    figure = figures.pareto(history, [("val_accuracy", True), ("parameters", False)], {"parameters": sizes})
    [axes] = figure.axes
    assert axes.get_xlabel() == "parameters (less is better)"
    assert axes.get_ylabel() == "validation accuracy (more is better)"
    values = {m.id: (m.at_best("val_accuracy"), sizes[m.id]) for m in history.members.values()}
    assert {t.get_text() for t in axes.texts} == {f"#{m}" for m in front(values, [True, False])}
    costs = {"parameters": sizes, "time_s": sizes}
    three = figures.pareto(history, [("val_loss", False), ("parameters", False), ("time_s", False)], costs)
    assert len(three.axes) == 3


def test_importances_are_bars_with_the_largest_on_top() -> None:
    figure = figures.importances({"lr": 0.75, "width": 0.25}, "val_loss")
    [axes] = figure.axes
    assert [t.get_text() for t in axes.get_yticklabels()] == ["width", "lr"]
    assert [t.get_text() for t in axes.texts] == ["25%", "75%"]
    with pytest.raises(StudyError, match="no axis varies"):
        figures.importances({}, "val_loss")


def test_a_confusion_matrix_counts_the_validation_samples(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(60, 4), torch.randint(0, 3, (60,))
    study = hfta.Study("mlp", {"lr": [1e-3, 1e-1]}, (x, y, x[:20], y[:20]), epochs=1, directory=tmp_path)
    with pytest.raises(StudyError, match="no member has"):
        study.confusion_matrix()
    study.fit(progress=False)
    figure = study.confusion_matrix(1)
    guess = study.member(1).module()(x[:20]).argmax(1)
    expected = [int(((y[:20] == a) & (guess == b)).sum()) for a in range(3) for b in range(3)]
    assert sum(int(text.get_text()) for text in figure.axes[0].texts) == 20
    shown = {(round(t.get_position()[1]), round(t.get_position()[0])): int(t.get_text()) for t in figure.axes[0].texts}
    assert [shown.get((a, b), 0) for a in range(3) for b in range(3)] == expected
    numbers = hfta.Study("mlp", {"lr": [1e-3]}, (x, x.sum(1)), epochs=1, directory=tmp_path / "numbers")
    with pytest.raises(StudyError, match="no confusion matrix of this data"):
        numbers.confusion_matrix()
    with pytest.raises(HftaError, match="not a square"):
        figures.confusion_matrix([[1, 2]])
