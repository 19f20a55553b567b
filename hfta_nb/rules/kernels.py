"""Kernels that `vmap` lacks or that ask for gradients in a way it hides: torch's own, once per member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from hfta_nb.rules.base import Context, Rule
from hfta_nb.rules.members import member_by_member


def _once_each(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return member_by_member(context, function, args, kwargs, "torch's kernel, once per member")


# New in torch 2.13.
_KERNELS = (F.linear_cross_entropy,) if hasattr(F, "linear_cross_entropy") else ()

RULES: dict[object, Rule] = dict.fromkeys(_KERNELS, _once_each)
