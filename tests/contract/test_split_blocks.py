"""Calls in blocks of other sizes between a forward and its backward, as tuning makes them."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from tests.contract.replay import SEEDS, loss_of_all

KINDS = {
    "one width": [6, 6, 6],
    "two widths": [6, 4, 6],
}


def build(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(5, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3)).double()


@pytest.mark.parametrize("sizes", list(product((1, 2, 3), repeat=2)), ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("verified")
def test_two_forwards_in_blocks_of_other_sizes(kind: str, sizes: tuple[int, int], device: torch.device) -> None:
    torch.manual_seed(0)
    members = [build(width).to(device) for width in KINDS[kind]]
    array = hfta.fuse(members, SEEDS)
    array.self_tuning = False
    optimizer = hfta.optim.SGD(array, lr=0.1)
    own = [torch.optim.SGD(member.parameters(), lr=0.1) for member in members]
    batches = [torch.randn(6, 5, dtype=torch.float64, device=device) for _ in sizes]
    for _ in range(5):
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64, device=device)
        outputs = []
        for x, size in zip(batches, sizes, strict=True):
            array.block_size = size
            outputs.append(array(x))
        for output in outputs:
            total = total + sum(loss_of_all(out) for out in output)
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        for member, alone in zip(members, own, strict=True):
            alone.zero_grad()
            losses = [loss_of_all(out) for out in [member(x) for x in batches]]
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
            alone.step()
    for i, member in enumerate(members):
        for (name, mine), (_, value) in zip(array[i].state_dict().items(), member.state_dict().items(), strict=True):
            torch.testing.assert_close(mine, value, atol=1e-10, rtol=1e-10, msg=lambda m, name=name: f"{name}: {m}")
