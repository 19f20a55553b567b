"""`torch.autograd.grad` and `torch.autograd.backward` with gradients of the outputs.

Torch's functions import its symbolic shapes when gradients are passed, which takes up to three seconds the first time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_RUN: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)
"""None in another version of torch."""


def vector_jacobian(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    grads: Sequence[Tensor],
    retain_graph: bool = False,
    create_graph: bool = False,
) -> Sequence[Tensor | None]:
    """`torch.autograd.grad`; None for inputs that the outputs do not depend on."""
    with hooks_later(inputs):
        if _RUN is None:
            return torch.autograd.grad(outputs, inputs, grads, retain_graph, create_graph, allow_unused=True)
        found: Sequence[Tensor | None] = _RUN(
            *((*outputs,), (*grads,), retain_graph, create_graph, (*inputs,)),
            allow_unreachable=True,
            accumulate_grad=False,
        )
        return found


@contextmanager
def hooks_later(inputs: Sequence[Tensor]) -> Iterator[None]:
    """The context of a differentiation by tensors of the caller's, whose hooks their own backward calls after it."""
    held = [(hooks, dict(hooks)) for v in inputs if (hooks := v._backward_hooks)]
    for hooks, _ in held:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in held:
            hooks.update(before)


def add_to_grad(outputs: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """`torch.autograd.backward`."""
    if _RUN is None:
        torch.autograd.backward(outputs, grads)
    else:
        _RUN((*outputs,), (*grads,), False, False, (), allow_unreachable=True, accumulate_grad=True)
