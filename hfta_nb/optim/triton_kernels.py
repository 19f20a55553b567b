"""Adam and SGD in Triton: one pass over ``[M, columns]``, each member with its own hyperparameters.

Triton comes with torch's CUDA builds. With ``TRITON_INTERPRET=1`` set before this module is imported, the kernels run
on CPU tensors.

The grid is (blocks of columns, members). Hyperparameters are float64 tables ``[K, M]`` on the device; a kernel rounds
them to the dtype in which it computes, as torch rounds a Python number. Formulas and the order of operations are those
of torch's single-tensor optimizers. Half precision is computed in float32 and rounded once, when it is stored, as in
torch's fused kernels.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hfta_nb.optim.hyperparameters import HostColumn

BLOCK = 1024
"""Columns per program."""

_OPTIONS = {"enable_fp_fusion": True}
"""As nvcc compiles torch's kernels; versions of Triton have other defaults."""

# Rows of the tables, in the order in which the kernels read them.
_ADAM = ("beta1", "beta2", "off", "rest1", "rest2", "l2", "eps", "maximize", "amsgrad")
_SGD = ("momentum", "rest", "weight_decay", "nesterov", "maximize", "start")


def bind_adam(
    p: Tensor, g: Tensor, state: Mapping[str, Tensor], fixed: Mapping[str, HostColumn], counts: Tensor, lr: Tensor
) -> Callable[[Tensor], None]:
    """A step of Adam; see `bind`."""
    members, columns = p.shape
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    largest = state.get("max_exp_avg_sq", square)
    table = _table(fixed, _ADAM, p)
    moving = torch.empty((3, members), dtype=torch.float64, device=p.device)
    rows = p.stride(0), g.stride(0), mean.stride(0), square.stride(0), largest.stride(0)
    constants = {"amsgrad": "max_exp_avg_sq" in state, "dtype": _computed_in(p), "block": BLOCK, **_OPTIONS}
    before, grid = ((members + 127) // 128,), _grid(p)

    def step(skip: Tensor) -> None:
        left = skip.view(torch.uint8)
        _adam_numbers[before](table, lr, counts, left, moving, members, block=128, **_OPTIONS)
        _adam[grid](p, g, mean, square, largest, table, moving, left, members, columns, *rows, **constants)

    return step


def bind_sgd(
    p: Tensor, g: Tensor, state: Mapping[str, Tensor], fixed: Mapping[str, HostColumn], counts: Tensor, lr: Tensor
) -> Callable[[Tensor], None]:
    """A step of SGD; see `bind`."""
    members, columns = p.shape
    buffer = state.get("momentum_buffer", p)
    table = _table(fixed, _SGD, p)
    rows = p.stride(0), g.stride(0), buffer.stride(0)
    constants = {"momenta": "momentum_buffer" in state, "dtype": _computed_in(p), "block": BLOCK, **_OPTIONS}
    grid = _grid(p)

    def step(skip: Tensor) -> None:
        _sgd[grid](p, g, buffer, table, lr, counts, skip.view(torch.uint8), members, columns, *rows, **constants)
        counts.add_(skip.logical_not())

    return step


def bind(
    kernel: str,
    p: Tensor,
    g: Tensor,
    state: Mapping[str, Tensor],
    fixed: Mapping[str, HostColumn],
    counts: Tensor,
    lr: Tensor,
) -> Callable[[Tensor], None]:
    """The call of a kernel.

    Args:
        kernel: "adam" or "sgd".
        p: parameters ``[M, columns]``; a row has no gaps.
        g: gradients, likewise.
        state: by name, likewise.
        fixed: hyperparameters by name, one number per member.
        counts: updates so far, ``[M]``, float32.
        lr: learning rates, ``[M]``, float64.

    Returns:
        One step, of a mask ``[M]`` that is True for members that are left as they are.
    """
    made = {"adam": bind_adam, "sgd": bind_sgd}[kernel]
    return made(p, g, state, fixed, counts, lr)


def _table(fixed: Mapping[str, HostColumn], names: tuple[str, ...], like: Tensor) -> Tensor:
    rows = [[float(v) for v in fixed[name]] for name in names]
    return torch.tensor(rows, dtype=torch.float64).to(like.device)


def _computed_in(p: Tensor) -> Any:
    return tl.float64 if p.dtype == torch.float64 else tl.float32


def _grid(p: Tensor) -> tuple[int, int]:
    return (p.shape[1] + BLOCK - 1) // BLOCK, p.shape[0]


@triton.jit
def _adam_numbers(table, lr, counts, skip, moving, members, block: tl.constexpr):
    """Counts the step, and computes of each member what depends on its number and on the learning rate."""
    member = tl.program_id(0) * block + tl.arange(0, block)
    there = member < members
    beta1 = tl.load(table + member, there, other=0.5)
    beta2 = tl.load(table + members + member, there, other=0.5)
    off = tl.load(table + 2 * members + member, there, other=0.0)
    rate = tl.load(lr + member, there, other=0.0)
    left = tl.load(skip + member, there, other=1) != 0
    count = tl.load(counts + member, there, other=0.0) + 1
    tl.store(counts + member, count, there & (left == 0))
    step = count.to(tl.float64)
    power1 = tl.exp2(step * tl.log2(tl.maximum(beta1, 1e-300)))  # a beta of 0 has no logarithm
    power2 = tl.exp2(step * tl.log2(tl.maximum(beta2, 1e-300)))
    tl.store(moving + member, -(rate / (1 - power1)), there)
    tl.store(moving + members + member, tl.sqrt(1 - power2), there)
    tl.store(moving + 2 * members + member, 1 - rate * off, there)


@triton.jit
def _adam(
    p_at, g_at, mean_at, square_at, largest_at, table, moving, skip, members, columns,
    p_row, g_row, mean_row, square_row, largest_row,
    amsgrad: tl.constexpr, dtype: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * block + tl.arange(0, block)
    end = tl.where(tl.load(skip + member) == 0, columns, 0)
    there = place < end
    beta2 = tl.load(table + members + member).to(dtype)
    rest1 = tl.load(table + 3 * members + member).to(dtype)
    rest2 = tl.load(table + 4 * members + member).to(dtype)
    l2 = tl.load(table + 5 * members + member).to(dtype)
    eps = tl.load(table + 6 * members + member).to(dtype)
    down = tl.load(table + 7 * members + member) != 0
    rate = tl.load(moving + member).to(dtype)
    root = tl.load(moving + members + member).to(dtype)
    keep = tl.load(moving + 2 * members + member).to(dtype)

    p = tl.load(p_at + member * p_row + place, there, other=0.0).to(dtype)
    g = tl.load(g_at + member * g_row + place, there, other=0.0).to(dtype)
    mean = tl.load(mean_at + member * mean_row + place, there, other=0.0).to(dtype)
    square = tl.load(square_at + member * square_row + place, there, other=0.0).to(dtype)

    g = tl.where(down, -g, g)
    p = p * keep
    g = tl.where(l2 != 0, g + l2 * p, g)
    apart = g - mean
    mean = tl.where(rest1 < 0.5, mean + rest1 * apart, g - apart * (1 - rest1))  # as `torch.lerp`
    square = square * beta2 + rest2 * g * g
    tl.store(mean_at + member * mean_row + place, mean, there)
    tl.store(square_at + member * square_row + place, square, there)
    if amsgrad:
        kept = tl.load(table + 8 * members + member) != 0
        largest = tl.load(largest_at + member * largest_row + place, there, other=0.0).to(dtype)
        new = tl.maximum(largest, square, propagate_nan=tl.PropagateNan.ALL)
        tl.store(largest_at + member * largest_row + place, tl.where(kept, new, largest), there)
        square = tl.where(kept, new, square)
    if dtype == tl.float64:
        p = p + rate * mean / (tl.sqrt(square) / root + eps)
    else:  # float32 is rounded to nearest, where `/` and `sqrt` would be approximate
        p = p + tl.div_rn(rate * mean, tl.div_rn(tl.sqrt_rn(square), root) + eps)
    tl.store(p_at + member * p_row + place, p, there)


@triton.jit
def _sgd(
    p_at, g_at, buffer_at, table, lr, counts, skip, members, columns, p_row, g_row, buffer_row,
    momenta: tl.constexpr, dtype: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * block + tl.arange(0, block)
    end = tl.where(tl.load(skip + member) == 0, columns, 0)
    there = place < end
    decay = tl.load(table + 2 * members + member).to(dtype)
    down = tl.load(table + 4 * members + member) != 0
    rate = tl.load(lr + member).to(dtype)

    p = tl.load(p_at + member * p_row + place, there, other=0.0).to(dtype)
    g = tl.load(g_at + member * g_row + place, there, other=0.0).to(dtype)
    g = tl.where(down, -g, g)
    g = tl.where(decay != 0, g + decay * p, g)
    if momenta:
        momentum = tl.load(table + member).to(dtype)
        rest = tl.load(table + members + member).to(dtype)
        nesterov = tl.load(table + 3 * members + member) != 0
        moves = momentum != 0
        there_too = place < tl.where(moves, end, 0)
        buffer = tl.load(buffer_at + member * buffer_row + place, there_too, other=0.0).to(dtype)
        first = tl.load(counts + member).to(tl.float64) == tl.load(table + 5 * members + member)
        buffer = tl.where(first, g, buffer * momentum + rest * g)  # the first gradient enters whole
        tl.store(buffer_at + member * buffer_row + place, buffer, there_too)
        g = tl.where(moves, tl.where(nesterov, g + momentum * buffer, buffer), g)
    tl.store(p_at + member * p_row + place, p - rate * g, there)
