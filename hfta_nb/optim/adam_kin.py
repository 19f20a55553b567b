"""Adamax, NAdam and RAdam."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hfta_nb.optim.adam import moment_numbers, shrink, update_moments
from hfta_nb.optim.elementwise_passes import add_, addcdiv_, ascended, choose, decayed, lerp_
from hfta_nb.optim.flat import FlatOptimizer, scalar_dtype
from hfta_nb.optim.flat_state import Numbers
from hfta_nb.optim.hyperparameters import FLAG, OF_ADAM, HostColumn, Kind, at_least, power
from hfta_nb.optim.torch_arguments import TorchOptimizer


class Adamax(TorchOptimizer, FlatOptimizer):
    """Adamax, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them.
        lr, betas, eps, weight_decay, maximize: as for `Adam`.
        foreach, capturable: accepted and ignored: the step is always one pass.
        differentiable: must be False.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: Kingma and Ba, 2015, algorithm 2; `torch.optim.Adamax`, member for member.
    """

    torch_class = torch.optim.Adamax
    torch_state = ("exp_avg", "exp_inf")
    kinds: ClassVar[Mapping[str, Kind]] = {**OF_ADAM, "maximize": FLAG}

    def states(self, values: Numbers) -> tuple[str, ...]:
        return "exp_avg", "exp_inf"

    def numbers(self, values: Numbers, steps: HostColumn, scalars: dict[str, HostColumn]) -> dict[str, HostColumn]:
        beta1, beta2 = values["betas"].T
        found = {k: values[k] for k in ("maximize", "weight_decay", "eps")}
        return found | {"rest1": 1 - beta1, "beta2": beta2, "rate": -(values["lr"] / (1 - power(beta1, steps)))}

    def apply(self, p: Tensor, g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any]) -> None:
        g = decayed(ascended(g, c["maximize"]), p, c["weight_decay"])
        mean, largest = state["exp_avg"], state["exp_inf"]
        lerp_(mean, g, c["rest1"])
        largest.copy_(torch.maximum(largest.mul_(c["beta2"]), g.abs().add_(c["eps"])))
        addcdiv_(p, mean, largest, c["rate"])


class NAdam(TorchOptimizer, FlatOptimizer):
    """Adam with Nesterov momentum, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them.
        lr, betas, eps, weight_decay, maximize, decoupled_weight_decay: as for `Adam`.
        momentum_decay: at least 0.
        foreach, capturable: accepted and ignored: the step is always one pass.
        differentiable: must be False.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: Dozat, 2016; `torch.optim.NAdam`, member for member, its product of momenta in float32 included.
    """

    torch_class = torch.optim.NAdam
    torch_state = ("exp_avg", "exp_avg_sq", "mu_product")
    kinds: ClassVar[Mapping[str, Kind]] = {
        **OF_ADAM,
        "momentum_decay": at_least(0.0),
        "decoupled_weight_decay": FLAG,
        "maximize": FLAG,
    }

    def states(self, values: Numbers) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def fresh_scalars(self, values: Numbers) -> dict[str, HostColumn]:
        return {"mu_product": np.ones(len(values["lr"]), dtype=scalar_dtype())}

    def numbers(self, values: Numbers, steps: HostColumn, scalars: dict[str, HostColumn]) -> dict[str, HostColumn]:
        beta1, beta2 = values["betas"].T
        lr, decay = values["lr"], values["momentum_decay"]
        base = np.full(len(lr), 0.96)
        now = beta1 * (1.0 - 0.5 * power(base, steps * decay))
        after = beta1 * (1.0 - 0.5 * power(base, (steps + 1) * decay))
        scalars["mu_product"] = scalars["mu_product"] * now.astype(scalars["mu_product"].dtype)
        product = scalars["mu_product"].astype(np.float64)
        return moment_numbers(values) | {
            "bias2": 1 - power(beta2, steps),
            "eps": values["eps"],
            "of_gradient": (-lr * (1.0 - now)) / (1.0 - product),
            "of_mean": (-lr * after) / (1.0 - product * after),
        }

    def apply(self, p: Tensor, g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any]) -> None:
        g = shrink(p, g, c)
        mean, square = update_moments(g, state, c)
        below = square.div(c["bias2"]).sqrt_().add_(c["eps"])
        addcdiv_(p, g, below, c["of_gradient"])
        addcdiv_(p, mean, below, c["of_mean"])


class RAdam(TorchOptimizer, FlatOptimizer):
    """Adam with a rectified variance, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them.
        lr, betas, eps, weight_decay, maximize, decoupled_weight_decay: as for `Adam`.
        foreach, capturable: accepted and ignored: the step is always one pass.
        differentiable: must be False.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: Liu et al., 2020; `torch.optim.RAdam`, member for member.
    """

    torch_class = torch.optim.RAdam
    torch_state = ("exp_avg", "exp_avg_sq")
    kinds: ClassVar[Mapping[str, Kind]] = {**OF_ADAM, "decoupled_weight_decay": FLAG, "maximize": FLAG}

    def states(self, values: Numbers) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def numbers(self, values: Numbers, steps: HostColumn, scalars: dict[str, HostColumn]) -> dict[str, HostColumn]:
        beta1, beta2 = values["betas"].T
        bias2 = 1 - power(beta2, steps)
        most = 2 / (1 - beta2) - 1
        length = most - 2 * steps * power(beta2, steps) / bias2
        rectified = length > 5.0
        with np.errstate(all="ignore"):  # too short a past has no rectification, and is not asked for it
            under = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        return moment_numbers(values) | {
            "bias1": 1 - power(beta1, steps),
            "lr": values["lr"],
            "eps": values["eps"],
            "rectified": rectified,
            "root2": power(bias2, 0.5),
            "rectification": power(np.where(rectified, under, 1.0), 0.5),
        }

    def apply(self, p: Tensor, g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any]) -> None:
        g = shrink(p, g, c)
        mean, square = update_moments(g, state, c)
        update = torch.div(mean, c["bias1"]).mul_(c["lr"])
        if c["rectified"] is not False:
            adaptive = c["root2"] / square.sqrt().add_(c["eps"])
            update = choose(c["rectified"], adaptive.mul_(update).mul_(c["rectification"]), update)
        add_(p, update, -1.0)
