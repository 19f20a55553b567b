"""Elementwise passes over ``[M, P]`` with a number, or one number per member, in the order of torch's own kernels.

With one number for all members they are torch's kernels, to the last bit. Half precision is computed with float32
factors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hfta_nb.optim.hyperparameters import Factor

_HALF = (torch.float16, torch.bfloat16)


def add(x: Tensor, y: Tensor, alpha: Factor) -> Tensor:
    """``x + alpha * y``."""
    if not isinstance(alpha, Tensor):
        return x.add(y, alpha=alpha)
    return (x + y * alpha).to(x.dtype) if x.dtype in _HALF else torch.addcmul(x, y, alpha)


def add_(x: Tensor, y: Tensor, alpha: Factor) -> Tensor:
    """``x += alpha * y``."""
    if not isinstance(alpha, Tensor):
        return x.add_(y, alpha=alpha)
    return x.add_(y * alpha) if x.dtype in _HALF else x.addcmul_(y, alpha)


def lerp_(x: Tensor, y: Tensor, weight: Factor) -> Tensor:
    """``x += weight * (y - x)``."""
    if isinstance(weight, Tensor) and x.dtype in _HALF:
        return x.add_((y.float() - x) * weight)
    return x.lerp_(y, weight)


def addcmul_(x: Tensor, y: Tensor, z: Tensor, value: Factor) -> Tensor:
    """``x += value * y * z``."""
    if not isinstance(value, Tensor):
        return x.addcmul_(y, z, value=value)
    return x.add_(y * value * z) if x.dtype in _HALF else x.addcmul_(y * value, z)


def addcdiv_(x: Tensor, y: Tensor, z: Tensor, value: Factor) -> Tensor:
    """``x += value * y / z``."""
    if not isinstance(value, Tensor):
        return x.addcdiv_(y, z, value=value)
    return x.add_(torch.mul(y, value).div_(z))


def choose(mask: bool | Tensor, x: Tensor, y: Tensor) -> Tensor:
    """`x` for the members of the mask, else `y`."""
    if isinstance(mask, Tensor):
        return torch.where(mask, x, y)
    return x if mask else y


def ascended(g: Tensor, maximize: bool | Tensor) -> Tensor:
    """The gradient, with the other sign for members that maximize."""
    if isinstance(maximize, Tensor):
        return g * torch.where(maximize, -1.0, 1.0).to(g.dtype)
    return -g if maximize else g


def decayed(g: Tensor, p: Tensor, weight_decay: Factor) -> Tensor:
    """The gradient with the L2 penalty's added."""
    if not isinstance(weight_decay, Tensor) and weight_decay == 0:
        return g
    return add(g, p, weight_decay)
