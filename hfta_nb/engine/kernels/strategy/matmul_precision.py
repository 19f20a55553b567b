"""oneDNN's matrix products for float32, where they compute in float32; and the meaning of float32 on a GPU.

Torch's products of float32 use the BLAS library that it was built with. With
`torch.backends.mkldnn.matmul.fp32_precision` at "bf16" they use oneDNN, which *may* then round the factors to
bfloat16. It does so on processors with a matrix unit for bfloat16 (AMX; ARM's). On other processors with AVX-512 it
computes in float32, in some cases twice as fast as the BLAS library. So the setting is used only without such a unit,
and only after the results were verified to have float32 precision (`measuring`).
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from hfta_nb.engine.comparison import HALVES
from hfta_nb.engine.members.own_draws import alone

ONEDNN = "bf16"
"""The setting that makes products use oneDNN."""


_getter: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)


class _Process:
    """The setting belongs to the process.

    Attributes:
        resting: the setting between programs; None while no program has changed it.
    """

    resting: str | None = None


class _Here(threading.local):
    left = False
    """Whether this thread leaves the setting as it is."""


_here = _Here()


def get() -> str:
    """The setting, which programs of other threads may have changed for a moment; empty for a torch without it."""
    if _getter is None:
        return ""
    resting = _Process.resting
    return _getter("mkldnn", "matmul") if resting is None else resting


def on_cpu() -> tuple[str, ...]:
    """The meaning of float32 in oneDNN's products, convolutions and recurrent layers."""
    return (get(), *(() if _getter is None else (_getter("mkldnn", "conv"), _getter("mkldnn", "rnn"))))


_ON_GPU = ("matmul", "conv", "rnn")

TF32 = 2.0**-10
"""Relative value of the last bit of a TF32 factor."""


def float32(device: torch.device) -> tuple[str, ...]:
    """The meaning of float32 on a GPU in products, convolutions and recurrent layers: "tf32", "ieee" or "none"; empty
    on a CPU."""
    if device.type != "cuda" or _getter is None:
        return ()
    return tuple(_getter("cuda", operator) for operator in _ON_GPU)


def rounding(tensor: torch.Tensor, half: torch.dtype | None = None) -> float:
    """The relative rounding of a tensor's dtype on its device with torch's current settings.

    Args:
        tensor: any.
        half: the dtype of 16-bit numbers from which a tensor of a wider dtype comes, as under autocast.
    """
    own = max(torch.finfo(dtype).eps for dtype in (tensor.dtype, half) if dtype is not None)
    return max(own, TF32) if tensor.dtype == torch.float32 and "tf32" in float32(tensor.device) else own


_OF_HALF = 2.0**-5
"""The tolerance for what comes from 16-bit numbers: four times the last bit of bfloat16."""


def tolerance(tensor: torch.Tensor, half: torch.dtype | None = None) -> float:
    """The tolerance relative to a tensor's own size: 64 times the rounding of sums, or 8 times that of factors which
    are rounded to fewer bits; arguments as for `rounding`.

    The memory layout may change the order of sums.
    """
    if half is not None or tensor.dtype in HALVES:
        return _OF_HALF
    return max(64 * torch.finfo(tensor.dtype).eps, 8 * rounding(tensor))


def switch(setting: str) -> partial[Any]:
    """A function that sets the precision."""
    return partial(_set, setting)


def _set(setting: str) -> None:
    if _here.left:
        return
    if _Process.resting is None:
        _Process.resting = get()
    torch._C._set_fp32_precision_setter("mkldnn", "matmul", setting)
    if setting == _Process.resting:
        _Process.resting = None


@contextmanager
def switching() -> Iterator[None]:
    """The context of a run that switches: products of other threads must not change, so it does so only if there are
    none of ours, and meanwhile none begins."""
    with alone() as here:
        outer, _here.left = _here.left, not here
        try:
            yield
        finally:
            _here.left = outer


def can_switch() -> bool:
    """True if oneDNN's products are available and compute in float32."""
    unit = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.enabled
        and hasattr(torch._C, "_set_fp32_precision_setter")
        and get()
        and platform.machine().lower() in ("x86_64", "amd64")
        and unit is not None
        and not unit()
    )
