"""The package's own convolutions of images with channels last: compared with float64, and in place of torch's in a
step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hfta_nb.engine.kernels.native import conv
from tests.core.compiled import (
    NEEDS_COMPILER,
    channels_last,
    near,
    see_torchs_in_float64,
    taken,
    train_measured,
)

pytestmark = [NEEDS_COMPILER, pytest.mark.usefixtures("libraries_anew")]
OWN = [conv]

aten = torch.ops.aten
# samples, channels in and out, height, width, window, padding, groups, then stride, whether it is transposed
CASES = [
    (3, 1, 16, 28, 28, (3, 3), [1, 1], 1),
    (2, 16, 32, 14, 14, (3, 3), [1, 1], 1),
    (3, 6, 10, 7, 9, (3, 5), [1, 2], 2),
    (3, 5, 7, 6, 6, (3, 3), [0], 1),
    (2, 66, 40, 5, 5, (2, 2), [1, 1], 2),
    (2, 8, 40, 9, 17, (5, 5), [2, 4], 8),
    (1, 4, 50, 3, 40, (1, 3), [0, 0], 1),
    (1, 3, 33, 2, 2, (2, 2), [0, 1], 1),
    (2, 8, 16, 9, 12, (3, 3), [1, 1], 1, [2, 2]),
    (2, 6, 4, 12, 9, (4, 3), [1, 0], 2, [3, 2]),
    (2, 8, 5, 6, 7, (4, 4), [1, 1], 1, [2, 2], True),
    (2, 16, 24, 1, 1, (4, 4), [0, 0], 1, [1, 1], True),
    (2, 6, 8, 5, 3, (3, 2), [2, 0], 2, [3, 1], True),
]


def _draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _given(case: Any) -> tuple[Tensor, Tensor, Tensor, list[Any]]:
    samples, channels, out, height, width, window, padding, groups, *rest = case
    stride, transposed, *_ = [*rest, *([1, 1], False)[len(rest) :]]
    sizes = (channels, out // groups) if transposed else (out, channels // groups)
    x, weight = channels_last(_draw(1, samples, channels, height, width)), _draw(2, *sizes, *window)
    return x, weight, _draw(3, out), [stride, padding, [1, 1], transposed, [0, 0], groups]


@pytest.mark.usefixtures("own_libraries")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case: Any, biased: bool) -> None:
    x, weight, bias, how = _given(case)
    assert conv.takes(weight.shape, how)
    added = bias if biased else None
    torchs = aten.convolution(x, weight, added, *how)
    exact = aten.convolution(x.double(), weight.double(), bias.double() if biased else None, *how)
    out = channels_last(torch.full_like(torchs, 7.0))
    for strides in (weight, weight.transpose(2, 3).contiguous().transpose(2, 3)):
        conv.forward([x, strides, added, *how], {"out": out.fill_(7.0)})()
        near(out, torchs, exact)


@pytest.mark.usefixtures("own_libraries")
@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, True), (True, False, False)], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_backward(case: Any, wanted: tuple[bool, ...]) -> None:
    x, weight, bias, how = _given(case)
    grad = channels_last(_draw(4, *aten.convolution(x, weight, None, *how).shape))
    args = [grad, x, weight, [len(bias)], *how]
    torchs = aten.convolution_backward(*args, [True] * 3)
    exact = aten.convolution_backward(*(t.double() for t in args[:3]), *args[3:], [True] * 3)
    rooms = {"by_x": torch.full_like(x, 7.0), "by_weight": channels_last(weight + 7), "by_bias": bias + 7}
    wanted = (*wanted[:2], wanted[2] and not how[3])
    asked = {name: room for (name, room), yes in zip(rooms.items(), wanted, strict=True) if yes}
    before = {name: room.clone() for name, room in rooms.items()}
    conv.backward([*args, list(wanted)], asked)()
    for (name, room), two, true in zip(rooms.items(), torchs, exact, strict=True):
        if name in asked:
            near(room, two, true)
        else:
            assert torch.equal(room, before[name])


def test_which() -> None:
    plain: list[Any] = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    assert conv.takes((4, 3, 3, 3), plain)
    assert not conv.takes((4, 3, 1, 1), [[1, 1], [0, 0], *plain[2:]])  # a product
    assert not conv.takes((4, 3, 3, 3), [[1, 1], [3, 1], *plain[2:]])
    assert not conv.takes((4, 3, 3, 3), [*plain[:2], [1, 2], *plain[3:]])
    assert not conv.takes((4, 3, 3), [[1], [1], [1], False, [0], 1])


def _net() -> nn.Module:
    first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 5, (3, 2), bias=False)
    return nn.Sequential(first, nn.Tanh(), second, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(20, 4))


@pytest.mark.usefixtures("own_libraries", "own_kernels_preferred")
@pytest.mark.parametrize("block_size", [1, 2])
def test_in_a_replayed_step(block_size: int) -> None:
    size = (6, 3, 9, 8)
    # Images lie with channels last, and so do those of a step.
    array = train_measured(_net, size, block_size, last=True)
    assert taken(array, "convolution") == ["convolution", "convolution", "convolution_backward"]
    see_torchs_in_float64(_net, size, block_size, last=True, among="convolution")
