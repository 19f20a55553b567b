"""The tolerance within which two tensors count as equal."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 5e-2}
"""By dtype, relative to the largest value."""


def tolerance_of(dtype: torch.dtype) -> float:
    """The relative tolerance; under autocast, float32 results may come from 16-bit values."""
    half = torch._C._is_any_autocast_enabled()
    return TOLERANCE[torch.bfloat16] if half else TOLERANCE.get(dtype, TOLERANCE[torch.float32])


def allowed_difference(dtype: torch.dtype, largest: float) -> float:
    """The largest difference allowed for values as large as `largest`."""
    return tolerance_of(dtype) * max(largest, 1e-3)


def largest_value(tensor: Tensor) -> float:
    """The largest finite absolute value; 0 for integers and empty tensors."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    values = tensor.detach().abs()
    largest = float(values.max()) if values.numel() else 0.0
    if math.isfinite(largest):
        return largest  # selecting the finite values takes thirty times as long
    finite = values[values.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def close(a: Tensor, b: Tensor, largest: float) -> bool:
    """True if two tensors differ by rounding only, for values as large as `largest`."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return bool(torch.equal(a, b))
    return bool(torch.isclose(a, b, rtol=0, atol=allowed_difference(a.dtype, largest), equal_nan=True).all())
