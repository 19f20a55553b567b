"""oneDNN's matrix products for float32, where they are float32; and whether a GPU's are.

Torch's products of float32 go to the BLAS library that it was built with. With
`torch.backends.mkldnn.matmul.fp32_precision` at "bf16" they go to oneDNN, which *may* then round the factors to
bfloat16. It does where the processor has a matrix unit for bfloat16 (AMX; ARM's). On other processors with AVX-512
there is nothing to gain by that, and it computes in float32, in some cases at twice the speed of the BLAS library. So
the setting is used only where there is no such unit, and only after the numbers were seen to be float32's
(`measuring`).
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

ONEDNN = "bf16"
"""The setting under which products go to oneDNN."""


_getter: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)


def get() -> str:
    """The setting as it is; empty for a torch without it."""
    return "" if _getter is None else _getter("mkldnn", "matmul")


_ON_GPU = ("matmul", "conv", "rnn")

TF32 = 2.0**-10
"""What a TF32 factor's last bit is worth, as a part of it."""


def float32(device: torch.device) -> tuple[str, ...]:
    """What float32 is on a GPU in products, convolutions and recurrent layers: "tf32", "ieee", "none"; else nothing."""
    if device.type != "cuda" or _getter is None:
        return ()
    return tuple(_getter("cuda", operator) for operator in _ON_GPU)


def rounding(device: torch.device, dtype: torch.dtype) -> float:
    """The relative rounding that numbers of this dtype may have on a device, as torch is set now."""
    own = torch.finfo(dtype).eps
    return max(own, TF32) if dtype == torch.float32 and "tf32" in float32(device) else own


def switch(setting: str) -> partial[Any]:
    """What sets it."""
    return partial(torch._C._set_fp32_precision_setter, "mkldnn", "matmul", setting)


def can_switch() -> bool:
    """Whether oneDNN's products can be had, and in float32."""
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
