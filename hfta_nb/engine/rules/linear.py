"""Linear layers as one batched matrix product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from hfta_nb.engine.rules.rule_mode import Context, Rule, arguments


class _BatchedLinear(torch.autograd.Function):
    """The linear layers of all members.

    The products, including those of the backward pass, are torch's own, one per member, in the same order of summation:
    on a CPU a member gets exactly the bits of its plain module, unlike with `vmap`'s own rule.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "M N in"],
        weight: Float[Tensor, "M out in"],
        bias: Float[Tensor, "M out"] | None,
    ) -> Float[Tensor, "M N out"]:
        ctx.save_for_backward(x, weight)
        turned = weight.transpose(1, 2)
        return torch.bmm(x, turned) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, turned)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (
            torch.bmm(grad, weight) if wanted[0] else None,
            torch.bmm(grad.transpose(1, 2), x) if wanted[1] else None,
            grad.sum(1) if wanted[2] else None,
        )


def _linear(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = arguments(("input", "weight", "bias"), args, kwargs)
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    if x.ndim < 2 or weight.ndim != 2 or not context.batched(weight):
        return function(*args, **kwargs)
    context.note(function, "batched matrix product")
    with context.outside():
        x, weight = context.stacked(x), context.stacked(weight)
        rows = x.reshape(len(x), -1, x.shape[-1])
        shift = None if bias is None else context.stacked(bias)
        out: Tensor = _BatchedLinear.apply(rows, weight, shift)  # type: ignore[no-untyped-call]
        return context.wrapped(out.view(*x.shape[:-1], weight.shape[1]))


RULES: dict[object, Rule] = {F.linear: _linear}
