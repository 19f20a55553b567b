"""Whether Python's and NumPy's streams have moved, for each of NumPy's generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.members.process_streams import set_stream_states, stream_states, unchanged

GENERATORS = np.random.MT19937, np.random.PCG64, np.random.Philox, np.random.SFC64
DRAWS: dict[str, Callable[[], Any]] = {
    "a number of Python's": random.random,
    "a number": np.random.rand,
    "a normal number": np.random.randn,
    "an integer": lambda: np.random.randint(10),
    "a new seed": lambda: np.random.seed(3),
}


@pytest.fixture(params=GENERATORS)
def generator(request: pytest.FixtureRequest) -> Iterator[None]:
    before = np.random.get_bit_generator()  # type: ignore[attr-defined]
    np.random.set_bit_generator(request.param(1))  # type: ignore[attr-defined]
    yield
    np.random.set_bit_generator(before)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("generator")
@pytest.mark.parametrize("stored", [False, True], ids=["", "a normal number is in store"])
@pytest.mark.parametrize("draw", DRAWS)
def test_a_draw_is_seen_and_undone(draw: str, stored: bool) -> None:
    if stored:
        np.random.randn()
    began = stream_states()
    assert unchanged(began)
    DRAWS[draw]()
    assert not unchanged(began)
    set_stream_states(began)
    assert unchanged(began)


def test_another_generator_is_a_change() -> None:
    began, before = stream_states(), np.random.get_bit_generator()  # type: ignore[attr-defined]
    try:
        np.random.set_bit_generator(np.random.PCG64(1))  # type: ignore[attr-defined]
        assert not unchanged(began)
    finally:
        np.random.set_bit_generator(before)  # type: ignore[attr-defined]
    assert unchanged(began)


class _Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out + np.random.randn() + random.random()


@pytest.mark.usefixtures("generator")
def test_members_draw_as_alone() -> None:
    torch.manual_seed(0)
    modules, x = [_Noisy() for _ in range(3)], torch.randn(5, 4, dtype=torch.float64)
    array = hfta.fuse(modules)
    for _ in range(3):
        began = stream_states()
        alone = []
        for module in modules:
            set_stream_states(began)
            alone.append(module(x))
        after = stream_states()
        set_stream_states(began)
        torch.testing.assert_close(array(x), torch.stack(alone), rtol=1e-12, atol=1e-12)
        assert unchanged(after)
