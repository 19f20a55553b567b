"""Kernels for channels last, compared with torch's: pooling, pointwise convolutions, norms in groups of pixels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hfta_nb.engine.kernels.strategy.channels_last_norms import batch_norm, in_groups
from hfta_nb.engine.kernels.strategy.kernel_variants import Operand, variants_of
from hfta_nb.engine.kernels.strategy.pointwise import Pointwise, PointwiseBackward
from hfta_nb.engine.kernels.strategy.pooling import ChannelsLast


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (2, 3, 7, 9), (1, 1, 2, 2)], ids=str)
def test_max_pooling_with_channels_last_is_torch_s(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype).relu()
    special = torch.where(torch.rand(shape) < 0.2, float("inf"), torch.where(torch.rand(shape) < 0.2, -0.0, x))
    lost = torch.where(torch.rand(shape) < 0.3, float("nan"), x)
    for value in (x, special.to(dtype), lost.to(dtype)):
        for settings in (
            ([2, 2], [2, 2]),
            ([2, 2], []),
            ([3, 3], [2, 2], [1, 1]),
            ([2, 2], [2, 2], [0, 0], [1, 1], True),
        ):
            if min(shape[-2:]) < 3 and settings[0] == [3, 3]:
                continue
            out, indices = torch.ops.aten.max_pool2d_with_indices(value, *settings)
            rooms = torch.empty_like(out), torch.empty_like(indices)
            ChannelsLast(torch.ops.aten.max_pool2d_with_indices.out)(value, *settings, out=rooms[0], indices=rooms[1])
            torch.testing.assert_close(rooms[0], out, atol=0, rtol=0, equal_nan=True)
            assert torch.equal(rooms[1], indices)


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


def _operand(value: Any, dtype: torch.dtype | None = None) -> Any:
    return Operand(tuple(value.shape), value.stride(), dtype or value.dtype) if isinstance(value, Tensor) else value


def _ways(args: list[Any]) -> list[str]:
    return [f.name for f in variants_of(aten.convolution.default, [_operand(a, torch.float32) for a in args], CPU)]


def test_only_what_is_pointwise_and_lies_with_channels_last() -> None:
    args, grad = _case(1, 1, 4, False)
    assert "product" in _ways(args)
    backward = [grad, *args[:2], None, *args[3:], [True, True, False]]
    found = variants_of(aten.convolution_backward.default, [_operand(a, torch.float32) for a in backward], CPU)
    assert "product" in [f.name for f in found]
    backward[0] = grad.contiguous()
    assert not variants_of(aten.convolution_backward.default, [_operand(a, torch.float32) for a in backward], CPU)
    assert not _ways([args[0].contiguous(), *args[1:]])
    assert not _ways([*args[:4], [1, 1], *args[5:]])  # padded
    assert not _ways([*args[:6], True, *args[7:]])  # transposed
    wide = torch.zeros(6, 5, 3, 3)
    assert not _ways([args[0], wide, *args[2:]])
    assert "product" in _ways(_case(3, 1, 4, False)[0])
    assert not _ways(_case(3, 1, 4, False, channels=1)[0])  # many groups of one channel: no products


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("shape", [(4, 3, 16, 16), (8, 24, 32, 32), (1, 2, 64, 32)])
def test_batch_norm_in_groups_is_exact(shape: tuple[int, ...], running: bool, affine: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    x = (3 * torch.randn(shape, generator=draw) + 5).contiguous(memory_format=torch.channels_last)
    channels = shape[1]
    weight, bias = (torch.rand(channels, generator=draw) if affine else None for _ in range(2))
    mean, variance = (torch.rand(channels, generator=draw) if running else None for _ in range(2))
    args = (x, weight, bias, mean, variance, True, 0.1, 1e-5)
    assert in_groups([_operand(a) for a in args], CPU)
    exact = [a.double() if isinstance(a, Tensor) else a for a in args]
    own = [a.clone() if isinstance(a, Tensor) else a for a in args]
    first = [a.contiguous() if isinstance(a, Tensor) else a for a in own]
    expected, plain, found = torch.native_batch_norm(*exact), torch.native_batch_norm(*first), batch_norm(*args)
    assert found[0].stride() == x.stride()
    for got, torchs, true in zip(
        [*found, *(t for t in args[3:5] if running)],
        [*plain, *(t for t in first[3:5] if running)],
        [*expected, *(t for t in exact[3:5] if running)],
        strict=True,
    ):
        least = torch.finfo(torch.float32).eps * float(true.abs().max())
        assert float((got - true).abs().max()) <= 4 * max(float((torchs - true).abs().max()), least)


def test_other_batch_norms_are_torchs() -> None:
    x = torch.randn(4, 3, 16, 16)
    last, ones = x.contiguous(memory_format=torch.channels_last), torch.ones(3)

    def asked(x: Tensor, training: bool = True, device: torch.device = CPU) -> bool:
        args = (x, ones.to(x.dtype), ones.to(x.dtype), None, None, training, 0.1, 1e-5)
        return in_groups([_operand(a) for a in args], device)

    assert asked(last)
    assert not asked(x)
    assert not asked(last, training=False)
    assert not asked(last.double())
    assert not asked(last[:2])  # few pixels: torch's own is exact enough
    assert not asked(last.flatten(2))
    assert not asked(last, device=torch.device("cuda"))
