"""Wrong arguments of every public callable: a typed error that says what to do, at once, and nothing is half done."""

from __future__ import annotations

import os
import random
import warnings
from pathlib import Path

import pytest
import torch

from tests.attack.calls import CALLS, Call
from tests.attack.hostile import TooLongError, alarm, drawn, fault

BY_DEFAULT = 200
MANY = 2_000
EACH = 50
"""Calls in a test of the long tier."""


def judged(name: str, call: Call, pick: random.Random) -> str:
    """What is wrong with the answer to a call with one or two wrong arguments; empty where it is a right one."""
    given, told = dict(call.given), []
    for which in pick.sample(sorted(given), min(len(given), pick.choice([1, 1, 1, 2]))):
        shown, value = drawn(pick)
        given[which] = (value,) if which == "*" else value
        told.append(f"{which}={shown}")
    unknown = pick.random() < 0.03
    if unknown:
        given[pick.choice(["foo", "learning_rate"])] = 1
    before, error = call.watched(), None
    try:
        with alarm():
            call(given)
        return ""
    except (Exception, TooLongError) as found:
        error = found
    said = f"{name}({', '.join(told)})"
    why = fault(error, unknown)
    if not why and call.watched() != before:
        why = f"is half done after {type(error).__name__}: {error}"
    return f"{said}: {why}" if why else ""


def faults(numbers: range, place: Path) -> list[str]:
    """What is wrong with the answers to calls of these numbers."""
    found, names = [], list(CALLS)
    for number in numbers:
        pick = random.Random(number)
        name = names[number % len(names)]
        folder = place / str(number)
        folder.mkdir()
        os.chdir(folder)
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(judged(name, CALLS[name](folder), pick))
    return [f for f in found if f]


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # for what wrong names of files would leave


@pytest.mark.parametrize("name", CALLS)
def test_a_right_call_is_accepted(name: str, tmp_path: Path) -> None:
    call = CALLS[name](tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(call.given)
