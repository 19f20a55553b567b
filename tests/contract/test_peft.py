"""Adapters of peft in one array: each member is what peft and torch's optimizers make of it alone."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from tests.contract.peft_rows import LONG, LRS, ROWS, SEEDS, PeftRow, X

ALONE: dict[str, Any] = {
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.1),
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=0.1),
    "adagrad": lambda p, lr: torch.optim.Adagrad(p, lr=lr, weight_decay=0.1),
}
TOGETHER: dict[str, Any] = {
    "adamw": lambda array: hfta.optim.AdamW(array, lr=LRS, weight_decay=0.1),
    "sgd": lambda array: hfta.optim.SGD(array, lr=LRS, momentum=0.9, weight_decay=0.1),
    "adagrad": lambda array: hfta.optim.Adagrad(array, lr=LRS, weight_decay=0.1),
}


def train(row: PeftRow, array: hfta.FusedArray, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        array.backward(row.loss, X, row.y)
        optimizer.step()


def alone(row: PeftRow, modules: list[nn.Module], steps: int, kind: str = "adamw") -> list[nn.Module]:
    """What a loop with peft and torch makes of the members, one after another."""
    for module, seed, lr in zip(modules, SEEDS, LRS, strict=True):
        torch.manual_seed(seed)
        optimizer = ALONE[kind]([p for p in module.parameters() if p.requires_grad], lr)
        for _ in range(steps):
            optimizer.zero_grad()
            row.loss(module(**X), row.y).backward()
            optimizer.step()
    return modules


def equal(array: hfta.FusedArray, modules: list[nn.Module]) -> None:
    for i, module in enumerate(modules):
        torch.testing.assert_close(array[i].state_dict(), module.state_dict(), rtol=0, atol=1e-10)


def padding_is_zero(array: hfta.FusedArray) -> None:
    named = dict(array.named_parameters())
    for name, own in array.owned.items():
        for value in (named[name], named[name].grad):
            assert value is None or not value[~own].any()


LONGER = [pytest.param(row, marks=pytest.mark.long) for row in LONG]


@pytest.mark.parametrize("row", [*ROWS, *LONGER], ids=lambda row: row.name)
def test_members_are_what_peft_makes_of_them_alone(row: PeftRow) -> None:
    members = row.members()
    array = hfta.fuse(members, SEEDS)
    train(row, array, TOGETHER["adamw"](array), 20)
    equal(array, alone(row, members, 20))
    assert not array.notes  # members of unlike configuration run together
    padding_is_zero(array)


def test_adapters_of_other_kinds_are_apart() -> None:
    prompt, prefix = (next(row for row in ROWS if row.name == name).members()[0] for name in ("prompt", "prefix"))
    assert str(hfta.why_not(prompt, prefix)).startswith("peft_type: ")
    assert prompt.peft_type.value == "PROMPT_TUNING"  # a member of an enumeration, which is nobody's own


def test_a_layer_without_an_adapter_is_the_one_with_it() -> None:
    """It is no second parameter, and no second product."""
    array = hfta.fuse(ROWS[0].members(), SEEDS)
    names = [name for name, _ in array.named_parameters() if "base_layer" in name or ".dense.weight" in name]
    assert not {name.replace(".base_layer", "") for name in names if "base_layer" in name} & {*names}
    assert sum(name.endswith("base_layer.weight") for name in names) == 7


@pytest.mark.long
@pytest.mark.parametrize("kind", ALONE)
def test_padding_stays_zero_under_weight_decay(kind: str) -> None:
    members = ROWS[0].members()
    array = hfta.fuse(members, SEEDS)
    train(ROWS[0], array, TOGETHER[kind](array), 20)
    padding_is_zero(array)
    equal(array, alone(ROWS[0], members, 20, kind))


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_saved_array_goes_on(row: PeftRow) -> None:
    members = row.members()
    array = hfta.fuse(members, SEEDS)
    optimizer = TOGETHER["adamw"](array)
    train(row, array, optimizer, 10)
    file = io.BytesIO()
    torch.save({"array": array.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    other = hfta.fuse(row.members(), [0, 1, 2])
    again = TOGETHER["adamw"](other)
    other.load_state_dict(saved["array"])
    again.load_state_dict(saved["optimizer"])
    train(row, other, again, 10)
    equal(other, alone(row, members, 20))


@pytest.mark.long
@pytest.mark.parametrize("row", [*(r for r in ROWS if r.name != "prefix"), LONG[10]], ids=lambda row: row.name)
def test_gradient_checkpointing_of_the_model(row: PeftRow) -> None:
    """Which peft refuses with prefix tuning."""

    def enable(base: Any) -> None:
        base.activation_checkpointing_enable({"use_reentrant": False})

    members = row.members(enable)
    array = hfta.fuse(members, SEEDS)
    train(row, array, TOGETHER["adamw"](array), 20)
    equal(array, alone(row, members, 20))


@pytest.mark.parametrize("row", [ROWS[0], *(pytest.param(row, marks=pytest.mark.long) for row in ROWS[1:])],
                         ids=lambda row: row.name)  # fmt: skip
def test_losses_of_the_model_itself(row: PeftRow) -> None:
    """With labels, the model notes its task in its configuration."""
    members = row.members()
    array = hfta.fuse(members, SEEDS)
    losses = array(**X, labels=row.y).loss
    for i, module in enumerate(members):
        torch.manual_seed(SEEDS[i])
        torch.testing.assert_close(losses[i], module(**X, labels=row.y).loss, rtol=0, atol=1e-10)
    assert not array.notes
    assert array[1].config.problem_type == "single_label_classification"
