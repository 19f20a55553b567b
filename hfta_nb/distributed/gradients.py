"""The gradients of a backward that all ranks make together: one sum for all members."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from hfta_nb.array import FusedArray
from hfta_nb.distributed.ranks import Ranks


def sum_gradients(array: FusedArray, ranks: Ranks, only: Collection[str] | None) -> None:
    """Replace the gradients by their sums over all ranks: one exchange per arena, which holds those of all members.

    Args:
        only: names of the parameters whose gradients were computed; None for all.
    """
    wanted = {n: p for n, p in array.named_parameters() if p.grad is not None and (only is None or n in only)}
    for arena in array.arenas:
        inside = [span.name for span in arena.spans if span.name in wanted]
        if len(inside) == len(arena.spans) and all(arena.holds_grad(wanted[name], name) for name in inside):
            ranks.sum_(arena.grad)
            continue
        grads = [grad for name in inside if (grad := wanted[name].grad) is not None]
        if grads:
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            ranks.sum_(flat)
            for grad, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
                grad.copy_(part.view(grad.shape))


class Aside:
    """Gradients that were there before a backward, which are to be added to and not to be summed over ranks again.

    Args:
        array: whose they are.
        only: names of the parameters by which is differentiated; None for all.
    """

    def __init__(self, array: FusedArray, only: Collection[str] | None) -> None:
        self.array = array
        named = {n: p for n, p in array.named_parameters() if only is None or n in only}
        self._named: dict[str, nn.Parameter] = named
        self._kept: dict[str, tuple[Tensor, Tensor]] = {
            n: (p.grad, p.grad.clone()) for n, p in named.items() if p.grad is not None
        }
        self._lacking = {n: set(m) for n, m in array.missing_grads.items() if n in self._kept}
        for name in self._kept:
            named[name].grad = None

    def clear(self) -> None:
        """Forget the gradients of a call that does not count."""
        for parameter in self._named.values():
            parameter.grad = None

    def add(self) -> None:
        """Add them to what has come since."""
        for name, (place, value) in self._kept.items():
            parameter = self._named[name]
            if parameter.grad is None:
                place.copy_(value)
                parameter.grad = place
            else:
                parameter.grad.add_(value)
            missing = self._lacking.get(name, set()) & set(self.array.missing_grads.get(name, ()))
            if missing:
                self.array.missing_grads[name] = sorted(missing)
            else:
                self.array.missing_grads.pop(name, None)
