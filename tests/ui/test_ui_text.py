"""Words and numbers for the screen."""

from __future__ import annotations

import math

import pytest

from hfta_nb.errors import GridError
from hfta_nb.ui import text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0:00"), (41.4, "0:41"), (59.6, "1:00"), (727, "12:07"), (3723, "1:02:03"), (math.nan, "-"), (math.inf, "-")],
)
def test_clock(seconds: float, said: str) -> None:
    assert text.clock(seconds) == said


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (41 * 2**20, "41 MiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (139 * 2**30, "139 GiB"),
        (2**51, "2048 TiB"),
    ],
)
def test_memory(size: float, said: str) -> None:
    assert text.memory(size) == said


@pytest.mark.parametrize(
    ("rate", "said"),
    [(184_321.0, "184,000 samples/s"), (12.34, "12 samples/s"), (999.9, "1,000 samples/s"), (0, ""), (math.nan, "")],
)
def test_rate(rate: float, said: str) -> None:
    assert text.rate(rate) == said


@pytest.mark.parametrize(
    ("value", "said"), [(0.98611, "0.9861"), (1.2345e-5, "1.234e-05"), (math.nan, "nan"), (None, "-"), (4.0, "4")]
)
def test_number(value: float | None, said: str) -> None:
    assert text.number(value) == said


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("val_accuracy", 1.0, "1.0000"),
        ("val_accuracy", 0.977, "0.9770"),
        ("val_loss", 0.057, "0.05700"),
        ("val_loss", 1.3e-7, "1.3e-07"),
        ("val_loss", math.nan, "nan"),
        ("val_r2", -3.25, "-3.2500"),
        ("val_r2", None, "-"),
    ],
)
def test_score(name: str, value: float | None, said: str) -> None:
    assert text.score(name, value) == said


def test_words_around_numbers() -> None:
    assert text.count(1, "variant") == "1 variant"
    assert text.count(1200, "variant") == "1,200 variants"
    assert text.listing(["lr", "width", "depth"]) == "lr, width and depth"
    assert text.listing(["lr"]) == "lr"
    assert [text.amount(n) for n in (438, 1440, 2_500_000)] == ["438", "1.44 k", "2.5 M"]


def test_an_error_says_everything_once() -> None:
    error = GridError("not a number", where="lr", got="1e", accepted="for example 1e-3", remedy="write 1e-3")
    assert text.words(error) == "lr: not a number; got '1e'; for example 1e-3; write 1e-3"
    assert text.words(error, "lr") == "not a number; got '1e'; for example 1e-3; write 1e-3"
    assert text.words(ValueError("boom")) == "ValueError: boom"
    assert len(text.words(ValueError("x" * 9999))) == 500


def test_tables_hold_text_and_no_markup() -> None:
    made = text.table(["<b>"], [["<script>alert(1)</script>"], ['"quoted" & more']], "css")
    assert "<script>" not in made
    assert "<b>" not in made
    assert "&lt;script&gt;" in made
    assert "&quot;quoted&quot; &amp; more" in made
