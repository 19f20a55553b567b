"""Targets that are missing, and means over those that are there.

A target is missing where a number is NaN, where a class number is `IGNORED`, and where the mask beside the targets is
0. Labels at missing places change nothing: neither a loss nor its gradient, which is exactly zero there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.data.labels import IGNORED, beside_mask
from hfta_nb.engine.array import PerMember
from hfta_nb.models.targets import as_numbers, shaped_as


def classes_of(target: Any, ignored: int = IGNORED) -> Any:
    """Class numbers, or shares of classes, of a target that may have a mask beside it.

    Args:
        target: class numbers ``[N, *rest]``, or shares ``[N, classes, *rest]``; or a dict of them and a "mask" ``[N,
            *rest]``.
        ignored: what class numbers are where the mask is 0; shares are NaN there.
    """
    y, mask = beside_mask(target)
    if mask is None or not isinstance(y, Tensor):
        return y
    if y.is_floating_point():
        kept = mask.unsqueeze(1) if mask.ndim == y.ndim - 1 and mask.ndim else _like(mask, y)
        return torch.where(kept != 0, y, torch.nan)
    return torch.where(_like(mask, y) != 0, y, ignored)


def numbers_of(target: Any, output: Tensor, classes: bool = False) -> tuple[Tensor, Tensor]:
    """Targets that are numbers, 0 where they are missing; and where they are known, of the same shape.

    Args:
        target: numbers; or a dict of them and a "mask", of their shape or of its first axes.
        output: whose shape they take; see `targets.shaped_as`.
        classes: whole numbers are classes, of which `IGNORED` is missing.
    """
    y, mask = beside_mask(target)
    known = (y == y) if y.is_floating_point() or not classes else y != IGNORED  # NaN is unlike itself
    if mask is not None:
        known = known & (_like(mask, y) != 0)
    numbers = as_numbers(torch.where(known, y, 0), output)
    return shaped_as(numbers, output), shaped_as(known.to(numbers.dtype), output) != 0


def mean_of_known(losses: Tensor, known: Tensor) -> Tensor:
    """The mean of the entries whose targets are known, 0 where none is: ``sum(m * l) / max(1, sum(m))``.

    Args:
        losses: of each entry.
        known: m; broadcasts to `losses`.
    """
    known = known.expand_as(losses)
    wide = torch.promote_types(losses.dtype, torch.float32)  # half precision does not count far
    total = torch.where(known, losses, 0).sum(dtype=wide)
    return (total / known.sum().clamp(min=1)).to(losses.dtype)


def mean_of_labelled(function: Callable[..., Tensor], output: Tensor, y: Any, ignored: int = IGNORED) -> Tensor:
    """`cross_entropy` or `nll_loss` over the targets that are known; 0 where none is.

    Args:
        function: one of these two of `torch.nn.functional`.
        output: ``[N, classes, *rest]``.
        y: what `classes_of` gives.
        ignored: the class number of missing targets.
    """
    if y.is_floating_point():
        dim = 1 if y.ndim > 1 else 0
        known = (y == y).all(dim)
        shares = torch.where(known.unsqueeze(dim), y, 0)
        return mean_of_known(function(output, shares, reduction="none"), known)
    total = function(output, y, ignore_index=ignored, reduction="sum")
    mean: Tensor = total / (y != ignored).sum().clamp(min=1)
    return mean


def share_of_known(target: Any, classes: bool, ignored: int = IGNORED) -> Tensor:
    """The share of the targets of a mini-batch that are known: ``[]``, or ``[M]`` where members have batches of their
    own.

    Args:
        target: as a step gets it: a tensor, or a dict with a mask; each may be `per_member`.
        classes: whole numbers are classes.
        ignored: the class number of missing targets.
    """
    y, mask = beside_mask(target)
    own = isinstance(y, PerMember)
    y, mask = (v.value if isinstance(v, PerMember) else v for v in (y, mask))
    known = (y == y) if y.is_floating_point() or not classes else y != ignored
    if mask is not None:
        known = known & (_like(mask, y) != 0)
    found: Tensor = known.flatten(1) if own else known.reshape(1, -1)
    shares = found.double().mean(1)
    return shares if own else shares[0]


def elementwise(function: Callable[..., Tensor], output: Tensor, target: Any, **settings: Any) -> Tensor:
    """A loss of numbers, such as `mse_loss`, over the targets that are known; 0 where none is.

    Args:
        function: of `torch.nn.functional`, with a `reduction`.
        output: the prediction.
        target: see `numbers_of`.
        settings: of the function.
    """
    numbers, known = numbers_of(target, output, function is F.binary_cross_entropy_with_logits)
    return mean_of_known(function(output, numbers, reduction="none", **settings), known)


def _like(mask: Tensor, y: Tensor) -> Tensor:
    """The mask, so that it broadcasts to the targets."""
    if mask.numel() == y.numel():
        return mask.reshape(y.shape)
    return mask.reshape(*mask.shape, *[1] * (y.ndim - mask.ndim))
