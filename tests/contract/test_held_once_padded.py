"""Members of unlike sizes over one frozen base: it is held once, and they train as alone."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.train.memory import Meter
from tests.contract.frozen_bases import (
    LRS,
    SEEDS,
    WIDTH,
    Alone,
    Lora,
    Train,
    adam,
    backward,
    held,
    one_by_one,
    split,
    trunk,
)

BASE = ["0.weight", "0.bias", "2.base.weight", "2.base.bias", "3.weight", "3.bias"]


def tuned(rank: int, seed: int) -> nn.Module:
    """Adapters of a rank of its own, and a head, over a copy of the base."""
    base = trunk()
    torch.manual_seed(seed)
    layers = base[0], nn.Tanh(), Lora(base[2], rank), base[3], nn.Dropout(0.1), nn.Linear(WIDTH, 3)  # type: ignore[arg-type]
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("train", [backward, split, one_by_one])
def test_members_of_unlike_rank_train_as_alone(train: Train) -> None:
    modules = [tuned(rank, i) for i, rank in enumerate((2, 4, 3))]
    array = hfta.fuse(modules, SEEDS)
    train(array, adam(array), 8)
    assert held(array) == BASE
    alone = Alone(modules).train(8)
    for i, module in enumerate(alone.modules):
        torch.testing.assert_close(dict(array[i].state_dict()), dict(module.state_dict()), atol=1e-10, rtol=0)


def test_surgery_and_training_the_base_later() -> None:
    modules = [tuned(rank, i) for i, rank in enumerate((2, 4, 3))]
    array = hfta.fuse(modules, SEEDS)
    chosen = array.select([0, 2])
    assert held(chosen) == BASE
    array.load_state_dict(array.state_dict())
    assert held(array) == BASE
    own = modules[1].state_dict() | {"0.weight": torch.zeros(WIDTH, WIDTH, dtype=torch.float64)}
    array.load_member(1, own)
    assert held(array) == BASE[1:]
    torch.testing.assert_close(dict(array[1].state_dict()), dict(own), atol=0, rtol=0)
    chosen.requires_grad_(True)
    backward(chosen, hfta.optim.AdamW(chosen, lr=[LRS[0], LRS[2]], weight_decay=0.1), 4)
    assert held(chosen) == []
    trained = [copy.deepcopy(modules[i]).requires_grad_(True) for i in (0, 2)]
    again = hfta.fuse(trained, [SEEDS[0], SEEDS[2]])
    backward(again, hfta.optim.AdamW(again, lr=[LRS[0], LRS[2]], weight_decay=0.1), 4)
    for i in range(2):
        torch.testing.assert_close(dict(chosen[i].state_dict()), dict(again[i].state_dict()), atol=1e-10, rtol=0)


def test_a_padded_array_takes_the_base_once() -> None:
    base = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).requires_grad_(False)

    def member(rank: int) -> nn.Module:
        return nn.Sequential(copy.deepcopy(base), nn.Linear(256, rank), nn.Linear(rank, 3))

    modules = [member(rank) for rank in (2, 4, 8, 16)]
    padded = 4 * sum(p.nbytes for p in modules[-1][1:].parameters())  # type: ignore[index]
    meter = Meter(torch.device("cpu"))
    with meter:
        array = hfta.fuse(modules)
        gc.collect()
        size = meter.held_bytes
    assert len(array) == 4
    assert size < 1.05 * (sum(p.nbytes for p in base.parameters()) + padded)


def test_a_base_with_padding_of_its_own_is_not_held_once() -> None:
    def member(width: int) -> nn.Module:
        torch.manual_seed(0)
        frozen = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, width)).requires_grad_(False)
        return nn.Sequential(frozen, nn.Linear(width, 3)).double()

    modules = [member(width) for width in (32, 64)]
    array = hfta.fuse(modules)
    assert held(array) == ["0.0.weight", "0.0.bias"]
    x: Tensor = torch.randn(5, 32, dtype=torch.float64)
    for out, module in zip(array(x), modules, strict=True):
        torch.testing.assert_close(out, module(x), atol=1e-12, rtol=0)
