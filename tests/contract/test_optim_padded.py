"""Optimizers over members of different architectures: each equals training alone, and exports its state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from tests.contract.optim_rows import OPTIMIZERS, OptimizerRow
from tests.contract.optim_serial import make_optimizer, parameters_for, through_file, torch_optimizer

optimizers = pytest.mark.parametrize("row", OPTIMIZERS, ids=str)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.inner(x))


def _build(width: int, depth: int) -> nn.Module:
    return nn.Sequential(nn.Linear(5, width), *[Block(width) for _ in range(depth)], nn.Tanh(), nn.Linear(width, 3))


def _wave(p: torch.Tensor) -> torch.Tensor:
    return torch.sin(3 * p.detach())  # of nothing, nothing


def _step(module: nn.Module, optimizer) -> None:
    def closure() -> torch.Tensor:
        for p in module.parameters():
            p.grad = _wave(p)
        axis = 1 if isinstance(module, hfta.FusedArray) else 0
        return sum(-torch.cos(3 * p.detach()).sub(1).flatten(axis).sum(-1) / 3 for p in module.parameters())

    if isinstance(optimizer, hfta.optim.LBFGS | torch.optim.LBFGS):
        optimizer.step(closure)
        return
    closure()
    if isinstance(optimizer, torch.optim.SparseAdam):
        for p in module.parameters():
            p.grad = p.grad.to_sparse(1)
    optimizer.step()


def _compare(array, modules) -> None:
    for i, module in enumerate(modules):
        for (name, p), q in zip(module.named_parameters(), array[i].parameters(), strict=True):
            torch.testing.assert_close(p, q, atol=1e-10, rtol=0, msg=lambda m, n=name, i=i: f"member {i}, {n}: {m}")
    for name, own in array.owned.items():
        if name in dict(array.named_parameters()):
            assert (array.get_parameter(name)[~own] == 0).all()


@pytest.mark.each("row", every=2)
@optimizers
def test_members_of_three_shapes(row: OptimizerRow) -> None:
    torch.manual_seed(0)
    modules = [_build(w, d).double() for w, d in ((8, 1), (4, 0), (6, 2))]
    array = hfta.fuse(modules)
    optimizer = make_optimizer(row, array)
    alone = [torch_optimizer(row, m, i) for i, m in enumerate(modules)]
    for _ in range(6):
        _step(array, optimizer)
        for module, own in zip(modules, alone, strict=True):
            _step(module, own)
    _compare(array, modules)

    taken, fresh = [array[i] for i in range(3)], []
    for i, module in enumerate(taken):
        own = row.plain_class(parameters_for(row, module))
        own.load_state_dict(through_file(optimizer.state_of(i)))
        fresh.append(own)
    part = array.select([2, 0])
    few = optimizer.select([2, 0], part)
    back = make_optimizer(row, array)
    for i, own in enumerate(fresh):
        back.load_state_of(i, own.state_dict())
    for _ in range(4):
        _step(array, back)
        _step(part, few)
        for module, own in zip(taken, fresh, strict=True):
            _step(module, own)
    _compare(array, taken)
    _compare(part, [taken[2], taken[0]])
