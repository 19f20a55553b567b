"""Adam and AdamW."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hfta_nb.array import FusedArray, PerMember, per_member
from hfta_nb.errors import OptimError
from hfta_nb.optim.base import ArrayOptimizer
from hfta_nb.optim.values import Values


class Adam(ArrayOptimizer):
    """Adam, each hyperparameter with one value, or one per member.

    Args:
        array: the array to train.
        lr: learning rate, at least 0.
        betas: a pair, or a list of pairs, one per member; each in [0, 1).
        eps: at least 0.
        weight_decay: L2 penalty, at least 0.
        amsgrad: use the largest second moment so far.
        maximize: ascend instead.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: Kingma and Ba, 2015, algorithm 1; `torch.optim.Adam`, member for member.
    """

    decoupled = False

    def __init__(
        self,
        array: FusedArray,
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: Any = 1e-8,
        weight_decay: Any = 0.0,
        amsgrad: Any = False,
        *,
        maximize: Any = False,
    ) -> None:
        beta1, beta2 = _split_betas(betas)
        given = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        super().__init__(array, given | {"amsgrad": amsgrad, "maximize": maximize})
        for name in ("lr", "eps", "weight_decay"):
            self.hyper[name].check(name)
        for name in ("beta1", "beta2"):
            self.hyper[name].check(name, below=1.0)

    def update(
        self,
        p: Float[Tensor, "M P"],
        g: Float[Tensor, "M P"],
        state: dict[str, Tensor],
        hyper: Mapping[str, Values],
        steps: list[int],
    ) -> None:
        lr, decay = hyper["lr"].per_member, hyper["weight_decay"].per_member
        if any(hyper["maximize"].per_member):
            g = g * Values([-1.0 if m else 1.0 for m in hyper["maximize"].per_member]).factor(g)
        if any(decay):
            if self.decoupled:
                p.mul_(Values([1 - a * d for a, d in zip(lr, decay, strict=True)]).factor(p))
            else:
                g = torch.addcmul(g, p, hyper["weight_decay"].column(p))
        mean, square = self._moments(g, state, hyper)
        beta1, beta2 = hyper["beta1"].per_member, hyper["beta2"].per_member
        root = Values([math.sqrt(1 - b**n) for b, n in zip(beta2, steps, strict=True)])
        rate = Values([-a / (1 - b**n) for a, b, n in zip(lr, beta1, steps, strict=True)])
        # The operations and their order are torch's, down to the last bit: chaos makes much of a bit.
        below = torch.sqrt(square).div_(root.factor(p)).add_(hyper["eps"].factor(p))
        if rate.uniform:
            p.addcdiv_(mean, below, value=rate.per_member[0])
        else:
            p.add_(torch.mul(mean, rate.column(p)).div_(below))

    def _moments(self, g: Tensor, state: dict[str, Tensor], hyper: Mapping[str, Values]) -> tuple[Tensor, Tensor]:
        if not state:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(g), torch.zeros_like(g)
            if any(hyper["amsgrad"].per_member):
                state["max_exp_avg_sq"] = torch.zeros_like(g)
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        rest1 = Values([1 - b for b in hyper["beta1"].per_member])
        rest2 = Values([1 - b for b in hyper["beta2"].per_member])
        mean.lerp_(g, rest1.per_member[0] if rest1.uniform else rest1.column(g))
        square.mul_(hyper["beta2"].factor(g))
        if rest2.uniform:
            square.addcmul_(g, g, value=rest2.per_member[0])
        else:
            square.addcmul_(g * rest2.column(g), g)
        if "max_exp_avg_sq" not in state:
            return mean, square
        largest = state["max_exp_avg_sq"]
        torch.maximum(largest, square, out=largest)
        return mean, torch.where(hyper["amsgrad"].column(g).bool(), largest, square)


class AdamW(Adam):
    """Adam with weight decay apart from the gradient; arguments as `Adam`, `weight_decay` 0.01.

    Source: Loshchilov and Hutter, 2019; `torch.optim.AdamW`, member for member.
    """

    decoupled = True

    def __init__(
        self,
        array: FusedArray,
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: Any = 1e-8,
        weight_decay: Any = 1e-2,
        amsgrad: Any = False,
        *,
        maximize: Any = False,
    ) -> None:
        super().__init__(array, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


def _split_betas(betas: Any) -> tuple[Any, Any]:
    """A pair is one value; a list of pairs, or `per_member` of pairs, is one value per member."""
    pairs = betas.value if isinstance(betas, PerMember) else betas
    if isinstance(pairs, Tensor):
        pairs = [tuple(v) for v in pairs.tolist()]
    if isinstance(pairs, tuple | list) and len(pairs) == 2 and all(isinstance(b, int | float) for b in pairs):
        return pairs[0], pairs[1]
    if isinstance(pairs, list) and pairs and all(isinstance(b, tuple | list) and len(b) == 2 for b in pairs):
        return per_member([b[0] for b in pairs]), per_member([b[1] for b in pairs])
    raise OptimError("not a pair, nor a list of pairs", where="betas", got=betas, accepted="for example (0.9, 0.999)")
