"""Replaces the gradient of `amax`, by which the largest entries of each row share the row's gradient.

Torch compares all entries with the largest one, counts those that are equal, and multiplies the mask by each one's
part: four passes over the rows, of which those over a mask are slow on a CPU. There the mask is written as numbers into
the memory of the result. On a GPU the forward keeps the place of the largest entry and how many there are, and the
backward reads the rows only where there are several. Both give torch's bits, for ties and NaN too. The gradient of a
ReLU before it is taken in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
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
_AMAX, _EQ, _SUM = _aten.amax.default, _aten.eq.Tensor, _aten.sum.dim_IntList
_DIV, _MUL, _RELU_BACKWARD = _aten.div.Tensor, _aten.mul.Tensor, _aten.threshold_backward.default
_COUNTED = 2**24
"""Up to here float32 counts."""


@dataclass
class _Maximum:
    """The calls of a maximum and its gradient.

    Attributes:
        forward: index of `amax`.
        backward: indices of the calls of the gradient.
        x, top, grad, out: the rows, the largest entries and their gradient with axes of length 1, the result.
        mask, count: intermediate results.
        dims: the axes of the rows.
        relu: the gradient of a ReLU is the last call.
    """

    forward: int
    backward: list[int]
    x: BufferView
    top: BufferView
    grad: BufferView
    out: BufferView
    mask: BufferView
    count: BufferView
    dims: list[int]
    relu: bool


def fused_maxima(uses: Uses) -> list[Replacement]:
    """Replacements of the gradients of maxima."""
    found: list[Replacement] = []
    for i, call in enumerate(uses.calls):
        pattern = _pattern(uses, i) if call.function is _AMAX else None
        if pattern is not None:
            made = _with_places(uses, pattern) if uses.device.type in DEVICES else _on_cpu(uses, pattern)
            found += [] if made is None else [made]
    return found


def _pattern(uses: Uses, i: int) -> _Maximum | None:
    calls = uses.calls
    x, dims = calls[i].args[0], calls[i].args[1] if len(calls[i].args) > 1 else ()
    equal = [j for j in uses.readers(i) if calls[j].function is _EQ and x in calls[j].args]
    if not dims or len(equal) != 1 or not isinstance(x, BufferView):
        return None
    mask, top = calls[equal[0]].results[0], next(p for p in calls[equal[0]].args if p != x)
    axes = sorted(d % len(x.size) for d in dims)
    users = uses.readers(equal[0])
    summed = next((j for j in users if calls[j].function is _SUM), None)
    divided = None if summed is None else uses.only(summed, _DIV)
    last = None if divided is None else uses.only(divided, _MUL)
    if mask is None or summed is None or divided is None or last is None or sorted(users) != [summed, last]:
        return None
    count, grad, out = calls[summed].results[0], calls[divided].args[0], calls[last].results[0]
    restored = tuple(1 if axis in axes else n for axis, n in enumerate(x.size))
    fits = (
        list(calls[summed].args) == [mask, axes, True]
        and list(calls[divided].args) == [grad, count]
        and sorted(map(str, calls[last].args)) == sorted(map(str, (calls[divided].results[0], mask)))
        and all(isinstance(p, BufferView) and p.size == restored and p.dtype == x.dtype for p in (top, grad))
        and mask.storage not in uses.wanted
        and uses.unchanged(x, top, mask)
    )
    if not fits or out is None or count is None or out.size != x.size or out.dtype != x.dtype:
        return None
    backward, after = [equal[0], summed, divided, last], uses.only(last, _RELU_BACKWARD)
    relu = after is not None and list(calls[after].args) == [out, x, 0]
    if after is not None and relu and (there := calls[after].results[0]) is not None:
        backward, out = [*backward, after], there
    found = _Maximum(i, backward, x, top, grad, out, mask, count, axes, relu)
    return found if uses.together(backward) and _stays(uses, found) else None


def _stays(uses: Uses, one: _Maximum) -> bool:
    """True if nothing writes to the gradient before the last call, which reads it in place of an earlier one."""
    between = uses.calls[one.backward[2] : one.backward[-1]]
    return all(one.grad.storage not in call.writes for call in between)


# On a CPU.


def _on_cpu(uses: Uses, one: _Maximum) -> Replacement | None:
    length = math.prod(one.x.size[axis] for axis in one.dims)
    if one.x.dtype not in (torch.float32, torch.float64) or not 0 < length < _COUNTED or 0 in one.x.size:
        return None
    function = partial(_shared, dims=one.dims, relu=one.relu)
    kernel = PatternKernel("amax_backward" + " + relu_backward" * one.relu, f"over {one.dims}", function)
    tensors, out = (one.grad, one.top, one.x), one.out.operand

    def ours(*given: Tensor) -> tuple[Tensor]:
        made = torch.empty_strided(out.size, out.stride, dtype=given[2].dtype)
        function(*given, out=made)
        return (made,)

    choice = faster(kernel, ours, partial(_torchs, one.dims, one.relu), [p.operand for p in tensors], uses.device)
    if choice is None:
        return None
    call = Instruction(kernel, list(tensors), {}, (one.out,), (one.out.storage,), frozenset())
    return Replacement(one.backward, {one.backward[-1]: call}, choice)


def _shared(grad: Tensor, top: Tensor, x: Tensor, *, out: Tensor, dims: list[int], relu: bool) -> None:
    torch.eq(top, x, out=out)
    count = out.sum(dims, True)
    out.mul_(torch.div(grad, count, out=count))
    if relu:
        _aten.threshold_backward.grad_input(out, x, 0, grad_input=out)


def _torchs(dims: list[int], relu: bool, grad: Tensor, top: Tensor, x: Tensor) -> tuple[Tensor]:
    mask = top == x
    found = grad / mask.sum(dims, True) * mask
    return (_aten.threshold_backward(found, x, 0) if relu else found,)


# On a GPU.


def _with_places(uses: Uses, one: _Maximum) -> Replacement | None:
    kernels, top = triton_kernels(), uses.calls[one.forward].results[0]
    known = one.x.dtype in (torch.float32, torch.float16, torch.bfloat16) and 0 not in one.x.size
    # Three axes at most are beside the rows: the members, the samples, the channels.
    if kernels is None or not known or one.dims != [len(one.x.size) - 1] or len(one.x.size) > 4:
        return None
    if top is None or not uses.whole(top) or not uses.unchanged(top):
        return None
    count = math.prod(top.size)
    flat = BufferView(0, (count,), (1,), 0, torch.int32)
    places, ties = (flat._replace(storage=p.storage) for p in (one.mask, one.count))
    name = "amax_backward" + " + relu_backward" * one.relu
    first = PatternKernel("amax", "with places", partial(_find, kernels), ("out", "places", "ties"))
    second = PatternKernel(name, "by places", partial(_put, kernels, one.relu))
    made = (top, places, ties)
    choice = faster(
        second,
        partial(_ours, first, second, top.operand, flat.operand, one.out.operand),
        partial(_by_torch, one.dims, one.relu),
        [one.grad.operand, one.x.operand],
        uses.device,
    )
    if choice is None:
        return None
    needed = [one.grad, top, one.x, places, ties]
    calls = {
        one.forward: Instruction(first, [one.x], {}, made, tuple(p.storage for p in made), frozenset()),
        one.backward[-1]: Instruction(second, needed, {}, (one.out,), (one.out.storage,), frozenset()),
    }
    sizes = dict.fromkeys((places.storage, ties.storage), 4 * count)
    return Replacement([one.forward, *one.backward], calls, choice, sizes)


def _find(kernels: Any, x: Tensor, *, out: Tensor, places: Tensor, ties: Tensor) -> None:
    kernels.largest(_deep(x), out=out, places=places, ties=ties)


def _put(
    kernels: Any,
    relu: bool,
    grad: Tensor,
    top: Tensor,
    x: Tensor,
    places: Tensor,
    ties: Tensor,
    *,
    out: Tensor,
) -> None:
    kernels.largest_backward(_deep(grad).squeeze(-1), top, _deep(x), places, ties, relu, out=_deep(out))


def _deep(x: Tensor) -> Tensor:
    """The tensor with four axes."""
    return x[(None,) * (4 - x.ndim)]


def _ours(
    first: PatternKernel,
    second: PatternKernel,
    top: Operand,
    flat: Operand,
    out: Operand,
    grad: Tensor,
    x: Tensor,
) -> tuple[Tensor, Tensor]:
    best, places, ties, found = (
        torch.empty_strided(o.size, o.stride, dtype=o.dtype, device=x.device) for o in (top, flat, flat, out)
    )
    first.function(x, out=best, places=places, ties=ties)
    second.function(grad, best, x, places, ties, out=found)
    return best.reshape(grad.shape), found


def _by_torch(dims: list[int], relu: bool, grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    top = x.amax(dims, True)
    return top, *_torchs(dims, relu, grad, top, x)
