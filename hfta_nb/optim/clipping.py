"""Gradient clipping, each member by its own norm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hfta_nb.engine.array import FusedArray, not_compiled
from hfta_nb.errors import OptimError
from hfta_nb.errors.border import TRUTH, Kind, number, takes
from hfta_nb.optim.array_gradients import chosen, column, per_row, pieces, rows_of, tensor_of
from hfta_nb.optim.hyperparameters import NUMBER, at_least

NORM = Kind("not a norm", 'a number, or "inf"', lambda v: number(v) or v == "inf")


@not_compiled
@takes(OptimError, norm_type=NORM, error_if_nonfinite=TRUTH)
def clip_grad_norm_(
    parameters: Any,
    max_norm: Any,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Float[Tensor, " M"]:
    """Shorten each member's gradient to a norm of at most `max_norm`, in place.

    Args:
        parameters: an array, or parameters of one: those whose gradients count.
        max_norm: one value, or one per member.
        norm_type: of the norm; "inf" for the largest entry.
        error_if_nonfinite: raise if a member's norm is NaN or infinite; nothing is clipped then.
        foreach: accepted and ignored.

    Returns:
        The norms before, ``[M]``.

    Raises:
        OptimError: not parameters of an array, another number of values than members, or see `error_if_nonfinite`.

    Example:
        >>> from hfta_nb import fuse
        >>> array = fuse([nn.Linear(4, 2) for _ in range(3)])
        >>> losses = array.backward(nn.functional.mse_loss, torch.ones(5, 4), torch.zeros(5, 2))
        >>> clip_grad_norm_(array, max_norm=[1.0, 0.1, 0.01]).shape
        torch.Size([3])

    Source: `torch.nn.utils.clip_grad_norm_` on each member alone.
    """
    array, found = chosen(parameters, "clip_grad_norm_")
    column("max_norm", max_norm, len(array), NUMBER)
    total = _total(array, found, float(norm_type), error_if_nonfinite, "clip_grad_norm_")
    _scale(array, found, max_norm, total)
    return total


@torch.no_grad()
def clip_to(array: FusedArray, found: Mapping[str, nn.Parameter], limits: Float[Tensor, " M"]) -> None:
    """`clip_grad_norm_` with limits that are on the device: nothing is read or sent, so that it can be captured.

    Args:
        array: of the parameters.
        found: by name, those whose gradients count.
        limits: per member; infinite for none.
    """
    total = _total(array, found, 2.0, False, "clip_to")
    factor = ((total + 1e-6).reciprocal() * limits.to(total.dtype)).clamp(max=1.0)  # as torch divides a number
    _multiply(array, found, torch.where(limits.isinf(), torch.ones_like(factor), factor))


@not_compiled
def clip_grads_with_norm_(
    parameters: Any, max_norm: Any, total_norm: Float[Tensor, " M"], foreach: bool | None = None
) -> None:
    """Scale each member's gradient by ``max_norm / total_norm`` where that is below 1, in place.

    Args:
        parameters: an array, or parameters of one.
        max_norm: one value, or one per member.
        total_norm: ``[M]``.
        foreach: accepted and ignored.

    Raises:
        OptimError: not parameters of an array, or another number of values than members.

    Source: `torch.nn.utils.clip_grads_with_norm_` on each member alone.
    """
    array, found = chosen(parameters, "clip_grads_with_norm_")
    if not isinstance(total_norm, Tensor) or total_norm.shape != (len(array),):
        raise OptimError("not one norm per member", where="total_norm", got=total_norm, accepted=f"[{len(array)}]")
    _scale(array, found, max_norm, total_norm)


@not_compiled
@takes(OptimError, norm_type=NORM, error_if_nonfinite=TRUTH)
def get_total_norm(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Float[Tensor, " M"]:
    """Per member, the norm of all gradients of an array, or of all given tensors ``[M, *any]``, as one vector.

    Args:
        tensors: an array (its gradients), or tensors with the member axis first.
        norm_type: of the norm.
        error_if_nonfinite: raise if a member's norm is NaN or infinite.
        foreach: accepted and ignored.

    Raises:
        OptimError: the tensors have not the same number of members, or see `error_if_nonfinite`.

    Source: `torch.nn.utils.get_total_norm` on each member alone.
    """
    where = "get_total_norm"
    if isinstance(tensors, FusedArray):
        return _total(*chosen(tensors, where), float(norm_type), error_if_nonfinite, where)
    given = [tensors] if isinstance(tensors, Tensor) else list(tensors) if isinstance(tensors, Iterable) else []
    sizes = {t.shape[0] if isinstance(t, Tensor) and t.ndim else None for t in given}
    if len(sizes) != 1 or None in sizes:
        raise OptimError("not tensors of the same members", where=where, got=sizes, accepted="tensors [M, ...]")
    norms = torch.stack([torch.linalg.vector_norm(rows_of(t), norm_type, dim=1) for t in given])
    return _checked(torch.linalg.vector_norm(norms, norm_type, dim=0), error_if_nonfinite, where)


@torch.no_grad()
@not_compiled
def clip_grad_value_(parameters: Any, clip_value: Any, foreach: bool | None = None) -> None:
    """Bring every entry of each member's gradient between ``-clip_value`` and ``clip_value``, in place.

    Args:
        parameters: an array, or parameters of one.
        clip_value: one value, or one per member; at least 0.
        foreach: accepted and ignored.

    Raises:
        OptimError: not parameters of an array, or another number of values than members.

    Source: `torch.nn.utils.clip_grad_value_` on each member alone.
    """
    array, found = chosen(parameters, "clip_grad_value_")
    values = column("clip_value", clip_value, len(array), at_least(0.0))
    for piece in pieces(array, found):
        limit = tensor_of(values, piece.device, piece.dtype)
        if isinstance(limit, Tensor):
            limit = per_row(limit, piece)
            piece.clamp_(-limit, limit)
        else:
            piece.clamp_(-limit, limit)


@torch.no_grad()
def _total(
    array: FusedArray, found: Mapping[str, nn.Parameter], norm_type: float, error_if_nonfinite: bool, where: str
) -> Tensor:
    if norm_type > 0:
        norms = [torch.linalg.vector_norm(rows_of(p), norm_type, dim=1) for p in pieces(array, found)]
    else:
        norms = [_of_parameter(array, name, p.grad, norm_type) for name, p in found.items() if p.grad is not None]
    if not norms:
        return torch.zeros(len(array), device=array.arenas[0].data.device if array.arenas else None)
    dtype = norms[0].dtype
    for norm in norms[1:]:
        dtype = torch.promote_types(dtype, norm.dtype)
    total = torch.linalg.vector_norm(torch.stack([n.to(dtype) for n in norms]), norm_type, dim=0)
    return _checked(total, error_if_nonfinite, where)


def _of_parameter(array: FusedArray, name: str, grad: Tensor, norm_type: float) -> Tensor:
    """Where zeros count (norms of type 0 or less), what is not the member's own must be left out."""
    own = (getattr(array, "owned", None) or {}).get(name)
    neutral = math.inf if norm_type < 0 else 0.0
    if own is not None:
        grad = torch.where(own.to(grad.device), grad, neutral)
    norm: Tensor = torch.linalg.vector_norm(rows_of(grad), norm_type, dim=1)
    missing = array.missing_grads.get(name)
    if missing:
        norm[missing] = neutral
    return norm


def _checked(total: Tensor, error_if_nonfinite: bool, where: str) -> Tensor:
    if error_if_nonfinite and not bool(total.isfinite().all()):
        lost = (~total.isfinite()).nonzero().flatten().tolist()
        raise OptimError(
            "the norm of the gradients is not finite",
            where=f"{where}, members {lost}",
            got=[total[i].item() for i in lost],
            remedy="error_if_nonfinite=False clips the others",
        )
    return total


@torch.no_grad()
def _scale(array: FusedArray, found: Mapping[str, nn.Parameter], max_norm: Any, total: Tensor) -> None:
    limit = tensor_of(column("max_norm", max_norm, len(array), NUMBER), total.device, total.dtype)
    _multiply(array, found, (limit / (total + 1e-6)).clamp(max=1.0))


def _multiply(array: FusedArray, found: Mapping[str, nn.Parameter], factor: Tensor) -> None:
    for piece in pieces(array, found):
        dtype = piece.real.dtype if piece.is_complex() else piece.dtype
        piece.mul_(per_row(factor.to(piece.device, dtype), piece))
