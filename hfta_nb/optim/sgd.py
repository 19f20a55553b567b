"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hfta_nb.array import FusedArray
from hfta_nb.errors import OptimError
from hfta_nb.optim.base import ArrayOptimizer
from hfta_nb.optim.values import Values


class SGD(ArrayOptimizer):
    """SGD with momentum, each hyperparameter with one value, or one per member.

    Args:
        array: the array to train.
        lr: learning rate, at least 0.
        momentum: at least 0.
        dampening: of the momentum.
        weight_decay: L2 penalty, at least 0.
        nesterov: needs a momentum above 0 and no dampening.
        maximize: ascend instead.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: `torch.optim.SGD`, member for member.
    """

    def __init__(
        self,
        array: FusedArray,
        lr: Any = 1e-3,
        momentum: Any = 0.0,
        dampening: Any = 0.0,
        weight_decay: Any = 0.0,
        nesterov: Any = False,
        *,
        maximize: Any = False,
    ) -> None:
        given = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(array, given | {"nesterov": nesterov, "maximize": maximize})
        for name in ("lr", "momentum", "weight_decay"):
            self.hyper[name].check(name)
        rows = zip(*(self.hyper[k].per_member for k in ("nesterov", "momentum", "dampening")), strict=True)
        for i, (on, mu, damp) in enumerate(rows):
            if on and (mu <= 0 or damp != 0):
                raise OptimError(
                    "nesterov needs a momentum above 0 and no dampening",
                    where=f"member {i}",
                    got={"momentum": mu, "dampening": damp},
                )

    def update(
        self,
        p: Float[Tensor, "M P"],
        g: Float[Tensor, "M P"],
        state: dict[str, Tensor],
        hyper: Mapping[str, Values],
        steps: list[int],
    ) -> None:
        if any(hyper["maximize"].per_member):
            g = g * Values([-1.0 if m else 1.0 for m in hyper["maximize"].per_member]).factor(g)
        if any(hyper["weight_decay"].per_member):
            g = torch.addcmul(g, p, hyper["weight_decay"].column(p))
        momentum = hyper["momentum"]
        if any(momentum.per_member):
            g = self._with_momentum(g, state, hyper, steps)
        p.addcmul_(g, Values([-v for v in hyper["lr"].per_member]).column(p))

    def _with_momentum(
        self, g: Tensor, state: dict[str, Tensor], hyper: Mapping[str, Values], steps: list[int]
    ) -> Tensor:
        mu, damp = hyper["momentum"], hyper["dampening"].per_member
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(g)
        buffer = state["momentum_buffer"]
        # The first gradient enters whole, and members without momentum know no dampening.
        kept = [1.0 if n == 1 or m == 0 else 1.0 - d for n, m, d in zip(steps, mu.per_member, damp, strict=True)]
        buffer.mul_(mu.factor(g))
        if all(k == 1.0 for k in kept):
            buffer.add_(g)
        else:
            buffer.addcmul_(g, Values(kept).column(g))
        nesterov = hyper["nesterov"].per_member
        if not any(nesterov):
            return buffer
        ahead = torch.addcmul(g, buffer, mu.column(g))
        if all(nesterov):
            return ahead
        return torch.where(hyper["nesterov"].column(g).bool(), ahead, buffer)
