"""The plan in words and in a table."""

from __future__ import annotations

from typing import Any

import pytest

from hfta_nb.study import Study
from hfta_nb.ui.plan_view import MOST_ROWS, needs, plan_table, summary


@pytest.mark.parametrize(
    ("grid", "options", "said"),
    [
        ({"lr": [1e-3, 1e-2], "seed": [0, 1]}, {}, "4 variants in 1 array of 4: fused over lr and seed"),
        ({"lr": [1e-3, 1e-2], "width": [4, 8]}, {"across": 0.5}, "4 variants in 1 array of 4: fused over lr and width"),
        (
            {"lr": [1e-3, 1e-2], "width": [4, 8]},
            {"across": "never"},
            "4 variants in 2 arrays of 2: fused over lr; split by width",
        ),
        ({"width": [4, 8]}, {"across": "never"}, "2 variants in 2 arrays of 1: split by width"),
        ({}, {}, "1 variant in 1 array, trained alone"),
        ({"lr": [1, 2]}, {"serial": True}, "2 variants, one after another as plain modules, as asked"),
    ],
)
def test_one_sentence(grid: dict[str, Any], options: dict[str, Any], said: str) -> None:
    assert summary(Study("mlp", grid, "digits", **options)) == said


def test_the_table_says_why_and_how_much() -> None:
    made = plan_table(Study("mlp", {"width": [4, 8], "lr": [1e-3, 1e-2]}, "digits", across="never"))
    assert made.count("<tr>") == 3
    assert "not with array 0: " in made
    assert "<td>lr</td>" in made
    assert "KiB" in made


def test_the_table_says_how_much_is_padding() -> None:
    made = plan_table(Study("mlp", {"width": [6, 8]}, "digits"))
    assert made.count("<tr>") == 2
    assert '<td class="hfta-number">13%</td>' in made


def test_a_long_plan_is_cut() -> None:
    made = plan_table(Study("mlp", {"width": list(range(1, MOST_ROWS + 6))}, "digits", across="never"))
    assert made.count("<tr>") == MOST_ROWS + 1
    assert "and 5 more arrays" in made


def test_what_the_device_must_hold() -> None:
    said = needs(Study("mlp", {"lr": [1e-3, 1e-2]}, "digits", device="cpu"))
    assert said.startswith("It needs about ")
    assert " on cpu, " in said
