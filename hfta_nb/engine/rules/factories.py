"""Empty tensors that a model creates to write into: each member gets its own one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.rules.rule_mode import Context, Rule


def _own(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    made = function(*args, **kwargs)
    if not context.private or not isinstance(made, Tensor) or context.batched(made):
        return made
    with context.outside():
        return context.wrapped(made.unsqueeze(0).repeat(context.members, *[1] * made.ndim))


_FACTORIES = (
    *(torch.zeros, torch.ones, torch.empty, torch.full, torch.clone, Tensor.clone),
    *(torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like),
    *(Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full, Tensor.new_tensor),
)

RULES: dict[object, Rule] = dict.fromkeys(_FACTORIES, _own)
