"""Sums of tensors that are zero except for one slice each become one stack; other sums do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.replay.program import Program


class _Unbound(nn.Module):
    """Parts of one product, of which not all may be used."""

    def __init__(self, used: tuple[int, ...]) -> None:
        super().__init__()
        self.used, self.all, self.last = used, nn.Linear(6, 12), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.all(x).unflatten(-1, (3, 4)).transpose(0, -2).contiguous()
        found = 1.0
        for i in self.used:
            found = found * (parts[i] + i).sigmoid()
        return self.last(found)  # type: ignore[no-any-return]


def _loss(out: Tensor, y: Tensor) -> Tensor:
    return ((out.mean(0) - y) ** 2).mean()


def _replayed(build: Any, members: int) -> Program:
    """The program of a step, compared with every member alone to the last bit."""
    torch.manual_seed(3)
    plain = [build().double() for _ in range(members)]
    array = hfta.fuse(plain)
    x, y = torch.randn(5, 7, 6, dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    for _ in range(4):
        array.zero_grad()
        losses = array.backward(_loss, x, y)
        for i, net in enumerate(plain):
            net.zero_grad()
            loss = _loss(net(x), y)
            loss.backward()
            torch.testing.assert_close(losses[i], loss, rtol=1e-12, atol=0)
            for (name, p), q in zip(array.named_parameters(), net.parameters(), strict=True):
                assert p.grad is not None, name
                torch.testing.assert_close(p.grad[i], q.grad, rtol=1e-11, atol=1e-15)
    (seen,) = array._calls.steps
    assert seen.program is not None, seen.reason
    return seen.program


def _names(program: Program) -> str:
    calls = [] if program.source is None else program.source.calls
    return " ".join(str(call.function) for call in calls)


@pytest.mark.parametrize("members", [1, 3])
def test_slices_that_fill_a_tensor_are_stacked(members: int) -> None:
    names = _names(_replayed(lambda: _Unbound((0, 1, 2)), members))
    assert "stack" in names
    assert "select_backward" not in names


@pytest.mark.parametrize("used", [(0, 2), (1,), (0, 1, 1, 2)])
def test_others_are_added_as_ever(used: tuple[int, ...]) -> None:
    names = _names(_replayed(lambda: _Unbound(used), 2))
    assert "select_backward" in names
    assert "stack" not in names


class _Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.attention(x, x, x, need_weights=False)[0]).mean(0)  # type: ignore[no-any-return]


@pytest.mark.parametrize("members", [1, 3])
def test_the_projections_of_attention_are_stacked(members: int) -> None:
    names = _names(_replayed(_Attending, members))
    assert "stack" in names
    assert "select_backward" not in names
