"""(Log-)softmax over a short last axis by whole-tensor operations.

Torch's kernels process one row after another, and a row of ten classes is too short for vector instructions. With the
classes in front, all rows are computed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Turned:
    """A function of (tensor, axis, ...) over the last axis, computed over the first axis of a transposed copy."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._given: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor, dim: int, half_to_float: bool, *, out: Tensor) -> None:
        if self._given is None or self._given[0] is not x or self._given[1] is not out:
            self._given = x, out
            self._from, self._to = (t.view(-1, t.shape[-1]).t() for t in (x, out))
            self._before, self._after = (t.new_empty(t.shape) for t in (self._from, self._to))
        self._before.copy_(self._from)
        self.function(self._before, 0, half_to_float, out=self._after)
        self._to.copy_(self._after)


class LogSoftmaxBackward:
    """``grad - exp(output) * grad.sum(-1)``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._sum: Tensor | None = None

    def __call__(self, grad: Tensor, output: Tensor, dim: int, input_dtype: Any, *, out: Tensor) -> None:
        if self._sum is None:
            self._sum = grad.new_empty((*grad.shape[:-1], 1))
        torch.sum(grad, -1, True, out=self._sum)
        torch.exp(output, out=out)
        torch.addcmul(grad, out, self._sum, value=-1, out=out)


class SoftmaxBackward:
    """``output * (grad - (grad * output).sum(-1))``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._sum: Tensor | None = None

    def __call__(self, grad: Tensor, output: Tensor, dim: int, input_dtype: Any, *, grad_input: Tensor) -> None:
        if self._sum is None:
            self._sum = grad.new_empty((*grad.shape[:-1], 1))
        torch.mul(grad, output, out=grad_input)
        torch.sum(grad_input, -1, True, out=self._sum)
        torch.addcmul(grad_input, output, self._sum, value=-1, out=grad_input)
