"""Targets in the shape and kind of a model's output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def as_numbers(target: Tensor, output: Tensor) -> Tensor:
    """Whole numbers and truth values as floating-point numbers; a target of these is returned as it is, in its own
    precision."""
    return (
        target
        if target.is_floating_point() or target.is_complex()
        else target.to(torch.promote_types(output.dtype, torch.float32))
    )


def shaped_as(target: Any, output: Any) -> Any:
    """The target in the shape of the output, if one has a last axis of length 1 that the other lacks.

    Between ``[N, 1]`` and ``[N]``, torch's losses would broadcast to ``[N, N]``. Class numbers ``[N, 1]`` of logits
    ``[N, C]`` become ``[N]``, but those of logits ``[N, 1]`` stay so.
    """
    if not isinstance(target, Tensor) or not isinstance(output, Tensor):
        return target
    if target.is_floating_point() and output.shape == (*target.shape, 1):
        return target.unsqueeze(-1)
    of_classes = not target.is_floating_point() and output.ndim > 1 and output.shape[-1] > 1
    samples = output.shape[:-1] if of_classes else output.shape
    return target.squeeze(-1) if target.shape == (*samples, 1) else target
