"""Parts of a model that some members skip, as in a mixture whose router takes one expert: no gradient, no step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from tests.contract.handed_over import numbers

BATCHES = [numbers(5, 4, seed=seed) for seed in range(12)]
Y = numbers(5, 2, seed=99)
SEEDS = (0, 1, 2)


class Mixture(nn.Module):
    """The expert depends on the member's weights and the batch."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.experts = nn.ModuleList([nn.Linear(4, 2) for _ in range(3)]).double()

    def forward(self, x: Tensor) -> Tensor:
        first = self.experts[0].weight.detach().abs().sum()
        found: Tensor = self.experts[int(10 * (first + x.sum().abs())) % 3](x)
        return found


Form = Callable[[Any, Tensor], None]


def by_losses(array: Any, x: Tensor) -> None:
    array.losses(F.mse_loss, array(x), Y).sum().backward()


def by_output(array: Any, x: Tensor) -> None:
    out = array(x)
    torch.stack([F.mse_loss(out[i], Y) for i in range(len(array))]).sum().backward()


def of_two_calls(array: Any, x: Tensor) -> None:
    first, second = array(x), array(-2 * x)
    torch.stack([F.mse_loss(first[i] + second[i], Y) for i in range(len(array))]).sum().backward()


FORMS: dict[str, tuple[Form, Callable[[nn.Module, Tensor], Tensor]]] = {
    "backward": (lambda a, x: a.backward(F.mse_loss, x, Y), lambda m, x: F.mse_loss(m(x), Y)),
    "losses": (by_losses, lambda m, x: F.mse_loss(m(x), Y)),
    "array(x)": (by_output, lambda m, x: F.mse_loss(m(x), Y)),
    "two calls": (of_two_calls, lambda m, x: F.mse_loss(m(x) + m(-2 * x), Y)),
}

OPTIMIZERS = {
    "Adam": {"lr": 0.01},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Rprop": {"lr": 0.01},
}


@pytest.mark.pairs
@pytest.mark.each("form")
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("block", [3, 1])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("form", [*FORMS, "in turn"])
def test_experts_that_a_member_skips_are_left_alone(form: str, optimizer: str, block: int, every: int) -> None:
    forms = [FORMS[form]] if form in FORMS else [FORMS["array(x)"], FORMS["backward"], FORMS["losses"]]
    array = hfta.fuse([Mixture(seed) for seed in SEEDS])
    array.self_tuning, array.block_size = False, block
    trainer = getattr(hfta.optim, optimizer)(array, **OPTIMIZERS[optimizer])
    alone = [Mixture(seed) for seed in SEEDS]
    trainers = [getattr(torch.optim, optimizer)(m.parameters(), **OPTIMIZERS[optimizer]) for m in alone]
    for step, x in enumerate(BATCHES):
        fused, plain = forms[step % len(forms)]
        if step % every == 0:
            for one in (trainer, *trainers):
                one.zero_grad()
        fused(array, x)
        for module in alone:
            plain(module, x).backward()
        if step % every == every - 1:
            for one in (trainer, *trainers):
                one.step()
    for index, module in enumerate(alone):
        for found, wanted in zip(array[index].parameters(), module.parameters(), strict=True):
            assert (found - wanted).abs().max() < 1e-10
