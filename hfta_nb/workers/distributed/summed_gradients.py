"""The gradients of a backward that all ranks make together: one sum for all members."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.members.arena import Arena
from hfta_nb.workers.distributed.ranks import Ranks


def sum_gradients(array: FusedArray, ranks: Ranks, only: Collection[str] | None) -> None:
    """Replace the gradients by their sums over all ranks: one exchange per arena, which holds those of all members.

    Args:
        only: names of the parameters whose gradients were computed; None for all.
    """
    wanted = {n: p for n, p in array.named_parameters() if p.grad is not None and (only is None or n in only)}
    for arena in array.arenas:
        inside = [span.name for span in arena.spans if span.name in wanted]
        for name in inside:  # ranks must exchange the same, and a call that is not replayed leaves gradients elsewhere
            _bring_home(arena, wanted[name], name)
        if len(inside) == len(arena.spans):
            ranks.sum_(arena.grad)
        elif inside:
            views = [arena.grad_view(name) for name in inside]
            flat = torch.cat([view.reshape(-1) for view in views])
            ranks.sum_(flat)
            for view, part in zip(views, torch.split(flat, [view.numel() for view in views]), strict=True):
                view.copy_(part.view(view.shape))


def _bring_home(arena: Arena, parameter: nn.Parameter, name: str) -> None:
    """Put a parameter's gradient into its arena."""
    if parameter.grad is not None and not arena.holds_grad(parameter, name):
        view = arena.grad_view(name)
        view.copy_(parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad)
        parameter.grad = view


class Aside:
    """Gradients that were there before a backward, which are to be added to and not to be summed over ranks again.

    Args:
        array: whose they are.
        only: names of the parameters by which is differentiated; None for all.

    Attributes:
        inputs: these parameters; None for all.
    """

    def __init__(self, array: FusedArray, only: Collection[str] | None) -> None:
        named = {n: p for n, p in array.named_parameters() if only is None or n in only}
        self.inputs = None if only is None else [p for p in named.values() if p.requires_grad]
        self._named: dict[str, nn.Parameter] = named
        self._kept: dict[str, tuple[Tensor, Tensor]] = {
            n: (p.grad, p.grad.clone()) for n, p in named.items() if p.grad is not None
        }
        for name in self._kept:
            named[name].grad = None

    def add(self) -> None:
        """Add them to what has come since."""
        for name, (place, value) in self._kept.items():
            parameter = self._named[name]
            if parameter.grad is None:
                place.copy_(value)
                parameter.grad = place
            else:
                parameter.grad.add_(value)
