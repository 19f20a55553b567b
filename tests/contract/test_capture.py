"""Replayed steps: bitwise equal to eager steps, and never replayed if code could notice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import FusionError, MemberError
from tests.contract.replay import (
    EXACT,
    MEMBERS,
    REPLAYED,
    SEEDS,
    TIGHT,
    backward,
    compare_backward,
    mlp,
    notes,
    pair,
    same,
    warm_backward,
)
from tests.contract.serial import loss_of, make, plain


def test_results_inputs_and_gradients_are_the_caller_s(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    warm_backward(array, other, loss_of, x, y)
    first = backward(array, loss_of, x, y)
    kept, before = first.clone(), x.clone()
    backward(array, loss_of, x + 1, y)
    assert torch.equal(first, kept)
    assert torch.equal(x, before)
    other.backward(loss_of, x, y)  # in step with the first again
    backward(other, loss_of, x + 1, y)
    same(array, other, EXACT)
    array.backward(loss_of, x, y)
    other.backward(loss_of, x, y)  # added to what is there
    same(array, other, EXACT)


def test_calls_that_differ_from_the_last_in_one_thing(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    names = [name for name, _ in array.named_parameters()]
    only = names[:1]

    def aux(output: Tensor, target: Tensor) -> Any:
        return loss_of(output, target), output.mean()

    def squared(output: Tensor, target: Tensor) -> Tensor:
        return loss_of(output, target).square()

    calls: list[tuple[Any, Tensor, Tensor, dict[str, Any]]] = [
        (loss_of, x, y, {}),
        (squared, x, y, {}),
        (loss_of, x[:4], y[:4], {}),
        (loss_of, x.t().contiguous().t(), y, {}),
        (aux, x, y, {"has_aux": True}),
        (loss_of, x, y, {"only": only}),
        (loss_of, x, y, {"only": tuple(names[1:])}),
        (loss_of, x, y, {"scale": torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, device=device)}),
    ]
    for turn in range(3):
        for loss, given, target, more in calls:
            for _ in range(5):  # of as many the last two are replayed
                told = [backward(a, loss, given + turn, target, **more) for a in (array, other)]
                torch.testing.assert_close(*told, **TIGHT)
                same(array, other, EXACT)
            assert REPLAYED in notes(array, "backward").split("; ")
        only[:] = names[turn % len(names) :]  # the same list with other names
        for a in (array, other):
            a.get_parameter(names[0]).requires_grad_(turn % 2 == 0)


def test_auxiliary_results_scales_and_inputs_per_member(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)

    def scored(output: Tensor, target: Tensor) -> Any:
        return loss_of(output, target), {"largest": output.max(), "n": 3, "nothing": None}

    for step in range(6):
        scale = torch.tensor([1.0, 2.0, 4.0 + step], dtype=torch.float64, device=device)
        inputs = hfta.per_member(torch.stack([x * (i + 1) + step for i in range(MEMBERS)]))
        compare_backward(array, other, scored, inputs, y, times=1, has_aux=True, scale=scale)
    assert notes(array, "backward") == REPLAYED


def test_some_parameters_only(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    for only in (["0.weight"], ["4.weight", "4.bias"]):
        for _ in range(4):
            compare_backward(array, other, loss_of, x, y, times=1, only=only)
            assert [name for name, p in array.named_parameters() if p.grad is not None] == only
    assert notes(array, "backward") == REPLAYED


def test_surgery_goes_on_from_a_replayed_step(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    warm_backward(array, other, loss_of, x, y)
    array, other = array.select([2, 0]), other.select([2, 0])
    other.capture = False
    compare_backward(array, other, loss_of, x, y, times=5)
    array.float()
    losses = [backward(array, loss_of, x.float(), y.float()) for _ in range(5)]
    assert losses[-1].dtype == torch.float32


def test_an_error_in_a_replayed_step_is_told_as_ever() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(7, 5), nn.BatchNorm1d(5)

        def forward(self, words: Tensor) -> Tensor:
            return self.norm(self.table(words).mean(1))

    words, y = torch.randint(0, 7, (6, 4)), torch.randn(6, 5, dtype=torch.float64)
    array, other = pair(Words, torch.device("cpu"))
    warm_backward(array, other, loss_of, words, y)
    wrong = words.clone()
    wrong[0, 0] = 7
    before = {k: v.clone() for k, v in array.state_dict().items()}
    with pytest.raises(MemberError, match="index out of range"):
        backward(array, loss_of, wrong, y)
    assert all(torch.equal(v, before[k]) for k, v in array.state_dict().items())
    compare_backward(array, other, loss_of, words, y)


def test_tuning_leaves_gradients_as_they_are(x: Tensor, y: Tensor) -> None:
    array, other = pair(mlp, x.device)
    backward(array, loss_of, x, y)
    backward(other, loss_of, x, y)
    assert array.tune(loss_of, x * 2, y, budget_s=0.01).keys() >= {1, MEMBERS}
    same(array, other, EXACT)


def test_on_or_off(x: Tensor, y: Tensor) -> None:
    array, other = pair(mlp, x.device)
    with pytest.raises(FusionError, match="neither on nor off"):
        array.capture = "sometimes"  # type: ignore[assignment]
    assert array.capture
    for _ in range(5):
        backward(other, loss_of, x, y)
    assert notes(other, "backward") == ""


def test_training_by_replayed_steps_equals_training_alone() -> None:
    build = lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))  # noqa: E731
    modules = make(build, MEMBERS, torch.float64, torch.device("cpu"))
    xs, ys = torch.randn(20, 6, 5, dtype=torch.float64), torch.randint(0, 4, (20, 6))
    array = hfta.fuse(modules, SEEDS)
    optimizer = hfta.optim.AdamW(array, lr=[1e-2, 3e-2, 1e-3])
    for x, y in zip(xs, ys, strict=True):
        optimizer.zero_grad()
        array.backward(F.cross_entropy, x, y)
        optimizer.step()
    assert notes(array, "backward") == REPLAYED
    for i, module in enumerate(modules):
        own = torch.optim.AdamW(module.parameters(), lr=[1e-2, 3e-2, 1e-3][i])
        torch.manual_seed(SEEDS[i])
        for x, y in zip(xs, ys, strict=True):
            own.zero_grad()
            F.cross_entropy(module(x), y).backward()
            own.step()
        for name, p in module.named_parameters():
            torch.testing.assert_close(array.get_parameter(name)[i], p, atol=1e-12, rtol=1e-12)
