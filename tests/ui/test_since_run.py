"""What is changed in Define since the run began: said, taken back, added to the run; and finer grids."""

from __future__ import annotations

from typing import Any

import pytest
from ui.bench import Make, Runs, improved

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.search.grid import AxisSpec
from hfta_nb.search.intervals import interval_text
from hfta_nb.ui import Workbench
from hfta_nb.ui.refining import around

LR, WIDTH = AxisSpec("lr", "float", above=0.0), AxisSpec("width", "int", low=1)
ACT, SEED = AxisSpec("act", "str", "relu", ("relu", "gelu")), AxisSpec("seed", "int")


def head(bench: Workbench) -> Any:
    return bench.sections["Define"].head


def press(bench: Workbench, action: str) -> None:
    assert action in head(bench).actions
    head(bench)._handle_custom_msg({"action": action}, [])


def test_what_is_changed_is_said_and_taken_back(make: Make, runs: Runs) -> None:
    bench = make()
    bench.define.fields["epochs"].meaning = 3
    bench.planned()
    assert head(bench).note == ""  # there is no run yet
    bench.train()
    runs.begins(bench)
    assert (head(bench).note, head(bench).actions) == ("", [])
    before = bench.define.definition()
    bench.define.fields["epochs"].meaning = 9
    bench.define.row("lr").text_field.value = "1e-3, 1e-1"
    bench.define.add_axis("optimizer")
    bench.planned()
    assert head(bench).note == "changed since this run: lr, optimizer and epochs"
    assert head(bench).actions == ["revert"]  # with other epochs they are another run
    press(bench, "revert")
    bench.planned()
    assert bench.define.definition() == before
    assert (head(bench).note, head(bench).actions) == ("", [])
    bench.define.family_field.value = "cnn"
    bench.planned()
    assert head(bench).note.startswith("changed since this run: family")
    press(bench, "revert")
    assert bench.define.definition() == before


def test_what_an_axis_gets_during_a_run_can_join_it(make: Make, runs: Runs) -> None:
    bench = make()
    bench.train()
    runs.begins(bench)
    bench.define.row("lr").text_field.value = "1e-3, 1e-2, 1e-1"
    bench.planned()
    press(bench, "add to this run")
    [request] = runs.requests
    assert isinstance(request, ev.Add)
    assert request.variants == ({"lr": 0.1, "width": 8},)
    assert "asked: add 1 variant" in bench.results.note.value
    assert (head(bench).note, head(bench).actions) == ("", [])
    bench.define.row("lr").text_field.value = "1e-3"
    bench.planned()
    assert head(bench).actions == ["revert"]  # all that is defined is there
    bench.define.row("lr").text_field.value = "1e-3, 1"
    bench.planned()
    assert "add to this run" in head(bench).actions
    runs.ends()
    bench.planned()
    assert head(bench).actions == ["revert"]
    with pytest.raises(hfta.HftaError, match="nothing to add"):
        bench.add()


def test_refine_puts_a_finer_grid_into_define(make: Make, runs: Runs) -> None:
    bench = make(grid={"lr": [1e-3, 1e-2, 1e-1], "width": [8, 16]})
    bench.train()
    runs.begins(bench)
    runs.happens(*improved(0.7, 0.9, 0.8, 0.6, 0.5, 0.4))
    bench.define.row("lr").text_field.value = "5"
    bench.leaderboard._handle_custom_msg({"kind": "refine", "id": 2}, [])
    assert bench.define.definition().axes == {"lr": (0.00316, 0.01, 0.0316), "width": (6, 8, 11)}
    assert head(bench).unfolded
    assert bench.planned() == ""
    assert head(bench).note == "changed since this run: lr and width"
    bench.leaderboard._handle_custom_msg({"kind": "refine", "id": 77}, [])
    assert "no such member" in bench.results.note.value


@pytest.mark.parametrize(
    ("value", "known", "spec", "expected"),
    [
        (1e-3, (1e-3, 1e-2), LR, (0.000316, 1e-3, 0.00316)),  # the first has no neighbour below
        (1e-2, (1e-4, 1e-3, 1e-2), LR, (0.00316, 1e-2, 0.0316)),
        (0.3, (0.25, 0.3, 0.4), LR, (0.275, 0.3, 0.35)),  # no factors: halfway
        (32, (16, 32, 64), WIDTH, (23, 32, 45)),
        (1, (1, 2), WIDTH, (1,)),
        (0.1, (0.1,), LR, (0.1,)),  # nothing says what near is
        ("gelu", ("relu", "gelu"), ACT, ("gelu",)),
        (1, (0, 1, 2), SEED, (0, 1, 2)),
    ],
)
def test_the_values_around_one(value: Any, known: Any, spec: AxisSpec, expected: Any) -> None:
    assert around({spec.name: value}, {spec.name: known}, {spec.name: spec}) == {spec.name: expected}


def test_an_interval_is_narrowed_to_its_third() -> None:
    found = around({"lr": 1e-2, "width": 60}, {"lr": hfta.uniform(1e-4, 1e-1, log=True), "width": hfta.integers(4, 64)},
                   {"lr": LR, "width": WIDTH})  # fmt: skip
    assert interval_text(found["lr"]) == ("log interval", "0.00316 to 0.0316")
    assert interval_text(found["width"])[1] == "50 to 64"
