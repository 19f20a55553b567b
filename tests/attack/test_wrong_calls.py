"""Wrong arguments of every public callable: a typed error that says what to do, at once, and nothing is half done."""

from __future__ import annotations

import math
import os
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import hfta_nb as hfta
from hfta_nb.errors import HftaError
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


LONG = [pytest.param(n, marks=pytest.mark.long) for n in range(BY_DEFAULT, MANY, EACH)]


@pytest.mark.parametrize("first", [*range(0, BY_DEFAULT, EACH), *LONG])
def test_wrong_arguments(first: int, tmp_path: Path) -> None:
    assert faults(range(first, first + EACH), tmp_path) == []


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "no sampler": ("Study, search 0", {"sampler": []}),
    "no pruner": ("Study, search 0", {"pruner": {}}),
    "a number for a constraint": ("Study, search 0", {"constraint": 1}),
    "no task": ("from_tensors, split", {"task": "foo"}),
    "no number of classes": ("from_tensors, split", {"num_classes": math.nan}),
    "no share": ("from_tensors, split", {"validation": math.nan}),
    "another width": ("from_tensors", {"x_validation": torch.zeros(9, 4)}),
    "epochs beyond all": ("Study 0", {"epochs": 10**400}),
    "seeds": ("fuse", {"seeds": 5}),
    "infinite decay": ("optim.AdamW", {"weight_decay": math.inf}),
    "infinite decay of a study": ("Study 0", {"weight_decay": math.inf}),
    "a number for a control": ("Study.run", {"control": 5}),
    "no members": ("array.select", {"indices": None}),
    "a number to add": ("control.add", {"variants": 5}),
    "no state": ("optimizer.load_state_dict", {"state_dict": None}),
    "no state of a scheduler": ("scheduler.load_state_dict", {"state_dict": None}),
    "a period that fails in a step": ("lr_scheduler.StepLR", {"step_size": "3"}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_was_accepted_in_silence(case: str, tmp_path: Path) -> None:
    name, wrong = REFUSED[case]
    call = CALLS[name](tmp_path)
    with pytest.raises(HftaError):
        call.function(**{**call.given, **wrong})


def test_names_that_can_be_gone_through_once_are_every_members() -> None:
    x, y, found = torch.randn(6, 4), torch.zeros(6, dtype=torch.long), []
    names: list[Any] = [["weight"], (name for name in ["weight"])]
    for only in names:
        torch.manual_seed(0)
        array = hfta.fuse([torch.nn.Linear(4, 2) for _ in range(3)], [0, 1, 2])
        array.backward(torch.nn.functional.cross_entropy, x, y, only=only)
        found.append(next(array.parameters()).grad)
    assert found[0] is not None
    assert found[1] is not None
    assert torch.equal(found[0], found[1])
