"""Batch norm of channels-last images in groups of pixels is as exact as torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hfta_nb.engine.kernels.strategy.channels_last_norms import batch_norm, in_groups
from hfta_nb.engine.kernels.strategy.kernel_variants import Operand

CPU = torch.device("cpu")


def _operand(value: Any) -> Any:
    return Operand(tuple(value.shape), value.stride(), value.dtype) if isinstance(value, Tensor) else value


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
