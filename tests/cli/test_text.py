"""Values formatted for people."""

from __future__ import annotations

import math

import pytest

from hfta_nb.cli import text


@pytest.mark.parametrize(
    ("time_s", "shown"),
    [(0, "0:00"), (41.4, "0:41"), (59.6, "1:00"), (3723, "1:02:03"), (-1, "0:00"), (math.nan, "-"), (math.inf, "-")],
)
def test_durations(time_s: float, shown: str) -> None:
    assert text.duration(time_s) == shown


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (41 * 2**20, "41.0 MiB"),
        (139 * 2**30, "139 GiB"),
        (2**50, "1024 TiB"),
        (math.nan, "-"),
    ],
)
def test_memory(size_bytes: float, shown: str) -> None:
    assert text.memory(size_bytes) == shown


@pytest.mark.parametrize(("value", "shown"), [(0.98765, "0.9877"), (math.nan, "-"), (-math.inf, "-"), (1e-9, "1e-09")])
def test_metrics(value: float, shown: str) -> None:
    assert text.metric(value) == shown


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ([], ""),
        ([3], "3"),
        ([1, 0], "0, 1"),
        ([0, 1, 2, 3], "0-3"),
        ([0, 2, 3, 4, 7], "0, 2-4, 7"),
        ([5, 6, 9], "5, 6, 9"),
    ],
)
def test_numbers_of_members(numbers: list[int], shown: str) -> None:
    assert text.ids(numbers) == shown


def test_text_from_outside_can_not_steer_a_terminal() -> None:
    assert text.clean("a\x1b[31mred\nb\x07\u202e") == r"a\x1b[31mred\nb\x07\u202e"


def test_text_from_outside_keeps_its_letters() -> None:
    assert text.clean("größe [bold] 模型") == "größe [bold] 模型"


@pytest.mark.parametrize(("number", "shown"), [(0, "0 steps"), (1, "1 step"), (1200, "1,200 steps")])
def test_several(number: int, shown: str) -> None:
    assert text.several(number, "step") == shown


def test_a_configuration() -> None:
    assert text.config({"lr": 1e-3, "bias": True, "kind": "a\nb"}) == r"lr=0.001, bias=true, kind=a\nb"
