"""Adadelta, Adagrad and RMSprop: steps divided by a past of squared gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from hfta_nb.optim.elementwise_passes import add_, addcdiv_, addcmul_, ascended, choose, decayed, lerp_
from hfta_nb.optim.flat import FlatOptimizer
from hfta_nb.optim.flat_state import Numbers
from hfta_nb.optim.hyperparameters import DECAY, FLAG, LR, HostColumn, Kind, at_least
from hfta_nb.optim.torch_arguments import TorchOptimizer


class Adadelta(TorchOptimizer, FlatOptimizer):
    """Adadelta, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them.
        lr: learning rate, at least 0.
        rho: how long the running means last; from 0 to 1.
        eps: at least 0.
        weight_decay: L2 penalty, at least 0.
        foreach, capturable: accepted and ignored: the step is always one pass.
        maximize: ascend instead.
        differentiable: must be False.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: Zeiler, 2012; `torch.optim.Adadelta`, member for member.
    """

    torch_class = torch.optim.Adadelta
    torch_state = ("square_avg", "acc_delta")
    kinds: ClassVar[Mapping[str, Kind]] = {
        "lr": LR,
        "rho": Kind("from 0 to 1", lambda v: 0 <= v <= 1),
        "eps": at_least(0.0),
        "weight_decay": DECAY,
        "maximize": FLAG,
    }

    def states(self, values: Numbers) -> tuple[str, ...]:
        return "square_avg", "acc_delta"

    def numbers(self, values: Numbers, steps: HostColumn, scalars: dict[str, HostColumn]) -> dict[str, HostColumn]:
        found = {k: values[k] for k in ("maximize", "weight_decay", "rho", "eps")}
        return found | {"rest": 1 - values["rho"], "down": -values["lr"]}

    def apply(self, p: Tensor, g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any]) -> None:
        g = decayed(ascended(g, c["maximize"]), p, c["weight_decay"])
        square, moved = state["square_avg"], state["acc_delta"]
        addcmul_(square.mul_(c["rho"]), g, g, c["rest"])
        below = square.add(c["eps"]).sqrt_()
        delta = moved.add(c["eps"]).sqrt_().div_(below).mul_(g)
        addcmul_(moved.mul_(c["rho"]), delta, delta, c["rest"])
        add_(p, delta, c["down"])


class Adagrad(TorchOptimizer, FlatOptimizer):
    """Adagrad, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them.
        lr: learning rate, at least 0.
        lr_decay: of the learning rate with the steps; at least 0.
        weight_decay: L2 penalty, at least 0.
        initial_accumulator_value: what the sum of squares begins with; at least 0.
        eps: at least 0.
        foreach, fused: accepted and ignored: the step is always one pass.
        maximize: ascend instead.
        differentiable: must be False.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: Duchi, Hazan and Singer, 2011; `torch.optim.Adagrad`, member for member. A group may begin with an
    accumulator of its own, where torch takes the constructor's.
    """

    torch_class = torch.optim.Adagrad
    torch_state = ("sum",)
    kinds: ClassVar[Mapping[str, Kind]] = {
        "lr": LR,
        "lr_decay": at_least(0.0),
        "weight_decay": DECAY,
        "initial_accumulator_value": at_least(0.0),
        "eps": at_least(0.0),
        "maximize": FLAG,
    }

    def states(self, values: Numbers) -> tuple[str, ...]:
        return ("sum",)

    def fresh(self, name: str, values: Numbers) -> HostColumn | float:
        return values["initial_accumulator_value"]

    def numbers(self, values: Numbers, steps: HostColumn, scalars: dict[str, HostColumn]) -> dict[str, HostColumn]:
        found = {k: values[k] for k in ("maximize", "weight_decay", "eps")}
        return found | {"down": -(values["lr"] / (1 + (steps - 1) * values["lr_decay"]))}

    def apply(self, p: Tensor, g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any]) -> None:
        g = decayed(ascended(g, c["maximize"]), p, c["weight_decay"])
        total = state["sum"].addcmul_(g, g, value=1)
        addcdiv_(p, g, total.sqrt().add_(c["eps"]), c["down"])


class RMSprop(TorchOptimizer, FlatOptimizer):
    """RMSprop, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them.
        lr: learning rate, at least 0.
        alpha: how long the running mean lasts; at least 0.
        eps: at least 0.
        weight_decay: L2 penalty, at least 0.
        momentum: at least 0.
        centered: divide by the standard deviation.
        capturable, foreach: accepted and ignored: the step is always one pass.
        maximize: ascend instead.
        differentiable: must be False.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: Tieleman and Hinton, 2012, and Graves, 2013; `torch.optim.RMSprop`, member for member.
    """

    torch_class = torch.optim.RMSprop
    torch_state = ("square_avg", "momentum_buffer", "grad_avg")
    kinds: ClassVar[Mapping[str, Kind]] = {
        "lr": LR,
        "alpha": at_least(0.0),
        "eps": at_least(0.0),
        "weight_decay": DECAY,
        "momentum": at_least(0.0),
        "centered": FLAG,
        "maximize": FLAG,
    }

    def states(self, values: Numbers) -> tuple[str, ...]:
        more = [k for k, v in (("momentum_buffer", "momentum"), ("grad_avg", "centered")) if values[v].any()]
        return ("square_avg", *more)

    def numbers(self, values: Numbers, steps: HostColumn, scalars: dict[str, HostColumn]) -> dict[str, HostColumn]:
        found = {k: values[k] for k in ("maximize", "weight_decay", "alpha", "eps", "momentum", "centered")}
        return found | {"rest": 1 - values["alpha"], "down": -values["lr"], "moving": values["momentum"] > 0}

    def apply(self, p: Tensor, g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any]) -> None:
        g = decayed(ascended(g, c["maximize"]), p, c["weight_decay"])
        square = state["square_avg"]
        addcmul_(square.mul_(c["alpha"]), g, g, c["rest"])
        variance = square
        if "grad_avg" in state:
            mean = state["grad_avg"]
            new = lerp_(mean.clone(), g, c["rest"])
            mean.copy_(choose(c["centered"], new, mean))
            variance = choose(c["centered"], square.addcmul(mean, mean, value=-1), square)
        below = variance.sqrt().add_(c["eps"])
        if "momentum_buffer" not in state or c["moving"] is False:
            addcdiv_(p, g, below, c["down"])
            return
        buffer = state["momentum_buffer"]
        new = (buffer * c["momentum"]).addcdiv_(g, below)
        buffer.copy_(choose(c["moving"], new, buffer))
        if c["moving"] is True:
            add_(p, buffer, c["down"])
        else:
            add_(p, torch.where(c["moving"], buffer, g / below), c["down"])

    def state_for(self, name: str, values: Mapping[str, Any]) -> bool:
        needs = {"momentum_buffer": "momentum", "grad_avg": "centered"}
        return name not in needs or bool(values[needs[name]])
