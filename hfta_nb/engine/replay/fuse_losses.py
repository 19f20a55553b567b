"""Replaces cross entropy over many classes, with its gradient, by two kernels that read logits once each.

Torch converts logits of 16 bits to single precision, writes log-probabilities, then a gradient that is zero but for one
entry of a row, then the gradient of the logits, and converts that. Here the forward reads logits and keeps one number
of each row; the backward reads them again and writes the gradient in their place, if nothing needs them afterwards. The
bias of a product that makes the logits is added where they are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.kernels.strategy.kernel_variants import Operand
from hfta_nb.engine.replay.fused_kernel import (
    DEVICES,
    PatternKernel,
    Replacement,
    Uses,
    faster,
    triton_kernels,
)
from hfta_nb.engine.replay.trace import BufferView, Instruction

_aten = torch.ops.aten
_SOFTMAX, _SOFTMAX_BACKWARD = _aten._log_softmax.default, _aten._log_softmax_backward_data.default
_LOSS, _LOSS_BACKWARD = _aten.nll_loss_forward.default, _aten.nll_loss_backward.default
_CAST, _SUM, _ADD = _aten._to_copy.default, _aten.sum.dim_IntList, _aten.add.Tensor
_SUMMAND, _PRODUCT = _aten.baddbmm.default, _aten.bmm.default
_HALVES = torch.float16, torch.bfloat16
NAME = "cross_entropy"
"""The beginning of the names of both kernels."""
_LEAST_CLASSES = 1024
"""Shorter rows are left to torch."""
_TRIED = 2**24
"""Logits on which both ways are compared; the time of both is proportional to their number."""


@dataclass
class _LossPattern:
    """The calls of a loss and its gradient.

    Attributes:
        at: index of the loss.
        forward, backward: indices of all, in order; no `backward` without gradients.
        x: the logits ``[M, N, V]`` as they were made.
        bias: to add to them, ``[M, V]``; None for none.
        target, weight, ignored: arguments of the loss.
        loss: the result.
        logs: the log-probabilities, whose place the logarithms of sums take.
        total: sums of the log-probabilities of rows, for smoothed labels; None without.
        product: index of the product to which the bias is not added.
        grad, by_total: gradients of `loss` and of `total`, None without.
        out: the gradient of the logits.
    """

    at: int
    forward: list[int]
    x: BufferView
    target: BufferView
    weight: BufferView | None
    ignored: int
    loss: BufferView
    logs: BufferView
    total: BufferView | None = None
    bias: BufferView | None = None
    product: int | None = None
    backward: Sequence[int] = ()
    grad: BufferView | None = None
    by_total: BufferView | None = None
    out: BufferView | None = None


def fused_losses(uses: Uses) -> list[Replacement]:
    """Replacements of losses over many classes."""
    kernels = triton_kernels() if uses.device.type in DEVICES else None
    if kernels is None:
        return []
    found = []
    for i, call in enumerate(uses.calls):
        pattern = _pattern(uses, i) if call.function is _LOSS else None
        if pattern is not None:
            made = _made(uses, _without_bias(uses, pattern), kernels) or _made(uses, pattern, kernels)
            found += [] if made is None else [made]
    return found


# Finding.


def _pattern(uses: Uses, i: int) -> _LossPattern | None:
    calls = uses.calls
    logs, target, weight, reduction, ignored = calls[i].args
    softmax, loss = uses.maker(logs, _SOFTMAX), calls[i].results[0]
    if softmax is None or loss is None or reduction != 0:
        return None
    x, dim, _ = calls[softmax].args
    there = calls[softmax].results[0]
    if there is None or len(x.size) != 3 or dim not in (2, -1) or x.size[2] < _LEAST_CLASSES or 0 in x.size:
        return None
    forward, cast = [softmax, i], uses.maker(x, _CAST)
    if cast is not None and calls[cast].args[0].dtype in _HALVES and uses.only(cast, _SOFTMAX) == softmax:
        source = calls[cast].args[0]
        if source.size == x.size and uses.whole(source, x):
            forward, x = [cast, *forward], source
    known = x.dtype in (torch.float32, *_HALVES) and there.dtype == loss.dtype == torch.float32
    if not known or not uses.whole(x, logs, there, target, loss) or there.storage in uses.wanted:
        return None
    found = _LossPattern(i, forward, x, target, weight, ignored, loss, there)
    rest = [j for j in uses.readers(softmax) if j != i]
    sums = [j for j in rest if calls[j].function is _SUM]
    if len(sums) == 1 and weight is None and list(calls[sums[0]].args) == [there, [2]]:
        found.total, found.forward = calls[sums[0]].results[0], [*forward, sums[0]]
        rest.remove(sums[0])
    if rest and not _find_backward(uses, found, rest):
        return None
    given = [x, target, *([] if weight is None else [weight])]
    total_weight = calls[i].results[1]
    read = {j for j in range(len(calls)) if total_weight is not None and total_weight.storage in calls[j].reads()}
    fits = (
        uses.unchanged(*given, there) and read <= set(found.backward) and uses.together(found.forward, found.backward)
    )
    return found if fits else None


def _find_backward(uses: Uses, one: _LossPattern, rest: Sequence[int]) -> bool:
    """True if these calls are the gradient of the loss."""
    calls = uses.calls
    first = next((j for j in rest if calls[j].function is _LOSS_BACKWARD), None)
    last = next((j for j in rest if calls[j].function is _SOFTMAX_BACKWARD), None)
    if first is None or last is None or len(rest) != 2:
        return False
    grad, _, target, weight, reduction, ignored, _ = calls[first].args
    between, made = [first], calls[first].results[0]
    added = uses.only(first, _ADD)
    if one.total is not None and added is not None:
        by_total = calls[added].args[0]
        flat = by_total.size == one.x.size and by_total.stride == (one.x.size[1], 1, 0)
        if not flat or len(calls[added].args) != 2 or not uses.unchanged(by_total):
            return False
        one.by_total = by_total._replace(size=one.target.size, stride=(1,))
        between, made = [first, added], calls[added].results[0]
    if uses.only(between[-1], _SOFTMAX_BACKWARD) != last or made is None:
        return False
    one.grad, one.out, one.backward = grad, calls[last].results[0], [*between, last]
    cast = uses.only(last, _CAST)
    after = None if cast is None else calls[cast].results[0]
    wide = one.out is not None and one.out.dtype != one.x.dtype
    if cast is not None and after is not None and wide and (after.dtype, after.size) == (one.x.dtype, one.x.size):
        one.out, one.backward = after, [*one.backward, cast]
    same = (target, weight, reduction, ignored) == (one.target, one.weight, 0, one.ignored)
    return (
        same and one.out is not None and one.out.dtype == one.x.dtype and uses.whole(one.out) and uses.unchanged(grad)
    )


def _without_bias(uses: Uses, one: _LossPattern) -> _LossPattern | None:
    """The loss of the product that makes the logits, and of a bias, if nothing else reads them."""
    made = uses.maker(one.x, _SUMMAND)
    if made is None or uses.readers(made) != [one.forward[0]] or one.x.storage in uses.wanted:
        return None
    call = uses.calls[made]
    bias, members = call.args[0], one.x.size[0]
    plain = len(call.args) == 3 and not call.kwargs and bias.size == (members, 1, one.x.size[2])
    if not plain or call.results[0] != one.x or bias.stride[2] != 1 or not uses.unchanged(bias):
        return None
    flat = bias._replace(size=(members, one.x.size[2]), stride=(bias.stride[0], 1))
    return replace(one, bias=flat, product=made)


# Replacing.


def _made(uses: Uses, one: _LossPattern | None, kernels: Any) -> Replacement | None:
    """The loss as two kernels, if they are faster."""
    if one is None:
        return None
    biased = " with bias" * (one.bias is not None)
    buffers = ("loss", "logs", *(["total"] if one.total is not None else []))
    first = PatternKernel(NAME, str(one.ignored), partial(_forward, kernels, one.ignored), buffers)
    second = PatternKernel(
        f"{NAME}_backward{biased}", str(one.ignored), partial(_backward, kernels, one.ignored), in_place=True
    )
    choice = _choice(uses, one, first, second)
    if choice is None:
        return None
    logs = BufferView(one.logs.storage, (math.prod(one.target.size),), (1,), 0, torch.float32)
    results = [one.loss, logs, *([] if one.total is None else [one.total])]
    given = [one.x, one.target, one.weight, one.bias]
    made = {one.at: _call(first, given, results)}
    if one.out is not None:
        made[one.backward[-1]] = _call(second, [*given, logs, one.grad, one.by_total], [one.out])
    if one.product is not None:
        product = uses.calls[one.product]
        made[one.product] = replace(product, function=_PRODUCT, args=[*product.args[1:]])
    return Replacement([*one.forward, *one.backward], made, choice, {logs.storage: 4 * logs.size[0]})


def _call(kernel: PatternKernel, args: list[Any], results: Sequence[BufferView]) -> Instruction:
    return Instruction(kernel, args, {}, tuple(results), tuple(p.storage for p in results), frozenset())


def _choice(uses: Uses, one: _LossPattern, first: PatternKernel, second: PatternKernel) -> Any:
    """The choice between both ways, on fewer rows."""
    members, rows, classes = one.x.size
    rows = max(1, min(rows, _TRIED // (members * classes)))
    operands = {
        "x": Operand((members, rows, classes), (rows * classes, classes, 1), one.x.dtype),
        "target": Operand((members * rows,), (1,), torch.int64),
    }
    operands |= {} if one.weight is None else {"weight": one.weight.operand}
    operands |= {} if one.bias is None else {"bias": one.bias.operand}
    flat = Operand((members * rows,), (1,), torch.float32)
    operands |= {} if one.grad is None else {"grad": flat}
    operands |= {} if one.by_total is None else {"by_total": flat}
    facts = tuple(operands), one.total is not None, one.ignored
    return faster(
        replace(second, settings=str(facts)),
        partial(_ours, first, second, *facts[:2]),
        partial(_torchs, *facts),
        list(operands.values()),
        uses.device,
    )


def _forward(
    kernels: Any,
    ignored: int,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    loss: Tensor,
    logs: Tensor,
    total: Tensor | None = None,
) -> None:
    flat = None if total is None else total.view(-1)
    kernels.cross_entropy(x, target, weight, bias, ignored, loss=loss, logs=logs, total=flat)


def _backward(
    kernels: Any,
    ignored: int,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    logs: Tensor,
    grad: Tensor,
    by_total: Tensor | None,
    *,
    out: Tensor,
) -> None:
    kernels.cross_entropy_backward(x, target, logs, grad, weight, bias, by_total, ignored, out=out)


def _ours(
    first: PatternKernel, second: PatternKernel, names: Sequence[str], summed: bool, *tensors: Tensor
) -> tuple[Tensor, ...]:
    given = dict(zip(names, tensors, strict=True))
    args = given["x"], given["target"], given.get("weight"), given.get("bias")
    made = [torch.empty(len(args[1]), device=args[0].device) for _ in range(2 + summed)]
    first.function(*args, **dict(zip(first.buffers, made, strict=True)))
    loss, logs, *total = made
    if "grad" not in given:
        return (loss, *total)
    out = torch.empty_like(given["x"])
    second.function(*args, logs, given["grad"], given.get("by_total"), out=out)
    return loss, *total, out


def _torchs(names: Sequence[str], summed: bool, ignored: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Torch's kernels in sequence."""
    given = dict(zip(names, tensors, strict=True))
    x, target, weight = given["x"], given["target"], given.get("weight")
    if "bias" in given:
        x = x + given["bias"].unsqueeze(1)
    logs = torch.log_softmax(x.to(torch.promote_types(x.dtype, torch.float32)), 2)
    flat = logs.view(-1, logs.shape[2])
    loss = F.nll_loss(flat, target, weight, ignore_index=ignored, reduction="none")
    total = [logs.sum(2).view(-1)] if summed else []
    if "grad" not in given:
        return (loss, *total)
    count = logs.new_empty(())
    found = _aten.nll_loss_backward(given["grad"], flat, target, weight, 0, ignored, count)
    if "by_total" in given:
        found = found + given["by_total"].unsqueeze(1)
    found = _aten._log_softmax_backward_data(found.view(logs.shape), logs, 2, logs.dtype)
    return loss, *total, found.to(x.dtype)
