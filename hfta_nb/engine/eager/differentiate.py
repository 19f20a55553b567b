"""`torch.autograd.grad` and `torch.autograd.backward` with gradients of the outputs.

Torch's functions import its symbolic shapes when gradients are passed, which takes up to three seconds the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    if _RUN is None:
        return torch.autograd.grad(outputs, inputs, grads, retain_graph, create_graph, allow_unused=True)
    found: Sequence[Tensor | None] = _RUN(
        (*outputs,), (*grads,), retain_graph, create_graph, (*inputs,), allow_unreachable=True, accumulate_grad=False
    )
    return found


def add_to_grad(outputs: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """`torch.autograd.backward`."""
    if _RUN is None:
        torch.autograd.backward(outputs, grads)
    else:
        _RUN((*outputs,), (*grads,), False, False, (), allow_unreachable=True, accumulate_grad=True)
