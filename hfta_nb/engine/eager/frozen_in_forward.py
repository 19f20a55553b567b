"""Refuses models that freeze or unfreeze their own parameters in `forward`.

A call runs on tensors that stand for the members' rows of a parameter: whether those require a gradient is said by the
array's parameter, and forgotten with the call. In the plain module it would last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from hfta_nb.errors import FusionError


@contextmanager
def learning_kept(parameters: Mapping[str, Tensor]) -> Iterator[None]:
    """The context of a call that runs on these tensors.

    Raises:
        FusionError: the call has set `requires_grad` of one to something else, where gradients are recorded.
    """
    before = {name: p.requires_grad for name, p in parameters.items()} if torch.is_grad_enabled() else {}
    yield
    turned = [name for name, learns in before.items() if parameters[name].requires_grad != learns]
    for name in turned:
        with suppress(RuntimeError):  # no leaf; it goes with this call
            parameters[name].requires_grad_(before[name])
    if turned:
        raise FusionError(
            "the model freezes or unfreezes a parameter in its forward, which no array can keep up",
            where=turned[0],
            got=f"requires_grad={not before[turned[0]]}",
            remedy=f"do it between two steps: array.get_parameter(name).requires_grad_({not before[turned[0]]})",
        )
