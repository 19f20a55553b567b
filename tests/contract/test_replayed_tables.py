"""Tables that a model's code makes in its first call, in classes and global variables, don't prevent recordings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from tests.contract.handed_over import numbers

TABLES: dict[int, Tensor] = {}
CALLS = [0]
X, Y = numbers(12, 4), numbers(12, 4, seed=1)


class Positions(nn.Module):
    """Keeps a table by length in a global dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) not in TABLES:
            TABLES[len(x)] = torch.arange(len(x), dtype=x.dtype).sin()[:, None]
        return self.layer(x) + TABLES[len(x)]  # type: ignore[no-any-return]


class Masked(Positions):
    """Keeps a mask in its class."""

    mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if Masked.mask is None:
            Masked.mask = torch.ones(4, dtype=x.dtype).cumsum(0)
        return self.layer(x) * Masked.mask  # type: ignore[no-any-return]


class Counted(Positions):
    """Counts its calls in a global list, which is one for each member."""

    def forward(self, x: Tensor) -> Tensor:
        CALLS[0] += 1
        return self.layer(x) / CALLS[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("build", "replayed"), [(Positions, True), (Masked, True), (Counted, False)])
def test_tables_are_replayed_and_counts_are_not(build: Callable[[], nn.Module], replayed: bool) -> None:
    TABLES.clear()
    Masked.mask = None
    modules = [build().double() for _ in range(3)]
    array = hfta.fuse(modules)
    ours, theirs = hfta.optim.SGD(array, lr=0.1), [torch.optim.SGD(m.parameters(), lr=0.1) for m in modules]
    sizes = [12] * 8 + [9] * 3 + [12] * 3
    found = []
    for size in sizes:
        ours.zero_grad()
        found.append(array.backward(F.mse_loss, X[:size], Y[:size]))
        ours.step()
    assert ("recorded" in set(array.explain()["how"])) is replayed
    for i, (module, optimizer) in enumerate(zip(modules, theirs, strict=True)):
        CALLS[0] = 0  # as in a process of its own
        for step, size in enumerate(sizes):
            optimizer.zero_grad()
            loss = F.mse_loss(module(X[:size]), Y[:size])
            loss.backward()
            optimizer.step()
            torch.testing.assert_close(found[step][i], loss.detach(), rtol=1e-10, atol=1e-12)
