"""Replays of the recorded kernels give the bits of eager steps: a run that is resumed makes its first ones eagerly."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray


def array(width: int, *, capture: bool) -> FusedArray:
    made = []
    for seed in range(2):
        torch.manual_seed(seed)
        made.append(
            nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))
        )
    found = hfta.fuse(made)
    found.strategy, found.capture = "fixed", capture
    return found


@pytest.mark.parametrize("width", [6, 8])
@pytest.mark.parametrize("samples", [56, 64])
def test_gradients(width: int, samples: int) -> None:
    """Weights lie in one tensor [M, P]: there each member's begin where no aligned memory does."""
    replayed, eager = array(width, capture=True), array(width, capture=False)
    draw = torch.Generator().manual_seed(0)
    differ = []
    for step in range(60):
        x, y = torch.randn(samples, 4, generator=draw), torch.randint(3, (samples,), generator=draw)
        for one in (replayed, eager):
            for p in one.parameters():
                p.grad = None
            one.backward(F.cross_entropy, x, y)
        for (name, p), q in zip(replayed.named_parameters(), eager.parameters(), strict=True):
            assert p.grad is not None
            assert q.grad is not None
            if not torch.equal(p.grad, q.grad):
                differ.append((step, name))
    assert "recorded" in set(replayed.explain()["how"])
    assert "recorded" not in set(eager.explain()["how"])
    assert differ == []
