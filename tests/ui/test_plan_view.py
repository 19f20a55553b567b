"""The plan in words and in a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hfta_nb.study import Study
from hfta_nb.ui.plan_view import MOST_ROWS, manner, needs, plan_table, summary


@pytest.mark.parametrize(
    ("grid", "options", "said"),
    [
        ({"lr": [1e-3, 1e-2], "seed": [0, 1]}, {}, "4 variants in 1 array of 4: differing in lr and seed"),
        (
            {"lr": [1e-3, 1e-2], "width": [4, 8]},
            {"padding": 0.5},
            "4 variants in 1 array of 4: differing in lr and width",
        ),
        (
            {"lr": [1e-3, 1e-2], "width": [4, 8]},
            {"padding": "never"},
            "4 variants in 2 arrays of 2: differing in lr; split by width",
        ),
        ({"width": [4, 8]}, {"padding": "never"}, "2 variants in 2 arrays of 1: split by width"),
        ({}, {}, "1 variant in 1 array, trained alone"),
        ({"lr": [1, 2]}, {"serial": True}, "2 variants, one after another as plain modules, as asked"),
    ],
)
def test_one_sentence(grid: dict[str, Any], options: dict[str, Any], said: str) -> None:
    assert summary(Study("mlp", grid, "digits", **options)) == said


def test_the_table_says_why_and_how_much() -> None:
    made = plan_table(Study("mlp", {"width": [4, 8], "lr": [1e-3, 1e-2]}, "digits", padding="never"))
    assert made.count("<tr>") == 3
    assert "<td>not with array 0: width: 4 and 8</td>" in made
    assert "<td>lr</td>" in made
    assert "KiB" in made


def test_the_table_says_how_much_is_padding() -> None:
    made = plan_table(Study("mlp", {"width": [6, 8]}, "digits"))
    assert made.count("<tr>") == 2
    assert '<td class="hfta-number">13%</td>' in made


def test_a_long_plan_is_cut() -> None:
    made = plan_table(Study("mlp", {"width": list(range(1, MOST_ROWS + 6))}, "digits", padding="never"))
    assert made.count("<tr>") == MOST_ROWS + 1
    assert "and 5 more arrays" in made


def test_what_the_device_must_hold() -> None:
    said = needs(Study("mlp", {"lr": [1e-3, 1e-2]}, "digits", device="cpu"))
    assert said.startswith("Its tensors need about ")
    assert " on cpu. " in said


def test_the_plan_of_a_run_is_as_it_was_measured() -> None:
    study = Study("mlp", {"lr": [1e-3, 1e-2, 1e-1]}, "digits", capacity="auto")
    assert "members at most" not in plan_table(study)
    (whole,) = study.groups()
    first = replace(whole, variants=(0, 1), capacity=2, memory_bytes=3 << 20)
    second = replace(whole, index=1, variants=(2,), reason="not with array 0: 2 are fastest", capacity=2)
    assert summary(study, (first, second)) == "3 variants in 2 arrays of 1 to 2: differing in lr"
    made = plan_table(study, (first, second))
    assert '<th class="hfta-number" scope="col">members at most</th>' in made
    assert made.count('<td class="hfta-number">2</td>') == 3  # members of the first, and both capacities
    assert "2 are fastest" in made
    assert needs(study, (first, second)).startswith("The largest array's tensors need about 6.")
    assert "fit" not in needs(study, (first, second))
    assert "; not even one member fits, which takes 1024 TiB" in needs(study, (replace(first, memory_bytes=1 << 50),))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "It computes in float32, with as many members as fit in an array; steps are compiled if that pays."),
        ({"dtype": "float64", "compile": "never"}, "It computes in float64, with as many members as fit in an array; "
         "steps are not compiled."),
        ({"precision": "bf16", "capacity": 1, "compile": "always"}, "It computes in bf16, with at most 1 member in an "
         "array; steps are compiled before they are trained with."),
        ({"capacity": "auto", "checkpointing": "always"}, "It computes in float32, with as many members as are fastest "
         "(measured first) in an array; steps are compiled if that pays. Activations are computed again in the "
         "backward."),
        ({"serial": True}, "It computes in float32."),
    ],
)  # fmt: skip
def test_how_it_computes(options: dict[str, Any], said: str) -> None:
    assert manner(Study("mlp", {"lr": [1e-3, 1e-2]}, "digits", device="cpu", **options)) == said
