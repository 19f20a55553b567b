"""Which losses compare each output with each target by broadcasting, and which mean what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.broadcasts import called
from hfta_nb.errors import BroadcastError
from tests.contract.handed_over import numbers

N = 6
FLAT, COLUMN = numbers(N), numbers(N, 1, seed=1)
Y, Y_COLUMN, WEIGHTS = numbers(N, seed=2), numbers(N, 1, seed=2), numbers(N, seed=3).abs()
TWO, MAPS, MASKS = numbers(N, 2), numbers(N, 1, 4, 4), (numbers(N, 4, 4) > 0).double()
LABELS = torch.arange(N) % 2

Row = tuple[Callable[[Any, Any], Any], Any, Any]

REFUSED: dict[str, Row] = {
    "mse": (F.mse_loss, COLUMN, Y),
    "module": (nn.SmoothL1Loss(), COLUMN, Y),
    "the other way": (F.l1_loss, FLAT, Y_COLUMN),
    "minus": (lambda o, y: (o - y).pow(2).mean(), COLUMN, Y),
    "in reverse": (lambda o, y: (y - o).abs().max(), COLUMN, Y),
    "equals": (lambda o, y: ((o > 0) == (y > 0)).double().mean(), COLUMN, Y),
    "class of the largest": (lambda o, y: o.max(1, keepdim=True).indices.eq(y).double().mean(), TWO, LABELS),
    "activation": (lambda o, y: (o.sigmoid().round() - y).abs().mean(), COLUMN, Y),
    "squeezed alone": (lambda o, y: F.mse_loss(o.squeeze(), y), COLUMN, Y_COLUMN),
    "viewed alone": (lambda o, y: (o.view(-1) - y).abs().mean(), COLUMN, Y_COLUMN),
    "chosen alone": (lambda o, y: (o[:, 0] - y).abs().mean(), TWO, Y_COLUMN),
    "masked": (lambda o, y: F.mse_loss(o[y > 0], y[y > 0]), COLUMN, Y),
    "part": (lambda o, y: ((o[:, :1] - y) ** 2 * torch.exp(o[:, 1:])).mean(), TWO, Y),
    "distribution": (lambda o, y: torch.distributions.Normal(o, 1.0).log_prob(y).mean(), COLUMN, Y),
    "weights": (lambda o, y: ((o - y[0]) ** 2 * y[1]).mean(), COLUMN, (Y_COLUMN, WEIGHTS)),
    "weights of a loss": (lambda o, y: (F.l1_loss(o, y[0], reduction="none") * y[1]).sum(), COLUMN, (Y_COLUMN, Y)),
    "entry": (lambda o, y: (o["mean"] - y["y"]).abs().mean(), {"mean": COLUMN}, {"y": Y}),
    "poisson": (lambda o, y: F.poisson_nll_loss(o, y.abs()), COLUMN, Y),
    "where": (lambda o, y: torch.where(y > 0, o, -o).mean(), COLUMN, Y),
    "distance": (torch.dist, COLUMN, Y),
    "survival": (lambda o, y: -((o - o.exp().cumsum(0).log()) * y).mean(), COLUMN, (Y > 0).double()),
    "dice": (lambda o, y: 1 - (o.sigmoid() * y).sum() / (o.sigmoid() + y).sum(), MAPS, MASKS),
    "outputs of a critic": (lambda o, y: (o - y).pow(2).mean(), COLUMN.view(N, 1, 1, 1), Y),
    "square sequences": (lambda o, y: (o - y).abs().mean(), numbers(N, N, 1), numbers(N, N)),
}  # fmt: skip

ALLOWED: dict[str, Row] = {
    "one shape": (F.mse_loss, COLUMN, Y_COLUMN),
    "squeezed": (lambda o, y: F.mse_loss(o.squeeze(-1), y), COLUMN, Y),
    "viewed as": (lambda o, y: F.mse_loss(o, y.view_as(o)), COLUMN, Y),
    "all pairs of scores": (lambda o, y: F.softplus(-(o - o.t()) * torch.sign(y[:, None] - y)).mean(), COLUMN, Y),
    "pairs by an axis": (lambda o, y: ((o.unsqueeze(1) - o) - (y.unsqueeze(1) - y)).pow(2).mean(), FLAT, Y),
    "pairs of one": (lambda o, y: (o - o.squeeze(-1)).pow(2).mean() + y.sum(), COLUMN, Y),
    "outputs and targets": (lambda o, y: (o - y[None]).abs().mean(), COLUMN, Y),
    "targets by an axis": (lambda o, y: (o.unsqueeze(1) - y).abs().mean(), FLAT, Y),
    "distances": (
        lambda o, y: ((o[0] ** 2).sum(1, keepdim=True) + (o[1] ** 2).sum(1) - 2 * o[0] @ o[1].T).mean() + y.sum(),
        (TWO, TWO + 1), Y,
    ),
    "kernel": (lambda o, y: ((o**2).sum(1, keepdim=True) + (y**2).sum(1) - 2 * o @ y.T).exp().mean(), COLUMN, Y_COLUMN),
    "similarity": (lambda o, y: (o @ o.T / (o.norm(dim=1, keepdim=True) * o.norm(dim=1))).sum() * y.sum(), TWO, Y),
    "weight of a column": (lambda o, y: (o * y).pow(2).mean(), TWO, Y_COLUMN),
    "products": (lambda o, y: (y @ o).sum() + torch.einsum("nd,m->nm", o, y).mean(), COLUMN, Y),
    "numbers of rows": (lambda o, y: o[y].mean() + o.index_select(0, y).sum(), COLUMN, LABELS),
    "cross entropy": (F.cross_entropy, TWO, LABELS),
    "one class": (F.cross_entropy, COLUMN, torch.zeros(N, dtype=torch.long)),
    "margins": (F.multi_margin_loss, TWO, LABELS),
    "of a dtype": (lambda o, y: F.mse_loss(o, y.to(o).unsqueeze(1)), COLUMN, Y),
    "equal members of a class": (lambda o, y: (torch.cdist(o, o) * (y[:, None] == y)).sum(), TWO, LABELS),
    "one sample": (F.mse_loss, COLUMN[:1].view(1, 1), Y_COLUMN[:1]),
    "no target": (lambda o, y: o.mean(), COLUMN, None),
    "masks": (lambda o, y: (o.squeeze(1) - y).abs().mean(), MAPS, MASKS),
}  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", REFUSED)
def test_each_with_each_is_refused(name: str) -> None:
    loss, output, target = REFUSED[name]
    with pytest.raises(BroadcastError, match=r"broadcasts \[.*\] and \[.*\] to \[\d, .*; write output\.squeeze"):
        called(loss, output, target)


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_meant_is_computed(name: str) -> None:
    loss, output, target = ALLOWED[name]
    assert torch.equal(called(loss, output, target), loss(output, target))


def test_the_error_names_the_line() -> None:
    with pytest.raises(BroadcastError, match=r"^loss, .*test_handed_broadcasts\.py:\d+: .*sub broadcasts \[6, 1\] and"):
        called(REFUSED["minus"][0], COLUMN, Y, "loss")


FORMS: dict[str, Callable[[hfta.FusedArray, Any, Tensor], Any]] = {
    "backward": lambda array, loss, x: array.backward(loss, x, Y),
    "losses": lambda array, loss, x: array.losses(loss, array(x), Y),
    "evaluate": lambda array, loss, x: array.evaluate(loss, x, Y),
    "with more": lambda array, loss, x: array.backward(lambda o, y: (loss(o, y), o), x, Y, has_aux=True),
}


@pytest.mark.parametrize("verify", ["first", "never"])
@pytest.mark.parametrize("form", FORMS)
def test_every_call_of_an_array_looks(form: str, verify: str) -> None:
    def loss(o: Tensor, y: Tensor) -> Tensor:
        return (o - y).pow(2).mean()

    array = hfta.fuse([nn.Linear(4, 1).double() for _ in range(3)], verify=verify)
    with pytest.raises(BroadcastError, match=r"to \[6, 6\]"):
        FORMS[form](array, loss, numbers(N, 4))
    assert all(p.grad is None for p in array.parameters())


def test_shapes_that_broadcast_alike_are_looked_at_once() -> None:
    seen: list[bool] = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append(bool(torch._C._len_torch_function_stack()))
        return (output - target).mean()

    for count in (*range(1, 9), 1):
        called(loss, COLUMN[:1].expand(count, 1), Y_COLUMN[:1].expand(count, 1))
    assert seen == [True] * 2 + [False] * 7  # of one sample, and of more


def test_a_function_that_has_met_many_shapes_is_still_looked_at() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean()

    array = hfta.fuse([nn.Linear(3, 1) for _ in range(2)])
    for size in range(2, 80):
        array.evaluate(loss, torch.zeros(size, 3), torch.zeros(size, 1))
    with pytest.raises(BroadcastError):
        array.evaluate(loss, torch.zeros(9, 3), torch.zeros(9))
