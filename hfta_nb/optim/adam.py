"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hfta_nb.engine.kernels.native import adam as native
from hfta_nb.errors import OptimError
from hfta_nb.optim.elementwise_passes import addcdiv_, addcmul_, ascended, choose, decayed, lerp_
from hfta_nb.optim.flat import FlatOptimizer
from hfta_nb.optim.flat_state import Numbers
from hfta_nb.optim.fused_kernels import FusedCalls, rows_of, settings_of
from hfta_nb.optim.hyperparameters import FLAG, OF_ADAM, HostColumn, Kind, power
from hfta_nb.optim.one_pass import TRIAL, Moving, OnePass, covers
from hfta_nb.optim.segments import Segment, pass_of
from hfta_nb.optim.torch_arguments import not_differentiable


class Adam(FlatOptimizer):
    """Adam, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them.
        lr: learning rate, at least 0.
        betas: a pair, or a list of pairs, one per member; each in [0, 1).
        eps: at least 0.
        weight_decay: L2 penalty, at least 0.
        amsgrad: use the largest second moment so far.
        foreach, capturable: accepted and ignored: the step is always one pass, which a CUDA graph can capture.
        maximize: ascend instead.
        fused: on a CPU, True for torch's fused kernel, as there: two to three times as fast, and other in the last
            bit. In float32 on one thread the package's own, where it is compiled, which is as much faster again. On a
            GPU the step is one kernel anyway, whatever the members' hyperparameters.
        differentiable: must be False.
        decoupled_weight_decay: as AdamW.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: Kingma and Ba, 2015, algorithm 1; `torch.optim.Adam`, member for member.
    """

    torch_class: ClassVar[Any] = torch.optim.Adam
    torch_state = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    kinds: ClassVar[Mapping[str, Kind]] = {
        **OF_ADAM,
        **dict.fromkeys(("amsgrad", "maximize", "decoupled_weight_decay"), FLAG),
    }
    kernel: ClassVar[str] = "adam"
    trial: ClassVar[Numbers] = {
        **TRIAL,
        "betas": np.array([[0.9, 0.99], [0.0, 0.5], [0.4, 0.999]]),
        "eps": np.array([1e-3, 1e-2, 1e-3]),
        "amsgrad": np.array([True, False, True]),
        "maximize": np.array([False, True, False]),
        "decoupled_weight_decay": np.array([True, False, False]),
    }

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: Any = 1e-8,
        weight_decay: Any = 0.0,
        amsgrad: Any = False,
        *,
        foreach: bool | None = None,
        maximize: Any = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: Any = False,
    ) -> None:
        not_differentiable(differentiable, type(self).__name__)
        if fused and foreach:
            raise OptimError("fused and foreach exclude each other", where=type(self).__name__, got="both True")
        self.fused = bool(fused)
        given = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(params, given | {"maximize": maximize, "decoupled_weight_decay": decoupled_weight_decay})

    def states(self, values: Numbers) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if values["amsgrad"].any() else []))

    def numbers(self, values: Numbers, steps: HostColumn, scalars: dict[str, HostColumn]) -> dict[str, HostColumn]:
        beta1, beta2 = values["betas"].T
        found = moment_numbers(values)
        found["root"] = power(1 - power(beta2, steps), 0.5)
        found["rate"] = -(values["lr"] / (1 - power(beta1, steps)))
        return found | {"amsgrad": values["amsgrad"], "eps": values["eps"]}

    def fixed(self, values: Numbers) -> dict[str, HostColumn]:
        found = moment_numbers(values) | {"amsgrad": values["amsgrad"], "eps": values["eps"]}
        off = values["weight_decay"] * values["decoupled_weight_decay"]
        return found | {"beta1": values["betas"][:, 0], "off": off}

    def moving(self, values: Numbers, device: torch.device) -> Moving:
        beta1, beta2 = torch.tensor(values["betas"].T, dtype=torch.float64, device=device)
        off = values["weight_decay"] * values["decoupled_weight_decay"]
        there = torch.tensor(off, device=device) if off.any() else None

        def now(lr: Tensor, steps: Tensor) -> dict[str, Tensor]:
            found = {"root": (1 - beta2**steps).sqrt_(), "rate": -(lr / (1 - beta1**steps))}
            return found if there is None else {**found, "keep": 1 - lr * there}

        return now

    def apply(self, p: Tensor, g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any]) -> None:
        g = shrink(p, g, c)
        mean, square = update_moments(g, state, c)
        if "max_exp_avg_sq" in state:
            largest = state["max_exp_avg_sq"]
            new = torch.maximum(largest, square)
            largest.copy_(choose(c["amsgrad"], new, largest))
            square = choose(c["amsgrad"], new, square)
        # The operations and their order are torch's, down to the last bit: chaos makes much of a bit.
        below = torch.sqrt(square, out=self.room(square)).div_(c["root"]).add_(c["eps"])
        addcdiv_(p, mean, below, c["rate"])

    def state_for(self, name: str, values: Mapping[str, Any]) -> bool:
        return name != "max_exp_avg_sq" or bool(values["amsgrad"])

    def fused_calls(
        self, segment: Segment, p: Tensor, g: Tensor, state: dict[str, Tensor], values: Numbers
    ) -> FusedCalls | OnePass | None:
        if covers(p):
            return pass_of(self, segment, p, g, state, values)
        if not self.fused:
            return None
        tensors, lrs = [p, g, *state.values()], values["lr"].tolist()
        settings = settings_of(values, [n for n in self.kinds if n != "lr"])
        old = segment.fused
        if isinstance(old, FusedCalls) and old.over(tensors, settings, lrs):
            return old
        bind = _bind if self.array.strategy == "measured" else _bind_torch
        return FusedCalls(bind, tensors, rows_of(tensors, segment.places), settings, lrs, segment.steps)


def _bind(
    tensors: list[list[Tensor]], counts: list[Tensor], settings: Any, lr: float, found_inf: Tensor | None
) -> Callable[[], Any]:
    """The call of torch's kernel, or the package's own; `settings` in the order of `Adam.kinds`."""
    (beta1, beta2), eps, decay, amsgrad, maximize, apart = settings
    plain = not amsgrad and not maximize and found_inf is None
    if plain and native.usable(tensors[:4]):
        return native.Bound(tensors[:4], counts, (lr, beta1, beta2, eps, decay), bool(apart))
    return _bind_torch(tensors, counts, settings, lr, found_inf)


def _bind_torch(
    tensors: list[list[Tensor]], counts: list[Tensor], settings: Any, lr: float, found_inf: Tensor | None
) -> Callable[[], Any]:
    """The call of torch's kernel."""
    (beta1, beta2), eps, decay, amsgrad, maximize, apart = settings
    numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": decay, "eps": eps}
    kernel = torch._fused_adamw_ if apart else torch._fused_adam_
    given = [*tensors[:4], tensors[4] if amsgrad else []]
    return partial(kernel, *given, counts, **numbers, amsgrad=amsgrad, maximize=maximize, found_inf=found_inf)


class AdamW(Adam):
    """Adam with weight decay apart from the gradient; arguments as `Adam`, `weight_decay` 0.01.

    Source: Loshchilov and Hutter, 2019; `torch.optim.AdamW`, member for member.
    """

    torch_class = torch.optim.AdamW

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: Any = 1e-8,
        weight_decay: Any = 1e-2,
        amsgrad: Any = False,
        *,
        maximize: Any = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )


# The first half of Adam's step, which NAdam and RAdam share.


def moment_numbers(values: Numbers) -> dict[str, HostColumn]:
    """What `shrink` and `update_moments` need."""
    beta1, beta2 = values["betas"].T
    apart = values["decoupled_weight_decay"]
    decay = values["weight_decay"]
    return {
        "maximize": values["maximize"],
        "l2": decay * ~apart,
        "keep": 1 - values["lr"] * (decay * apart),
        "rest1": 1 - beta1,
        "beta2": beta2,
        "rest2": 1 - beta2,
    }


def shrink(p: Tensor, g: Tensor, c: Mapping[str, Any]) -> Tensor:
    """Weight decay of either sort: of the values in place, or in the gradient that is returned."""
    g = ascended(g, c["maximize"])
    if isinstance(c["keep"], Tensor) or c["keep"] != 1:
        p.mul_(c["keep"])
    return decayed(g, p, c["l2"])


def update_moments(g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Running means of gradients and of their squares."""
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    lerp_(mean, g, c["rest1"])
    addcmul_(square.mul_(c["beta2"]), g, g, c["rest2"])
    return mean, square
