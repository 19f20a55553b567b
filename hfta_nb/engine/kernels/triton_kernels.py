"""Cross entropy over many classes, and the largest entries of rows with their places, in Triton.

Triton comes with torch's CUDA builds. With ``TRITON_INTERPRET=1`` set before this module is imported, the kernels run
on CPU tensors. Numbers are computed in float32, and rounded when they are stored.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ENTRIES = 4096
"""Entries per program of a kernel over long rows."""
_TILE = 1024
"""Entries per program of a kernel over several short rows."""


def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    ignored: int,
    *,
    loss: Tensor,
    logs: Tensor,
    total: Tensor | None = None,
) -> None:
    """The loss of each row; logits are read once.

    Args:
        x: logits ``[M, N, V]``, half or single precision, with entries of a row beside each other.
        target: labels ``[M * N]``.
        weight: of classes ``[V]``; None for 1.
        bias: to add to logits, ``[M, V]``; None for none.
        ignored: label of rows whose loss is 0.
        loss: for the results ``[M * N]``, float32.
        logs: for the logarithm of the sum of exponentials of each row, likewise.
        total: for the sum of log-probabilities of each row, likewise; None if it is not needed.
    """
    members, rows, classes = x.shape
    inside = (target >= 0) & (target < classes) | (target == ignored)
    torch._assert_async(inside.all(), "cross entropy: a target is out of bounds")
    _cross_entropy[(members * rows,)](
        x, target, weight, bias, loss, logs, total, rows, x.stride(0), x.stride(1), _step(bias), ignored,
        columns=classes, block=_ENTRIES, weighted=weight is not None, biased=bias is not None,
        summed=total is not None, num_warps=8,
    )  # fmt: skip


def cross_entropy_backward(
    x: Tensor,
    target: Tensor,
    logs: Tensor,
    grad: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    by_total: Tensor | None,
    ignored: int,
    *,
    out: Tensor,
) -> None:
    """The gradient of logits, which are read once; it is written once.

    Args:
        x, target, weight, bias, ignored: see `cross_entropy`.
        logs: its result.
        grad: the gradient of `loss` there, ``[M * N]``.
        by_total: the gradient of `total` there, likewise; None for none.
        out: for the result ``[M, N, V]``; may be `x`.
    """
    members, rows, classes = x.shape
    grid = members * rows, triton.cdiv(classes, _ENTRIES)
    _cross_entropy_backward[grid](
        x, target, logs, grad, weight, bias, by_total, out, rows, classes, x.stride(0), x.stride(1),
        out.stride(0), out.stride(1), _step(bias), grad.stride(0), _step(by_total), ignored,
        block=_ENTRIES, weighted=weight is not None, biased=bias is not None, summed=by_total is not None, num_warps=8,
    )  # fmt: skip


def largest(x: Tensor, *, out: Tensor, places: Tensor, ties: Tensor) -> None:
    """The largest entry of each row, NaN where there is one; entries are read once.

    Args:
        x: ``[A, B, C, P]`` of any strides.
        out: for the result ``[A, B, C]``, contiguous, of the dtype of `x`.
        places: for the index of the first largest entry, likewise, int32.
        ties: for the number of largest entries, likewise; 0 where one is NaN.
    """
    rows, columns = out.numel(), x.shape[-1]
    block = min(_TILE, triton.next_power_of_2(columns))
    height = _TILE // block
    _largest[(triton.cdiv(rows, height),)](
        x, out, places, ties, rows, *x.shape[1:3], *x.stride(), columns=columns, block=block, height=height
    )


def largest_backward(
    grad: Tensor, top: Tensor, x: Tensor, places: Tensor, ties: Tensor, relu: bool, *, out: Tensor
) -> None:
    """The gradient of rows, of which `amax` gives each largest entry an equal part; `x` is read where there are ties.

    Args:
        grad: of the largest entries, ``[A, B, C]`` of any strides.
        top, places, ties: see `largest`.
        x: the rows.
        relu: they are the result of a ReLU, whose gradient is wanted.
        out: for the result, of the shape of `x` and any strides.
    """
    rows, columns = top.numel(), x.shape[-1]
    block = min(_TILE, triton.next_power_of_2(columns))
    height = _TILE // block
    _largest_backward[(triton.cdiv(rows, height), triton.cdiv(columns, block))](
        grad, top, x, places, ties, out, rows, columns, *x.shape[1:3], *grad.stride(), *x.stride(), *out.stride(),
        relu=relu, block=block, height=height,
    )  # fmt: skip


def _step(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.stride(0)


@triton.jit
def _cross_entropy(
    x_at, target_at, weight_at, bias_at, loss_at, logs_at, total_at, rows, x_member, x_row, bias_member, ignored,
    columns: tl.constexpr, block: tl.constexpr, weighted: tl.constexpr, biased: tl.constexpr, summed: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    member = n // rows
    x_at += member * x_member + (n - member * rows) * x_row
    target = tl.load(target_at + n)
    top = tl.full((), float("-inf"), tl.float32)
    exponentials = tl.full((), 0.0, tl.float32)
    sum_of_row = tl.full((), 0.0, tl.float32)
    for start in range(0, columns, block):
        place = start + tl.arange(0, block)
        there = place < columns
        x = tl.load(x_at + place, there, other=float("-inf")).to(tl.float32)
        if biased:
            x += tl.load(bias_at + member * bias_member + place, there, other=0.0).to(tl.float32)
        new = tl.maximum(top, tl.max(x, 0))
        # exp(-inf - -inf) is NaN: as in torch for a whole row of -inf, but not for the part of one that came so far.
        exponentials *= tl.where(top == float("-inf"), 0.0, tl.exp(top - new))
        exponentials += tl.sum(tl.where(new == float("-inf"), 0.0, tl.exp(x - new)), 0)
        top = new
        if summed:
            sum_of_row += tl.sum(tl.where(there, x, 0.0), 0)
    logs = tl.where(top == float("-inf"), float("nan"), top + tl.log(exponentials))
    counts = target != ignored
    own = tl.load(x_at + target, counts, other=0.0).to(tl.float32)
    if biased:
        own += tl.load(bias_at + member * bias_member + target, counts, other=0.0).to(tl.float32)
    loss = logs - own
    if weighted:
        loss *= tl.load(weight_at + target, counts, other=0.0).to(tl.float32)
    tl.store(loss_at + n, tl.where(counts, loss, 0.0))
    tl.store(logs_at + n, logs)
    if summed:
        tl.store(total_at + n, sum_of_row - columns * logs)


@triton.jit
def _cross_entropy_backward(
    x_at, target_at, logs_at, grad_at, weight_at, bias_at, by_total_at, out_at, rows, columns,
    x_member, x_row, out_member, out_row, bias_member, grad_step, by_total_step, ignored,
    block: tl.constexpr, weighted: tl.constexpr, biased: tl.constexpr, summed: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * block + tl.arange(0, block)
    there = place < columns
    member = n // rows
    row = n - member * rows
    target = tl.load(target_at + n)
    counts = target != ignored
    grad = tl.load(grad_at + n * grad_step, counts, other=0.0).to(tl.float32)
    if weighted:
        grad *= tl.load(weight_at + target, counts, other=0.0).to(tl.float32)
    x = tl.load(x_at + member * x_member + row * x_row + place, there, other=0.0).to(tl.float32)
    if biased:
        x += tl.load(bias_at + member * bias_member + place, there, other=0.0).to(tl.float32)
    share = tl.exp(x - tl.load(logs_at + n))
    found = share * grad - tl.where(place == target, grad, 0.0)
    if summed:
        by_total = tl.load(by_total_at + n * by_total_step).to(tl.float32)
        found += by_total - share * (by_total * columns)
    out_at += member * out_member + row * out_row
    tl.store(out_at + place, found.to(out_at.dtype.element_ty), there)


@triton.jit
def _largest(
    x_at, out_at, places_at, ties_at, rows, second, third, step0, step1, step2, step3,
    columns: tl.constexpr, block: tl.constexpr, height: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * height + tl.arange(0, height)
    exists = row < rows
    begin = (row // third // second) * step0 + (row // third % second) * step1 + (row % third) * step2
    top = tl.full((height,), float("-inf"), tl.float32)
    place = tl.full((height,), 0, tl.int32)
    ties = tl.full((height,), 0, tl.int32)
    undefined = tl.full((height,), 0, tl.int32)
    for start in range(0, columns, block):
        column = start + tl.arange(0, block)
        there = exists[:, None] & (column < columns)[None, :]
        at = x_at + begin[:, None] + (column * step3)[None, :]
        x = tl.load(at, there, other=float("-inf")).to(tl.float32)
        undefined = tl.maximum(undefined, tl.max((x != x).to(tl.int32), 1))
        best = tl.max(tl.where(x != x, float("-inf"), x), 1)
        alike = (x == best[:, None]) & there
        count = tl.sum(alike.to(tl.int32), 1)
        first = tl.min(tl.where(alike, column[None, :], columns), 1).to(tl.int32)
        place = tl.where(best > top, first, place)
        ties = tl.where(best > top, count, tl.where(best == top, ties + count, ties))
        top = tl.maximum(top, best)
    top = tl.where(undefined != 0, float("nan"), top)
    tl.store(out_at + row, top.to(out_at.dtype.element_ty), exists)
    tl.store(places_at + row, place, exists)
    tl.store(ties_at + row, tl.where(undefined != 0, 0, ties), exists)


@triton.jit
def _largest_backward(
    grad_at, top_at, x_at, places_at, ties_at, out_at, rows, columns, second, third,
    grad0, grad1, grad2, x0, x1, x2, x3, out0, out1, out2, out3,
    relu: tl.constexpr, block: tl.constexpr, height: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * height + tl.arange(0, height)
    column = tl.program_id(1) * block + tl.arange(0, block)
    exists = row < rows
    first, middle, last = row // third // second, row // third % second, row % third
    grad = tl.load(grad_at + first * grad0 + middle * grad1 + last * grad2, exists, other=0.0)
    top = tl.load(top_at + row, exists, other=0.0).to(tl.float32)
    place = tl.load(places_at + row, exists, other=0)
    ties = tl.load(ties_at + row, exists, other=1)
    # As torch: a quotient, rounded, times a mask. A part that is not finite makes the other entries NaN.
    part = tl.div_rn(grad.to(tl.float32), ties.to(tl.float32)).to(grad.dtype).to(tl.float32)
    reads = (ties != 1) | (part * 0 != 0)
    if relu:
        reads = ((ties != 1) & ((top <= 0) == 0)) | (part * 0 != 0)
    there = exists[:, None] & (column < columns)[None, :]
    at = (first * x0 + middle * x1 + last * x2)[:, None] + (column * x3)[None, :]
    x = tl.load(x_at + at, there & reads[:, None], other=0.0).to(tl.float32)
    alike = tl.where((ties == 1)[:, None], column[None, :] == place[:, None], x == top[:, None])
    found = part[:, None] * alike.to(tl.float32)
    if relu:
        found = tl.where((top <= 0)[:, None] | (reads[:, None] & (x <= 0)), 0.0, found)
    to = (first * out0 + middle * out1 + last * out2)[:, None] + (column * out3)[None, :]
    tl.store(out_at + to, found.to(out_at.dtype.element_ty), there)
