"""Hooks of parameters for gradients that autograd does not accumulate itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def hooked(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The parameters that have hooks."""
    return [p for p in parameters if p._backward_hooks or p._post_accumulate_grad_hooks]


@contextmanager
def hooks_called(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Call the hooks of these parameters with the gradients that the context delivers to ``.grad``.

    As in autograd, hooks of the tensor see, and may replace, what is added to ``.grad``; those for accumulated
    gradients follow. Parameters without a new gradient are left out.
    """
    before = [(p.grad, None if p.grad is None else p.grad.clone()) for p in parameters]
    for p in parameters:
        p.grad = None
    try:
        yield
    except BaseException:
        for p, (grad, value) in zip(parameters, before, strict=True):
            p.grad = _restored(grad, value)
        raise
    for p, (grad, value) in zip(parameters, before, strict=True):
        if p.grad is None:
            p.grad = _restored(grad, value)
            continue
        for hook in tuple((p._backward_hooks or {}).values()):
            other = hook(p.grad)
            if other is not None:
                p.grad.copy_(other)
        if grad is not None and value is not None:
            total = p.grad + value
            p.grad = grad
            grad.copy_(total)
        for hook in tuple((p._post_accumulate_grad_hooks or {}).values()):
            hook(p)


@torch.no_grad()
def _restored(grad: Tensor | None, value: Tensor | None) -> Tensor | None:
    return grad if grad is None or value is None else grad.copy_(value)
