"""The GRU and the simple recurrent layer of all members of a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.rules.sequences import beside, differentiable, finish, first_grad, gradients, order, project, tanh_


class GRU(torch.autograd.Function):
    """One direction of one layer.

    Takes x ``[M, T, N, in]``, the weights ``[M, 3H, in]`` and ``[M, 3H, H]``, the biases ``[M, 3H]`` or None, h
    ``[M, N, H]``, and whether the last time step comes first. Returns h at all time steps, and the last h.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor | None, b_h: Tensor | None, h: Tensor, backward: bool
    ) -> tuple[Tensor, Tensor]:
        steps, wide = x.shape[1], h.shape[-1]
        one = x.new_ones(())
        gates = project(x, w_x, b_x)
        turned = w_h.transpose(1, 2).contiguous()
        h_before, h_after, h_all = beside(h, steps, backward)
        by_h, buffer = torch.empty_like(gates), torch.empty_like(h)
        for t in order(steps, backward):
            own, other = gates[:, t], by_h[:, t]
            if b_h is None:
                torch.bmm(h_before[:, t], turned, out=other)
            else:
                torch.baddbmm(b_h.unsqueeze(1), h_before[:, t], turned, out=other)
            switches, n = own[..., : 2 * wide], own[..., 2 * wide :]
            torch.add(switches, other[..., : 2 * wide], out=switches)
            torch.sigmoid(switches, out=switches)
            torch.addcmul(n, own[..., :wide], other[..., 2 * wide :], out=buffer)
            tanh_(buffer, one, n)
            torch.lerp(n, h_before[:, t], own[..., wide : 2 * wide], out=h_after[:, t])
        return finish(ctx, (x, w_x, w_h, b_x, b_h, h), h_after, (gates, by_h, h_all), backward)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, w_x, w_h, b_x, b_h, h, _, gates, by_h, h_all = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(differentiable(gru, (x, w_x, w_h, b_x, b_h, h, ctx.last_first), grads))
        by_out, by_last = grads
        h_before = h_all[:, 1:] if ctx.last_first else h_all[:, :-1]
        wide = h.shape[-1]
        grad, grad_h = torch.empty_like(gates), torch.empty_like(gates)
        dh = first_grad(by_last, h)
        u, v = torch.empty_like(h), torch.empty_like(h)
        for t in reversed(order(x.shape[1], ctx.last_first)):
            if by_out is not None:
                torch.add(dh, by_out[:, t], out=dh)
            r, z, n = gates[:, t].chunk(3, -1)
            dr, dz, dn = grad[:, t].chunk(3, -1)
            # h = n + z (before - n)
            torch.sub(h_before[:, t], n, out=u)
            torch.mul(u, z, out=u)
            torch.mul(u, dh, out=u)
            torch.addcmul(u, u, z, value=-1, out=dz)
            torch.mul(dh, z, out=u)
            torch.sub(dh, u, out=v)
            torch.mul(v, n, out=dh)
            torch.addcmul(v, dh, n, value=-1, out=dn)
            torch.mul(dn, by_h[:, t, :, 2 * wide :], out=v)
            torch.mul(v, r, out=v)
            torch.addcmul(v, v, r, value=-1, out=dr)
            own = grad_h[:, t]
            own[..., : 2 * wide].copy_(grad[:, t, :, : 2 * wide])
            torch.mul(dn, r, out=own[..., 2 * wide :])
            torch.baddbmm(u, own, w_h, out=dh)
        found = gradients(ctx.needs_input_grad, grad, grad_h, x, h_before, (w_x, w_h))
        return (*found, dh if ctx.needs_input_grad[5] else None, None)


class Simple(torch.autograd.Function):
    """Like `GRU`, for a recurrent layer without gates; the activation is a ReLU if `relu` is True, otherwise tanh."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w_x: Tensor,
        w_h: Tensor,
        b_x: Tensor | None,
        b_h: Tensor | None,
        h: Tensor,
        backward: bool,
        relu: bool,
    ) -> tuple[Tensor, Tensor]:
        steps = x.shape[1]
        one = x.new_ones(())
        by_input = project(x, w_x, None if b_x is None or b_h is None else b_x + b_h)
        turned = w_h.transpose(1, 2).contiguous()
        h_before, h_after, h_all = beside(h, steps, backward)
        for t in order(steps, backward):
            own = by_input[:, t]
            torch.baddbmm(own, h_before[:, t], turned, out=own)
            if relu:
                torch.clamp_min(own, 0, out=h_after[:, t])
            else:
                tanh_(own, one, h_after[:, t])
        ctx.relu = relu
        return finish(ctx, (x, w_x, w_h, b_x, b_h, h), h_after, (h_all,), backward)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, w_x, w_h, b_x, b_h, h, _, h_all = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(differentiable(simple, (x, w_x, w_h, b_x, b_h, h, ctx.last_first, ctx.relu), grads))
        by_out, by_last = grads
        h_before, h_after = h_all[:, :-1], h_all[:, 1:]
        if ctx.last_first:
            h_before, h_after = h_after, h_before
        grad = x.new_empty(*x.shape[:3], h.shape[-1])
        dh = first_grad(by_last, h)
        u = torch.empty_like(h)
        for t in reversed(order(x.shape[1], ctx.last_first)):
            if by_out is not None:
                torch.add(dh, by_out[:, t], out=dh)
            own, now = grad[:, t], h_after[:, t]
            if ctx.relu:
                torch.mul(dh, now > 0, out=own)
            else:
                torch.mul(dh, now, out=u)
                torch.addcmul(dh, u, now, value=-1, out=own)
            torch.bmm(own, w_h, out=dh)
        found = gradients(ctx.needs_input_grad, grad, grad, x, h_before, (w_x, w_h))
        return (*found, dh if ctx.needs_input_grad[5] else None, None, None)


def gru(
    x: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor | None, b_h: Tensor | None, h: Tensor, backward: bool
) -> Sequence[Tensor]:
    """The same in operations that can be differentiated any number of times."""
    by_input = project(x, w_x, b_x)
    outputs: dict[int, Tensor] = {}
    for t in order(x.shape[1], backward):
        by_h = torch.bmm(h, w_h.transpose(1, 2))
        if b_h is not None:
            by_h = by_h + b_h.unsqueeze(1)
        (r, z, n), (hr, hz, hn) = by_input[:, t].chunk(3, -1), by_h.chunk(3, -1)
        z, n = torch.sigmoid(z + hz), torch.tanh(n + torch.sigmoid(r + hr) * hn)
        h = n + z * (h - n)
        outputs[t] = h
    return torch.stack([outputs[t] for t in range(x.shape[1])], 1), h


def simple(
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    b_x: Tensor | None,
    b_h: Tensor | None,
    h: Tensor,
    backward: bool,
    relu: bool,
) -> Sequence[Tensor]:
    """The same in operations that can be differentiated any number of times."""
    by_input = project(x, w_x, None if b_x is None or b_h is None else b_x + b_h)
    outputs: dict[int, Tensor] = {}
    for t in order(x.shape[1], backward):
        a = by_input[:, t] + torch.bmm(h, w_h.transpose(1, 2))
        h = torch.relu(a) if relu else torch.tanh(a)
        outputs[t] = h
    return torch.stack([outputs[t] for t in range(x.shape[1])], 1), h
