"""Colours: distinct, legible in both themes, ordered like the values, and the same everywhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hfta_nb.errors import GridError
from hfta_nb.figures import colors
from hfta_nb.records.events import VariantRecord
from hfta_nb.search.grid import Grid, Variant


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def record(variant: int, **config: object) -> VariantRecord:
    return VariantRecord(variant, config, 0)  # type: ignore[arg-type]


def test_first_members_take_the_palette_then_dashes() -> None:
    strokes = [colors.member(i) for i in range(32)]
    assert [s.light for s in strokes[:3]] == ["#0072b2", "#e69f00", "#009e73"]
    assert all(not s.dash for s in strokes[:8])
    assert all(s.dash for s in strokes[8:])
    assert len(set(strokes)) == 32


@pytest.mark.parametrize("place", range(8))
def test_palette_can_be_seen_in_both_themes(place: int) -> None:
    stroke = colors.OKABE_ITO[place]
    assert contrast(stroke.light, "#ffffff") > 1.9
    assert contrast(stroke.dark, "#111111") > 3.0


def test_sequential_is_viridis_without_the_end_that_vanishes() -> None:
    colormaps = pytest.importorskip("matplotlib").colormaps
    to_rgb = pytest.importorskip("matplotlib.colors").to_rgb
    for position in (0.0, 0.13, 0.5, 0.77, 1.0):
        stroke = colors.sequential(position)
        for color, place in ((stroke.light, 0.85 * position), (stroke.dark, 0.25 + 0.75 * position)):
            assert to_rgb(color) == pytest.approx(colormaps["viridis"](place)[:3], abs=0.02)
    assert contrast(colors.sequential(1.0).light, "#ffffff") > 1.6
    assert contrast(colors.sequential(0.0).dark, "#111111") > 2.3


def test_sequential_lightness_grows() -> None:
    for theme in ("light", "dark"):
        values = [luminance(getattr(colors.sequential(i / 20), theme)) for i in range(21)]
        assert values == sorted(values)


def test_positions_outside_are_clamped() -> None:
    assert colors.sequential(-3.0) == colors.sequential(0.0)
    assert colors.sequential(7.0) == colors.sequential(1.0)


def test_numbers_spaced_by_ratio_are_placed_by_logarithm() -> None:
    lr = colors.axis("lr", (1e-1, 1e-3, 1e-2))
    assert lr.sequential
    assert lr.log
    assert lr.values == (1e-3, 1e-2, 1e-1)
    assert lr[1e-2] == colors.sequential(0.5)
    depth = colors.axis("depth", (1, 2, 3))
    assert not depth.log
    assert depth[2] == colors.sequential(0.5)
    assert not colors.axis("momentum", (0.0, 0.5, 0.9)).log


def test_one_value_and_none_at_all() -> None:
    assert colors.axis("lr", (0.1,)).strokes == (colors.sequential(0.5),)
    assert colors.axis("lr", ()).strokes == ()


def test_words_and_booleans_are_categories() -> None:
    activation = colors.axis("activation", ("relu", "gelu"))
    assert not activation.sequential
    assert activation.strokes == colors.OKABE_ITO[:2]
    assert not colors.axis("nesterov", (True, False)).sequential
    mixed = colors.axis("x", (1, True, None, "1"))
    assert [mixed.index(v) for v in (1, True, None, "1")] == [0, 1, 2, 3]


def test_many_categories_stay_distinct() -> None:
    many = colors.axis("name", tuple("abcdefghijklmnop"))
    assert len(set(many.strokes)) == 16


def test_unknown_value_is_an_error_that_says_which() -> None:
    with pytest.raises(GridError, match=r"lr: no such value; got 0\.5; accepted: 0\.1, 0\.2"):
        colors.axis("lr", (0.1, 0.2))[0.5]


def test_integer_and_float_of_a_number_are_one_value() -> None:
    assert colors.axis("lr", (1, 2)).index(1.0) == 0


def test_colour_stands_for_the_member_up_to_twelve() -> None:
    grid = Grid({"seed": [0], "lr": [0.1, 0.2, 0.3], "width": [8, 16, 32, 64]})
    scheme = colors.Scheme(grid.variants(), grid.axes)
    assert scheme.axis is None
    assert [scheme.stroke(v) for v in grid.variants()] == [colors.member(i) for i in range(12)]
    chosen = colors.Scheme(grid.variants(), grid.axes, "width")
    assert chosen.axis is not None
    assert {chosen.stroke(v) for v in grid.variants()} == set(chosen.axis.strokes)


def test_colour_stands_for_an_axis_beyond_twelve() -> None:
    axes = {"seed": (0,), "lr": (0.1, 0.2, 0.3), "width": (8, 16)}
    assert colors.color_axis(13, axes) == "lr"
    assert colors.color_axis(13, axes, "width") == "width"
    assert colors.color_axis(13, axes, "seed") == "lr"  # one value only: nothing to tell apart
    assert colors.color_axis(13, axes, "gone") == "lr"
    assert colors.color_axis(12, axes) == ""
    assert colors.color_axis(13, {"seed": (0,)}) == ""


def test_members_off_the_grid_are_placed_too() -> None:
    members = [record(0, lr=0.1), record(1, lr=0.3), record(2, lr=0.2)]
    scheme = colors.Scheme(members, {"lr": (0.1, 0.3)}, "lr")
    assert scheme.stroke(members[2]) == colors.sequential(0.5)


def test_labels_are_those_of_the_grid() -> None:
    assert colors.label(record(3, lr=0.001, width=16)) == "#3 lr=0.001, width=16"
    assert colors.label(record(0)) == "#0"


def test_device_names_and_kinds() -> None:
    keys = ["sm_active", "tensor_active", "memory_bytes", "memory_total_bytes", "power_w", "pcie_load"]
    lines = {line.key: line for line in colors.device_lines(keys)}
    assert [lines[k].kind for k in keys] == ["fraction", "fraction", "memory", "other", "power", "fraction"]
    assert lines["sm_active"].label == "SM active"
    assert lines["pcie_load"].label == "pcie load"
    fractions = [line.stroke for line in lines.values() if line.kind == "fraction"]
    assert len(set(fractions)) == 3


def test_cores_stand_behind_their_mean_in_no_members_colour() -> None:
    assert colors.CPU not in colors.OKABE_ITO
    assert colors.core_mean({"power_w": 0.5}) is None
    assert colors.core_mean({"core0": 0.5, "core1": 1.0}) == 0.75
    together = colors.cores_together({"core0": 0.5, "power_w": 9.0, "core1": 1.0})
    assert together == {"core_mean": 0.75, "core_min": 0.5, "core_max": 1.0, "power_w": 9.0}
    assert [(line.kind, line.stroke) for line in colors.device_lines(together)][:3] == [
        ("fraction", colors.CPU),
        ("spread", colors.CPU),
        ("spread", colors.CPU),
    ]
    values = {f"core{i}": i / 15 for i in range(16)}
    assert colors.core_mean(values) == pytest.approx(0.5)
    many = colors.device_lines(values)
    assert [line.key for line in many if not line.faint] == [colors.CORES]


def test_names_are_made_of_the_axes_that_vary() -> None:
    varied = [(0.1, 1), (0.1, True), (0.2, 1)]  # in Python 1 == True
    records = [Variant(i, {"lr": lr, "batch_size": 64, "bias": bias}, 0) for i, (lr, bias) in enumerate(varied)]
    assert colors.varying(records) == ["lr", "bias"]
    assert colors.label(records[1], colors.varying(records)) == "#1 lr=0.1, bias=true"
    assert colors.label(records[1]) == "#1 lr=0.1, batch_size=64, bias=true"
    assert colors.varying(records[:1]) == []
    assert colors.label(records[0], []) == "#0"


def test_importing_it_pulls_in_no_matplotlib() -> None:
    names = "('matplotlib', 'ipywidgets', 'torch')"
    code = f"import sys, hfta_nb.figures.colors; print([m for m in {names} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
