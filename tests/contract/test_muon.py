"""Muon over the member axis: the numbers of `torch.optim.Muon`, in as many calls as one member takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import hfta_nb as hfta
from hfta_nb.optim.muon import orthogonal

LRS, DECAYS, MOMENTA = [0.02, 0.1, 0.005], [0.0, 0.1, 0.5], [0.95, 0.9, 0.5]


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts products of matrices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket in (torch.ops.aten.addmm, torch.ops.aten.baddbmm)
        return func(*args, **(kwargs or {}))


def _gradient(shape: torch.Size, member: int, step: int) -> Tensor:
    draw = torch.Generator().manual_seed(100 * member + step)
    return torch.randn(shape, dtype=torch.float64, generator=draw)


def _trained(widths: list[int], steps: int) -> tuple[hfta.FusedArray, list[nn.Module], list[int]]:
    """An array and its members alone after steps with equal gradients, and the products of each of the array's."""
    modules: list[nn.Module] = [nn.Sequential(nn.Linear(24, w), nn.ReLU(), nn.Linear(w, 20)).double() for w in widths]
    array = hfta.fuse(modules)
    matrices = hfta.optim.param_groups(array, lambda name, p: {} if p.ndim == 2 else None)
    optimizer = hfta.optim.Muon(matrices, lr=LRS, weight_decay=DECAYS, momentum=MOMENTA)
    alone = [
        torch.optim.Muon([p for p in m.parameters() if p.ndim == 2], lr=lr, weight_decay=decay, momentum=momentum)
        for m, lr, decay, momentum in zip(modules, LRS, DECAYS, MOMENTA, strict=True)
    ]
    counts: list[int] = []
    for step in range(steps):
        for name, p in array.named_parameters():
            p.grad = torch.zeros_like(p)
            for i, module in enumerate(modules):
                own = module.get_parameter(name)
                own.grad = _gradient(own.shape, i, step)
                p.grad[i][tuple(map(slice, own.shape))] = own.grad
        with Products() as products:
            optimizer.step()
        counts.append(products.count)
        for one in alone:
            one.step()  # type: ignore[no-untyped-call]
    return array, modules, counts


@pytest.mark.parametrize("widths", [[32, 32, 32], [32, 20, 40]], ids=["one width", "three widths"])
def test_members_have_the_numbers_of_torch(widths: list[int]) -> None:
    array, modules, _ = _trained(widths, 5)
    for i, module in enumerate(modules):
        for name, p in module.named_parameters():
            torch.testing.assert_close(array[i].get_parameter(name), p, rtol=0, atol=1e-10)


def test_all_members_take_the_products_of_one() -> None:
    *_, counts = _trained([32] * 3, 2)
    single = 2 * 2 * 5  # matrices, products, steps of Newton and Schulz
    some, how = torch.randn(9, 32, 24), ((3.4445, -4.7750, 2.0315), 5, 1e-7)
    same = torch.equal(orthogonal(some, *how), torch.stack([orthogonal(one, *how) for one in some]))
    assert counts[1] == (single if same else 3 * single)  # where batches have other bits, members go one by one


def test_matrices_have_muon_and_the_rest_adamw() -> None:
    modules = [nn.Sequential(nn.Linear(24, 20), nn.ReLU(), nn.Linear(20, 2)) for _ in LRS]
    array = hfta.fuse(modules)
    matrices = hfta.optim.param_groups(array, lambda name, p: {} if p.ndim == 2 else None)
    rest = hfta.optim.param_groups(array, lambda name, p: None if p.ndim == 2 else {})
    optimizers = [hfta.optim.Muon(matrices, lr=LRS), hfta.optim.AdamW(rest, lr=LRS, weight_decay=0.0)]
    assert [sum(len(g["params"]) for g in o.param_groups) for o in optimizers] == [2, 2]
    before = [p.detach().clone() for p in array.parameters()]
    array.backward(nn.functional.mse_loss, torch.randn(8, 24), torch.randn(8, 2))
    for optimizer in optimizers:
        optimizer.step()
    assert all(not torch.equal(p, old) for p, old in zip(array.parameters(), before, strict=True))
