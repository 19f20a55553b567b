"""Optimizers that run torch's own class for each member: equal bits, equal state, no effect on other members."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import OptimError
from tests.contract.optim_rows import OPTIMIZERS, OptimizerRow
from tests.contract.optim_serial import make_optimizer, setup, step_with_equal_gradients, torch_optimizer

by_torch = pytest.mark.parametrize("row", [r for r in OPTIMIZERS if r.name in ("Adafactor", "Muon", "Rprop")], ids=str)


@by_torch
def test_every_bit_is_that_of_training_alone(row: OptimizerRow) -> None:
    modules, _, _ = setup(dtype=torch.float32)
    array = hfta.fuse(modules)
    optimizer = make_optimizer(row, array)
    alone = [torch_optimizer(row, module, i) for i, module in enumerate(modules)]
    for _ in range(5):
        step_with_equal_gradients(array, optimizer, modules, alone)
    for i, module in enumerate(modules):
        for p, q in zip(module.parameters(), array.parameters(), strict=True):
            assert torch.equal(p, q[i])


@by_torch
def test_a_padded_member_has_the_state_of_the_plain_module(row: OptimizerRow) -> None:
    modules = [nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2)) for width in (4, 6, 5)]
    array = hfta.fuse(modules)
    optimizer = make_optimizer(row, array)
    for p in array.parameters():
        p.grad = torch.cos(p.detach())
    optimizer.step()
    for i, module in enumerate(modules):
        own = torch_optimizer(row, module, i)
        for p in module.parameters():
            p.grad = torch.cos(p.detach())
        own.step()
        found, wanted = optimizer.state_of(i)["state"], own.state_dict()["state"]
        assert found.keys() == wanted.keys()
        for number, state in wanted.items():
            assert found[number].keys() == state.keys()
            for name, value in state.items():
                assert torch.equal(found[number][name], value)


def test_a_state_of_another_form_is_refused() -> None:
    modules, _, _ = setup()
    optimizer = hfta.optim.Rprop(hfta.fuse(modules), lr=0.01)
    saved = optimizer.state_dict()
    saved["state"] = {"0.weight": {"steps": [1, 1, 1], "tensors": {}, "numbers": {}}}
    with pytest.raises(OptimError, match="another number of members"):
        optimizer.load_state_dict(saved)
