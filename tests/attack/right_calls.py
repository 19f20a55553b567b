"""A call with arguments that are right, and what most of them are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import hfta_nb as hfta

MEMBERS = 3
generator = torch.Generator().manual_seed(0)
x = torch.randn(40, 3, generator=generator)
y = (x[:, 0] > 0).long()


def build(hidden: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 2))


@dataclass
class Call:
    """A call that is right.

    Attributes:
        function: what is called.
        given: its arguments by name; ``*`` of what is given by position.
        then: what is done with what it returns, before it counts as done.
        watched: what an error may not have changed.
    """

    function: Callable[..., Any]
    given: Mapping[str, Any]
    then: Callable[[Any], Any] = lambda found: None
    watched: Callable[[], Any] = lambda: None

    def __call__(self, given: Mapping[str, Any]) -> Any:
        named = dict(given)
        found = self.function(*named.pop("*", ()), **named)
        self.then(found)
        return found


def array() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = hfta.fuse([build() for _ in range(MEMBERS)], seeds=range(MEMBERS))
    return found


def values(*things: Any) -> Callable[[], list[Any]]:
    """What the tensors and numbers of arrays, optimizers and schedulers are."""

    def look() -> list[Any]:
        found: list[Any] = []
        for thing in things:
            state = thing.state_dict()
            found.append([(k, v.tolist()) for k, v in state.items()] if isinstance(thing, nn.Module) else repr(state))
        return found

    return look


def loss(out: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, target)


def made_optimizer(owner: Any, name: str = "SGD") -> Any:
    return getattr(hfta.optim, name)(owner, lr=0.1)
