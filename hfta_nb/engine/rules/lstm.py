"""The LSTM of all members of a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.kernels.native import recurrent as native
from hfta_nb.engine.rules.sequences import beside, differentiable, finish, first_grad, gradients, order, project, tanh_


class LSTM(torch.autograd.Function):
    """One direction of one layer.

    Takes x ``[M, T, N, in]``, the weights ``[M, 4H, in]`` and ``[M, 4H, H]``, the biases ``[M, 4H]`` or None, h and c
    ``[M, N, H]``, and whether the last time step comes first. Returns h at all time steps, and the last h and c.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
        ctx.native = native.usable(given[0], given[5])
        return _forward(ctx, *given)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, w_x, w_h, b_x, b_h, h, c, _, squashed, h_all, c_all, *gates = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return tuple(differentiable(formula, (x, w_x, w_h, b_x, b_h, h, c, ctx.last_first), grads))
        by_out, by_h, by_c = grads
        dh, dc = first_grad(by_h, h), first_grad(by_c, c)
        if ctx.native:
            dx, dw_x, dw_h = (w.new_empty(w.shape) if k else None for w, k in zip((x, w_x, w_h), wanted, strict=False))
            db = x.new_empty(*w_h.shape[:2])
            saved = (x, w_x, w_h, gates[0], h_all, c_all)
            native.backward(*saved, by_out, dh, dc, dx, dw_x, dw_h, db, ctx.last_first, wanted[5])
            biases = (db if k else None for k in wanted[3:5])
            return (dx, dw_x, dw_h, *biases, dh if wanted[5] else None, dc if wanted[6] else None, None)
        grad = x.new_empty(*x.shape[:3], w_h.shape[1])
        h_before, h_after = h_all[:, :-1], h_all[:, 1:]
        c_before = c_all[:, :-1]
        if ctx.last_first:
            h_before, h_after, c_before = h_after, h_before, c_all[:, 1:]
        buffer = torch.empty_like(h), torch.empty_like(h)
        later: Tensor | None = None
        for t in reversed(order(x.shape[1], ctx.last_first)):
            dh = _dh(dh, None if by_out is None else by_out[:, t], later, w_h)
            later = grad[:, t]
            _step_back(gates[t], c_before[:, t], squashed[:, t], h_after[:, t], dh, dc, later, buffer)
        found = gradients(wanted, grad, grad, x, h_before, (w_x, w_h))
        first = torch.bmm(later, w_h) if wanted[5] and later is not None else None
        return (*found, first, dc if wanted[6] else None, None)


class TorchLSTM(LSTM):
    """The same without this package's kernel."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
        ctx.native = False
        return _forward(ctx, *given)


def _forward(
    ctx: Any,
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    b_x: Tensor | None,
    b_h: Tensor | None,
    h: Tensor,
    c: Tensor,
    backward: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    steps, wide = x.shape[1], h.shape[-1]
    h_before, h_after, h_all = beside(h, steps, backward)
    c_before, c_after, c_all = beside(c, steps, backward)
    squashed: Tensor | None = None
    if ctx.native:
        gates = [x.new_empty(*x.shape[:3], 4 * wide)]
        native.forward(x, w_x, w_h, b_x, b_h, gates[0], h_all, c_all, backward)
    else:
        squashed = torch.empty_like(c_after)
        bias = None if b_x is None or b_h is None else _turned_g(b_x + b_h, wide)
        gates = list(project(x, _turned_g(w_x.clone(), wide), bias).unbind(1))
        turned = _turned_g(w_h.clone(), wide).transpose(1, 2).contiguous()
        one = x.new_ones(())
        for t in order(steps, backward):
            gates[t] = torch.baddbmm(gates[t], h_before[:, t], turned)  # a program chooses the kernel and the memory
            _step(gates[t], c_before[:, t], c_after[:, t], squashed[:, t], h_after[:, t], one)
    ends = finish(ctx, (x, w_x, w_h, b_x, b_h, h, c), h_after, (squashed, h_all, c_all, *gates), backward)
    return *ends, c_after[:, 0 if backward else -1].clone()


def _step(gates: Tensor, before: Tensor, c: Tensor, squashed: Tensor, h: Tensor, one: Tensor) -> None:
    """Compute the gates from their sums in place, and fill in c, tanh(c) and h."""
    torch.sigmoid(gates, out=gates)
    i, f, g, o = gates.chunk(4, -1)
    torch.add(one, g, alpha=-2, out=g)
    torch.mul(f, before, out=c)
    torch.addcmul(c, i, g, out=c)
    tanh_(c, one, squashed)
    torch.mul(o, squashed, out=h)


def _step_back(
    gates: Tensor,
    before: Tensor,
    squashed: Tensor,
    h: Tensor,
    dh: Tensor,
    dc: Tensor,
    grad: Tensor,
    buffer: tuple[Tensor, Tensor],
) -> None:
    """Write the gradient of the gates' sums to `grad`, and turn dc of this step into that of the step before."""
    (i, f, g, o), (di, df, dg, do), (u, v) = gates.chunk(4, -1), grad.chunk(4, -1), buffer
    torch.mul(dh, h, out=u)
    torch.addcmul(u, u, o, value=-1, out=do)
    torch.addcmul(o, h, squashed, value=-1, out=u)
    torch.addcmul(dc, dh, u, out=dc)
    torch.mul(dc, i, out=u)
    torch.mul(u, g, out=v)
    torch.addcmul(v, v, i, value=-1, out=di)
    torch.addcmul(u, v, g, value=-1, out=dg)
    torch.mul(dc, f, out=dc)
    torch.mul(dc, before, out=u)
    torch.addcmul(u, u, f, value=-1, out=df)


def _turned_g(weight: Tensor, wide: int) -> Tensor:
    """A copy with the rows of g scaled so that tanh can be computed by the sigmoid of the other gates; modified in
    place."""
    weight[:, 2 * wide : 3 * wide].mul_(-2)
    return weight


def _dh(dh: Tensor, own: Tensor | None, later: Tensor | None, weight: Tensor) -> Tensor:
    """The gradient of h: the sum of the output's and the next step's contributions."""
    if later is None:
        return dh if own is None else dh + own
    return torch.bmm(later, weight) if own is None else torch.baddbmm(own, later, weight)


def formula(
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    b_x: Tensor | None,
    b_h: Tensor | None,
    h: Tensor,
    c: Tensor,
    backward: bool,
) -> Sequence[Tensor]:
    """The same in operations that can be differentiated any number of times."""
    by_input = project(x, w_x, None if b_x is None or b_h is None else b_x + b_h)
    outputs: dict[int, Tensor] = {}
    for t in order(x.shape[1], backward):
        i, f, g, o = (by_input[:, t] + torch.bmm(h, w_h.transpose(1, 2))).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs[t] = h
    return torch.stack([outputs[t] for t in range(x.shape[1])], 1), h, c
