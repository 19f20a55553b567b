"""Losses with parameters, which a study's members hold as submodules: they are fused, trained and saved with the model.

The model's own code does not see them: they are taken out for the time of its call, and of a change between training
and evaluation mode, which leaves a loss alone in a loop of one's own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

_HELD = "_held_losses"
"""The attribute of a module with the names of its losses, each with the name of the submodule."""


@dataclass(frozen=True)
class HeldLoss:
    """A loss that each member holds a copy of.

    Attributes:
        loss: as the user has given it.
        name: under which members hold it.
    """

    loss: nn.Module
    name: str

    def __call__(self, output: Any, target: Any) -> Any:
        return self.loss(output, target)

    def of_module(self, module: nn.Module) -> nn.Module:
        """A member's own."""
        own: nn.Module = module._modules[submodule_of(module, self.name)]  # type: ignore[assignment]
        return own


def attach(module: nn.Module, losses: Mapping[str, nn.Module]) -> nn.Module:
    """Give a member copies of losses; returns the member."""
    names = {}
    for name, loss in losses.items():
        free = name
        while free in module._modules or free in module._parameters or free in module._buffers:
            free += "_"
        own, like = copy.deepcopy(loss), next(module.parameters(), None)
        module._modules[free] = own if like is None or not like.is_meta else own.to("meta")
        names[name] = free
    if names:
        module.__dict__[_HELD] = names
    return module


def take_losses(module: nn.Module) -> dict[str, nn.Module]:
    """Take the losses out of a member, which is the user's own module then."""
    names = module.__dict__.pop(_HELD, {})
    return {name: module._modules.pop(own) for name, own in names.items()}  # type: ignore[misc]


def submodule_of(module: nn.Module, name: str) -> str:
    """The name of the submodule that is a loss of a member; empty if there is none."""
    return str(getattr(module, _HELD, {}).get(name, ""))


def losses_of(module: nn.Module) -> list[str]:
    """The names of the submodules that are losses of a member."""
    return list(getattr(module, _HELD, {}).values())


@contextmanager
def unseen(module: nn.Module) -> Iterator[None]:
    """The context in which a member has no losses."""
    names = losses_of(module)
    if not names:
        yield
        return
    every = dict(module._modules)
    for name in names:
        module._modules.pop(name)
    try:
        yield
    finally:
        module._modules |= {name: every[name] for name in names}


def of_member(function: Any, module: nn.Module) -> Any:
    """A loss or metric as one member calls it."""
    own = getattr(function, "of_module", None)
    return function if own is None else own(module)
