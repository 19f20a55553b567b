"""Torch's settings that change what kernels compute: a call under settings that differ is recorded anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.replay.signature import settings

backends: Any = torch.backends
STEPS = 6
"""Enough that a call is recorded and replayed."""


@contextmanager
def _set(place: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


@contextmanager
def _between(change: Callable[[], Any], back: Callable[[], Any]) -> Iterator[None]:
    change()
    try:
        yield
    finally:
        back()


def _called(setter: Callable[[Any], Any], value: Any, before: Any) -> AbstractContextManager[None]:
    return _between(partial(setter, value), partial(setter, before))


def _warning_only() -> AbstractContextManager[None]:
    on = partial(torch.use_deterministic_algorithms, True, warn_only=True)
    return _between(on, partial(torch.use_deterministic_algorithms, False))


ANYWHERE: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "sdpa_kernel": lambda: sdpa_kernel(SDPBackend.MATH),
    "flash attention off": lambda: _called(backends.cuda.enable_flash_sdp, False, True),
    "efficient attention off": lambda: _called(backends.cuda.enable_mem_efficient_sdp, False, True),
    "reduced sums in attention": lambda: _called(backends.cuda.allow_fp16_bf16_reduction_math_sdp, True, False),
    "deterministic": lambda: _called(torch.use_deterministic_algorithms, True, False),
    "deterministic, with warnings": _warning_only,
    "uninitialized memory": lambda: _set(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "oneDNN off": lambda: _called(torch._C._set_mkldnn_enabled, False, True),
    "oneDNN deterministic": lambda: _set(backends.mkldnn, "deterministic", True),
    "NNPACK off": lambda: backends.nnpack.flags(enabled=False),
    "convolutions in bfloat16": lambda: _set(backends.mkldnn.conv, "fp32_precision", "bf16"),
    "products in bfloat16": lambda: _set(backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "denormal numbers": lambda: _called(torch.set_flush_denormal, True, False),
    "attention without fast path": lambda: _called(backends.mha.set_fastpath_enabled, False, True),
    "order of products in einsum": lambda: _set(backends.opt_einsum.m, "enabled", not backends.opt_einsum.enabled),
}
ON_GPU: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "cuDNN off": lambda: backends.cudnn.flags(enabled=False, allow_tf32=True),
    "cuDNN benchmark": lambda: _set(backends.cudnn, "benchmark", True),
    "cuDNN deterministic": lambda: _set(backends.cudnn, "deterministic", True),
    "cuDNN attention off": lambda: _called(backends.cuda.enable_cudnn_sdp, False, True),
    "order of attention": lambda: sdpa_kernel(
        [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True
    ),
    "bfloat16 sums": lambda: _set(backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    "float16 sums": lambda: _set(backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
    "float16 accumulation": lambda: _set(backends.cuda.matmul, "allow_fp16_accumulation", True),
    "TF32 products": lambda: _set(backends.cuda.matmul, "fp32_precision", "tf32"),
    "float32 convolutions": lambda: _set(backends.cudnn.conv, "fp32_precision", "ieee"),
}


@pytest.mark.parametrize("what", [*ANYWHERE, *ON_GPU])
def test_a_setting_is_told(what: str) -> None:
    gpu = torch.device("cuda")
    before = settings(gpu)
    assert isinstance(hash(before), int)  # part of a key
    with {**ANYWHERE, **ON_GPU}[what]():
        assert settings(gpu) != before
    assert settings(gpu) == before


class Attending(nn.Module):
    """Attention of one head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).unsqueeze(1)
        return self.last(F.scaled_dot_product_attention(h, h, h).squeeze(1).mean(1))  # type: ignore[no-any-return]


def _recorded(array: FusedArray) -> list[set[str]]:
    """The attention kernels of each recorded call."""
    kernels = array._calls.steps.kernels()
    return [{name for name in names if "attention" in name} for names in kernels]


@pytest.mark.parametrize("what", ["sdpa_kernel", "denormal numbers"])
def test_a_call_under_another_setting_is_recorded_anew(what: str, device: torch.device) -> None:
    torch.manual_seed(0)
    array = hfta.fuse([Attending().to(device) for _ in range(2)])
    x, y = torch.randn(4, 6, 16, device=device), torch.randint(0, 4, (4,), device=device)

    def train() -> None:
        for _ in range(STEPS):
            array.zero_grad()
            array.backward(F.cross_entropy, x, y)

    train()
    [usual] = _recorded(array)
    with ANYWHERE[what]():
        train()
        assert len(_recorded(array)) == 2
        if what == "sdpa_kernel":
            assert _recorded(array)[1] != usual
    train()
    assert len(_recorded(array)) == 2  # the first program is used again
