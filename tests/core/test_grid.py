"""Grids: axes to variants, and parsing of typed values."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hfta_nb.errors import GridError
from hfta_nb.search.grid import AxisSpec, Grid, integers, linspace, logspace, parse_axis, parse_values, seeds, show


def test_variants_in_order_with_seeds() -> None:
    grid = Grid({"lr": logspace(1e-3, 1e-1, 3), "seed": seeds(2, start=5)})
    found = grid.variants()
    assert len(grid) == len(found) == 6
    assert [v.id for v in found] == list(range(6))
    assert found[3].config == {"lr": 0.01, "seed": 6}
    assert found[3].seed == 6
    assert found[3].label == "#3 lr=0.01, seed=6"
    assert Grid().variants()[0].config == {}


def test_values_of_all_kinds() -> None:
    assert linspace(0, 1, 5) == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert logspace(1e-4, 1e-1, 4) == (1e-4, 1e-3, 1e-2, 1e-1)
    assert integers(1, 7, 3) == (1, 4, 7)
    assert Grid({"a": torch.tensor([1.5, 2.0]), "b": True, "c": "x"}).axes == {
        "a": (1.5, 2.0),
        "b": (True,),
        "c": ("x",),
    }
    assert Grid({"n": [1, 1.0, True]}).axes["n"] == (1, 1.0, True)  # equal, and yet three values


@given(st.floats(1e-12, 1e12), st.floats(1e-12, 1e12), st.integers(2, 30))
def test_log_ranges_hold_their_ends_and_ratio(a: float, b: float, count: int) -> None:
    values = logspace(a, b, count)
    assert values[0] == pytest.approx(a, rel=1e-10)
    assert values[-1] == pytest.approx(b, rel=1e-10)
    ratio = (b / a) ** (1 / (count - 1))
    assert all(v / u == pytest.approx(ratio, rel=1e-9) for u, v in itertools.pairwise(values))


@given(st.lists(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans()), min_size=1))
def test_what_is_shown_exactly_is_read_back(values: list) -> None:
    distinct = [v for i, v in enumerate(values) if not any(type(v) is type(u) and v == u for u in values[:i])]
    text = ", ".join(str(v).lower() if isinstance(v, bool) else repr(v) for v in distinct)
    assert parse_values("x", "list", text) == tuple(distinct)


@pytest.mark.parametrize(
    ("kind", "text", "values"),
    [
        ("list", "1e-3, 3e-3", (1e-3, 3e-3)),
        ("list", "[8, 16,]", (8, 16)),
        ("list", "relu, 'gelu', true, none", ("relu", "gelu", True, None)),
        ("list", "logspace(1e-4, 1e-2, 3)", (1e-4, 1e-3, 1e-2)),
        ("list", "linspace(0, 1, 3)", (0.0, 0.5, 1.0)),
        ("list", "integers(1, 3)", (1, 2, 3)),
        ("list", "seeds(2)", (0, 1)),
        ("range", "0.1 to 0.5, 3 values", (0.1, 0.3, 0.5)),
        ("log range", "1e-3, 1e-1, 3", (1e-3, 1e-2, 1e-1)),
        ("log range", "1e-3..1e-1, 3", (1e-3, 1e-2, 1e-1)),
        ("integers", "1 to 4", (1, 2, 3, 4)),
        ("integers", "1..9 step 4", (1, 5, 9)),
        ("integers", "2, 4, 8, 16", (2, 4, 8, 16)),
        ("boolean", "true, false", (True, False)),
        ("choice", "relu, gelu", ("relu", "gelu")),
        ("seeds", "3", (0, 1, 2)),
        ("seeds", "1, 5, 7", (1, 5, 7)),
    ],
)
def test_typed_values(kind: str, text: str, values: tuple) -> None:
    read = parse_values("axis", kind, text)
    assert read == values
    assert [type(v) for v in read] == [type(v) for v in values]


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("list", "0,1e", '"1e" is not a number; write 1e-3'),
        ("list", "1,,2", "nothing between two commas"),
        ("list", " ", "no values"),
        ("list", "1, 1", "1 is given twice"),
        ("list", "inf", "not a finite number|given"),
        ("list", "-inf", "not a finite number"),
        ("list", "nan", "not a finite number"),
        ("list", "3 + 4", '"3 \\+ 4" is not a number'),
        ("range", "1, 2", "first, last and how many"),
        ("range", "1, 2, x", '"x" is not a whole number'),
        ("log range", "0, 1, 3", "ends above 0"),
        ("integers", "5 to 1", "not a range of whole numbers"),
        ("boolean", "true, 3", "neither true nor false"),
        ("seeds", "0", "too few or too many values; got 0; accepted: 1 to 10000"),
        ("seeds", "100000000", "too few or too many values"),
        ("integers", "1 to 100000000", "too few or too many values"),
        ("list", "1,,2", "nothing between two commas; got '1,,2'"),
        ("magic", "1", "unknown kind"),
        ("list", "1e-3 1e-2", '"1e-3 1e-2" is not a number; separate values by commas'),
        ("list", "1e-3;1e-2", "separate values by commas"),
        ("list", "logspace(1e-4,1e-1,3", r"no closing parenthesis; .*for example logspace\(1e-4, 1e-1, 4\)"),
        ("list", "logspce(1e-4,1e-1,3)", r"unknown function; got 'logspce'; .*did you mean logspace\?"),
        ("list", "logspace(1e-4, 1e-1)", r"has 2 of the three; .*for example logspace\("),
        ("list", "linspace(0,1,3), 5", r"nothing may follow linspace\(...\)"),
        ("list", "integers(1, a)", r"is not a whole number; accepted: for example integers\(1, 4\)"),
    ],
)
def test_typing_mistakes_are_told_with_the_axis(kind: str, text: str, words: str) -> None:
    if text in ("inf", "-inf", "nan"):  # a word, which no number axis takes
        with pytest.raises(GridError, match="axis: not a finite number"):
            parse_values("axis", kind, text, AxisSpec("axis", "float"))
        return
    with pytest.raises(GridError, match=f"axis: .*({words})"):
        parse_values("axis", kind, text)


def test_nothing_typed_is_evaluated() -> None:
    assert parse_values("axis", "list", "__import__('os').getcwd()") == ("__import__('os').getcwd()",)


def test_axis_on_a_command_line() -> None:
    assert parse_axis("lr=logspace(1e-4,1e-2,3)") == ("lr", (1e-4, 1e-3, 1e-2))
    with pytest.raises(GridError, match="no ="):
        parse_axis("lr")
    with pytest.raises(GridError, match="not a name for an axis"):
        parse_axis("1lr=3")


@pytest.mark.parametrize(
    ("spec", "good", "result", "bad", "words"),
    [
        (AxisSpec("a", "float", low=0), 1, 1.0, -1, "at least 0"),
        (AxisSpec("a", "int", high=4), 4.0, 4, 4.5, "not a whole number"),
        (AxisSpec("a", "int"), 3, 3, True, "not a number"),
        (AxisSpec("a", "bool"), False, False, 0, "not a boolean"),
        (AxisSpec("a", "any", choices=("x", 1)), 1, 1, "y", "accepted: x, 1"),
        (AxisSpec("a", "any", choices=("adam", "sgd")), "sgd", "sgd", "adamm", r"did you mean adam\?"),
        (AxisSpec("a", "float"), 1.5, 1.5, math.inf, "not a finite number; got inf"),
        (AxisSpec("a", "str"), 3, "3", None, None),
    ],
)
def test_an_axis_takes_its_type(spec: AxisSpec, good, result, bad, words) -> None:
    assert spec.check(good) == result
    assert type(spec.check(good)) is type(result)
    if words:
        with pytest.raises(GridError, match=words):
            spec.check(bad)


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"lr": []}, "lr: no values"),
        ({"lr": [math.nan]}, "lr: not a finite number"),
        ({"act": [torch.nn.ReLU]}, "name the alternatives by strings"),
        ({"l r": [1]}, "not a name for an axis"),
        ({"seed": [-1]}, "not a seed"),
        ({"a": range(200), "b": range(200)}, "it is 200 a x 200 b"),
        ({"a": object()}, "not a list of values"),
    ],
)
def test_grids_that_can_not_be(axes: dict, words: str) -> None:
    with pytest.raises(GridError, match=words):
        Grid(axes).variants()


def test_values_are_shown_as_typed() -> None:
    assert [show(v) for v in (True, None, 0.001, 1e-05, 3, "x", (0.9, 0.99))] == [
        "true",
        "none",
        "0.001",
        "1e-05",
        "3",
        "x",
        "(0.9, 0.99)",
    ]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: logspace("a", 1, 3), "start: not a number; got 'a'"),
        (lambda: linspace(0, 1, 2.5), "count: not a whole number; got 2.5"),
        (lambda: seeds("x"), "count: not a whole number; got 'x'"),
        (lambda: integers(1.5, 3), "start: not a whole number; got 1.5"),
        (lambda: Grid({"lr": b"1"}), "lr: not a list of values; got b'1'"),
    ],
)
def test_ranges_of_other_things_than_numbers_are_refused(made, words: str) -> None:
    with pytest.raises(GridError, match=words):
        made()


def test_far_too_many_values_are_refused_before_they_are_made() -> None:
    for values in (range(10**12), itertools.count()):
        with pytest.raises(GridError, match="lr: too many values; accepted: up to 10000"):
            Grid({"lr": values})
    assert len(Grid({"seed": seeds(10_000)})) == 10_000
    assert Grid({"a": [1, True, 1.0]}).axes["a"] == (1, True, 1.0)  # equal, and yet not the same
