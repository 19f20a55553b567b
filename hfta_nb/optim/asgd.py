"""ASGD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hfta_nb.errors import OptimError
from hfta_nb.optim.elementwise_passes import add_, ascended, choose, decayed
from hfta_nb.optim.flat import FlatOptimizer, scalar_dtype
from hfta_nb.optim.flat_state import Numbers
from hfta_nb.optim.hyperparameters import DECAY, FLAG, LR, NUMBER, HostColumn, Kind, power
from hfta_nb.optim.torch_arguments import TorchOptimizer


class ASGD(TorchOptimizer, FlatOptimizer):
    """Averaged SGD, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them.
        lr: learning rate, at least 0.
        lambd: decay of values and learning rate.
        alpha: power of the learning rate's decay.
        t0: the step at which averaging begins.
        weight_decay: L2 penalty, at least 0.
        foreach, capturable: accepted and ignored: the step is always one pass.
        maximize: ascend instead.
        differentiable: must be False.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: Polyak and Juditsky, 1992; `torch.optim.ASGD`, member for member, its step size in float32 included. The
    averages are `state_dict()`'s "ax".
    """

    torch_class = torch.optim.ASGD
    torch_state = ("eta", "mu", "ax")
    kinds: ClassVar[Mapping[str, Kind]] = {
        "lr": LR,
        "lambd": NUMBER,
        "alpha": NUMBER,
        "t0": NUMBER,
        "weight_decay": DECAY,
        "maximize": FLAG,
    }

    def states(self, values: Numbers) -> tuple[str, ...]:
        return ("ax",)

    def fresh_scalars(self, values: Numbers) -> dict[str, HostColumn]:
        kind = scalar_dtype()
        with np.errstate(over="ignore"):
            eta = values["lr"].astype(kind)
        return {"eta": eta, "mu": np.ones(len(values["lr"]), dtype=kind)}

    def numbers(self, values: Numbers, steps: HostColumn, scalars: dict[str, HostColumn]) -> dict[str, HostColumn]:
        lr, lambd = values["lr"], values["lambd"]
        eta, mu = (scalars[k].astype(np.float64) for k in ("eta", "mu"))
        found = {k: values[k] for k in ("maximize", "weight_decay")}
        found |= {"keep": 1 - lambd * eta, "down": -eta, "mu": mu, "whole": mu == 1}
        kind = scalars["eta"].dtype
        try:
            fall = power(1 + lambd * lr * steps, values["alpha"])
        except OverflowError as error:  # which torch raises too
            how = "a smaller one: the learning rate is lr / (1 + lambd * lr * step) ** alpha"
            raise OptimError("a power that overflows", where="alpha", got=max(values["alpha"]), remedy=how) from error
        scalars["eta"] = (lr / fall).astype(np.float32).astype(kind)
        scalars["mu"] = (1 / np.maximum(1, steps - values["t0"])).astype(np.float32).astype(kind)
        return found

    def apply(self, p: Tensor, g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any]) -> None:
        g = decayed(ascended(g, c["maximize"]), p, c["weight_decay"])
        p.mul_(c["keep"])
        add_(p, g, c["down"])
        mean = state["ax"]
        if c["whole"] is True:
            mean.copy_(p)
        else:
            mean.copy_(choose(c["whole"], p, mean + (p - mean).mul_(c["mu"])))
