"""Trains an array on given mini-batches, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray


def train(array: FusedArray, batches: Iterable[tuple[Tensor, Tensor]], lr: Any = 0.1, split: bool = False) -> Tensor:
    """Losses of shape (steps, members), of classification by SGD.

    Args:
        array: whose parameters learn.
        batches: one a step.
        lr: of all members, or one each.
        split: by `array(x)` and losses of the caller's own, in place of `array.backward`.
    """
    optimizer = hfta.optim.SGD(array, lr=lr)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        if split:
            found = torch.stack([F.cross_entropy(out, y) for out in array(x)])
            found.sum().backward()
        else:
            found = array.backward(F.cross_entropy, x, y)
        losses.append(found.detach())
        optimizer.step()
    return torch.stack(losses)
