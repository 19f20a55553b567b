"""Pointwise convolutions of images with channels last, as products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hfta_nb.engine.kernels.strategy.kernel_variants import Operand, variants_of
from hfta_nb.engine.kernels.strategy.pointwise import Pointwise, PointwiseBackward

CPU = torch.device("cpu")
aten = torch.ops.aten


def _case(groups: int, stride: int, side: int, bias: bool, channels: int = 5) -> tuple[list[Any], Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, groups * channels, side, side, generator=draw, dtype=torch.float64)
    # As parameters lie in an array: within a longer row.
    weight = torch.randn(groups * 6 * channels + 7, generator=draw, dtype=torch.float64)[3:-4]
    shift = torch.randn(groups * 6, generator=draw, dtype=torch.float64) if bias else None
    last = x.contiguous(memory_format=torch.channels_last)
    settings = [[stride, stride], [0, 0], [1, 1], False, [0, 0], groups]
    args = [last, weight.view(groups * 6, channels, 1, 1), shift, *settings]
    out = aten.convolution(*args)
    grad = torch.randn(out.shape, generator=draw, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    return args, grad


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("side", [1, 4, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 3])
def test_products_are_the_convolution(groups: int, stride: int, side: int, bias: bool) -> None:
    args, grad = _case(groups, stride, side, bias)
    found, expected = Pointwise(aten.convolution)(*args), aten.convolution(*args)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert found.is_contiguous(memory_format=torch.channels_last)
    x, weight, shift, *settings = args
    sizes = None if shift is None else [len(shift)]
    for wanted in ([True, True, bias], [False, True, bias], [True, False, False]):
        whole = [grad, x, weight, sizes, *settings, wanted]
        gradients = PointwiseBackward(aten.convolution_backward)(*whole)
        for got, true, asked in zip(gradients, aten.convolution_backward(*whole), wanted, strict=True):
            assert (got is None) is not asked
            assert not asked or torch.allclose(got, true, rtol=0, atol=1e-12)


def _operand(value: Any) -> Any:
    return Operand(tuple(value.shape), value.stride(), torch.float32) if isinstance(value, Tensor) else value


def _ways(args: list[Any]) -> list[str]:
    return [f.name for f in variants_of(aten.convolution.default, [_operand(a) for a in args], CPU)]


def test_only_what_is_pointwise_and_lies_with_channels_last() -> None:
    args, grad = _case(1, 1, 4, False)
    assert "product" in _ways(args)
    backward = [grad, *args[:2], None, *args[3:], [True, True, False]]
    found = variants_of(aten.convolution_backward.default, [_operand(a) for a in backward], CPU)
    assert "product" in [f.name for f in found]
    backward[0] = grad.contiguous()
    assert not variants_of(aten.convolution_backward.default, [_operand(a) for a in backward], CPU)
    assert not _ways([args[0].contiguous(), *args[1:]])
    assert not _ways([*args[:4], [1, 1], *args[5:]])  # padded
    assert not _ways([*args[:6], True, *args[7:]])  # transposed
    wide = torch.zeros(6, 5, 3, 3)
    assert not _ways([args[0], wide, *args[2:]])
    assert "product" in _ways(_case(3, 1, 4, False)[0])
    assert not _ways(_case(3, 1, 4, False, channels=1)[0])  # many groups of one channel: no products
