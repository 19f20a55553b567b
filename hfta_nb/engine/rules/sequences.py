"""Common parts of recurrent layers of all members: products over all time steps, states, second derivatives.

The input's part of the gates is one batched matrix product over all time steps, and so are the gradients of the
weights. Each time step adds one batched product ``[M, N, H] x [M, H, G]`` and a few passes over the gates.

``tanh(a)`` is computed as ``1 - 2 sigmoid(-2 a)``: torch's vectorised sigmoid takes a tenth of the time of its tanh on
a CPU, and the difference is at most the rounding of a number near one.

Source: the formulas of `torch.nn.LSTM`, `torch.nn.GRU` and `torch.nn.RNN`. Deviation: a backward pass that is itself
differentiated uses the formulas in torch's operations, which is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hfta_nb.engine.members.untraced import untraced


def order(steps: int, backward: bool) -> range:
    """The time steps in the order of computation."""
    return range(steps - 1, -1, -1) if backward else range(steps)


def rows(tensor: Float[Tensor, "M T N *f"]) -> Float[Tensor, "M TN *f"]:
    """Time steps and samples as one axis, without a copy if torch supports that."""
    return tensor.flatten(1, 2)


def project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Float[Tensor, "M T N G"]:
    """The input's part of the gates at all time steps."""
    turned = weight.transpose(1, 2)
    flat = rows(x)
    out = torch.bmm(flat, turned) if bias is None else torch.baddbmm(bias.unsqueeze(1), flat, turned)
    return out.view(*x.shape[:3], -1)


def tanh_(a: Tensor, one: Tensor, out: Tensor) -> None:
    """Write ``tanh(a)`` to `out`."""
    torch.mul(a, -2, out=out)
    torch.sigmoid(out, out=out)
    torch.add(one, out, alpha=-2, out=out)


def aliased(tensor: Tensor) -> Tensor:
    """The same memory as a tensor that is not a view, so that autograd lets a model write into an output.

    Such a write is still detected: the output is saved, and its version is compared before the memory is read.
    """
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def beside(state: Tensor, steps: int, backward: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Memory ``[M, T + 1, N, H]`` for a state: views before and after each time step, and the whole."""
    members, samples, wide = state.shape
    whole = state.new_empty(members, steps + 1, samples, wide)
    early, late = whole[:, :-1], whole[:, 1:]
    whole[:, -1 if backward else 0].copy_(state)
    return (late, early, whole) if backward else (early, late, whole)


def finish(
    ctx: Any, inputs: Sequence[Tensor | None], h_after: Tensor, kept: Sequence[Tensor | None], last_first: bool
) -> tuple[Tensor, Tensor]:
    """Save what the backward pass needs: the inputs, the output, and the tensors in `kept`.

    Returns:
        h at all time steps, and the last h.
    """
    with untraced():  # runs no kernel
        out = aliased(h_after)
    ctx.save_for_backward(*inputs, out, *kept)
    ctx.set_materialize_grads(False)
    ctx.last_first = last_first
    return out, h_after[:, 0 if last_first else -1].clone()


def first_grad(grad: Tensor | None, like: Tensor) -> Tensor:
    """A copy of the gradient of a last state, to modify in place; zeros if the loss does not depend on it."""
    return torch.zeros_like(like) if grad is None else grad.clone(memory_format=torch.contiguous_format)


def gradients(
    wanted: Sequence[bool], grad: Tensor, grad_h: Tensor, x: Tensor, before: Tensor, weights: Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients of x, the weights and the biases.

    Args:
        wanted: which gradients are needed.
        grad: ``[M, T, N, G]``: gradients of the gates through the input; `grad_h`, through the state (often the same).
        x: the input; `before`, the state before each step.
        weights: the first of them multiplies x.
    """
    flat, flat_h = rows(grad), rows(grad_h)
    by_input = flat.sum(1) if wanted[3] else None
    same = grad_h is grad and by_input is not None
    return [
        torch.bmm(flat, weights[0]).view(x.shape) if wanted[0] else None,
        torch.bmm(flat.transpose(1, 2), rows(x)) if wanted[1] else None,
        torch.bmm(flat_h.transpose(1, 2), rows(before)) if wanted[2] else None,
        by_input,
        (by_input if same else flat_h.sum(1)) if wanted[4] else None,
    ]


def differentiable(
    formula: Callable[..., Sequence[Tensor]], inputs: Sequence[Any], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients that can be differentiated again."""
    with torch.enable_grad():
        outputs = formula(*inputs)
        chosen = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None]
        wanted = [v for v in inputs if isinstance(v, Tensor) and v.requires_grad]
        found = iter(
            torch.autograd.grad(
                [o for o, _ in chosen], wanted, [g for _, g in chosen], create_graph=True, allow_unused=True
            )
        )
    return [next(found) if isinstance(v, Tensor) and v.requires_grad else None for v in inputs]
