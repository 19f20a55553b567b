"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hfta_nb.errors import OptimError
from hfta_nb.optim.elementwise_passes import add, add_, ascended, choose, decayed
from hfta_nb.optim.flat import FlatOptimizer
from hfta_nb.optim.flat_state import Numbers
from hfta_nb.optim.fused_kernels import FusedCalls, rows_of, settings_of
from hfta_nb.optim.hyperparameters import DECAY, FLAG, LR, NUMBER, HostColumn, Kind, at_least
from hfta_nb.optim.one_pass import TRIAL, Moving, OnePass, covers
from hfta_nb.optim.segments import Entry, Segment, pass_of
from hfta_nb.optim.torch_arguments import not_differentiable


class SGD(FlatOptimizer):
    """SGD with momentum, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them.
        lr: learning rate, at least 0.
        momentum: at least 0.
        dampening: of the momentum.
        weight_decay: L2 penalty, at least 0.
        nesterov: needs a momentum above 0 and no dampening.
        maximize: ascend instead.
        foreach: accepted and ignored: the step is always one pass.
        fused: on a CPU, True for torch's fused kernel, as there; with dampening, one pass all the same. On a GPU the
            step is one kernel anyway.
        differentiable: must be False.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: `torch.optim.SGD`, member for member.
    """

    torch_class = torch.optim.SGD
    torch_state = ("momentum_buffer",)
    counts_steps = False
    kinds: ClassVar[Mapping[str, Kind]] = {
        "lr": LR,
        "momentum": at_least(0.0),
        "dampening": NUMBER,
        "weight_decay": DECAY,
        "nesterov": FLAG,
        "maximize": FLAG,
    }
    kernel: ClassVar[str] = "sgd"
    trial: ClassVar[Numbers] = {
        **TRIAL,
        "momentum": np.array([0.9, 0.0, 0.5]),
        "dampening": np.array([0.0, 0.0, 0.3]),
        "nesterov": np.array([True, False, False]),
        "maximize": np.array([False, True, False]),
        "start": np.array([-1, -1, 9]),
    }

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        momentum: Any = 0.0,
        dampening: Any = 0.0,
        weight_decay: Any = 0.0,
        nesterov: Any = False,
        *,
        maximize: Any = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        not_differentiable(differentiable, "SGD")
        if fused and foreach:
            raise OptimError("fused and foreach exclude each other", where="SGD", got="both True")
        self.fused = bool(fused)
        given = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, given | {"nesterov": nesterov, "maximize": maximize})

    def check(self, values: Mapping[str, HostColumn], parameters: Mapping[str, Tensor], where: str) -> None:
        rows = zip(values["nesterov"], values["momentum"], values["dampening"], strict=True)
        for i, (on, mu, damp) in enumerate(rows):
            if on and (mu <= 0 or damp != 0):
                raise OptimError(
                    "nesterov needs a momentum above 0 and no dampening",
                    where=f"{where}, member {i}",
                    got={"momentum": float(mu), "dampening": float(damp)},
                )

    def states(self, values: Numbers) -> tuple[str, ...]:
        return ("momentum_buffer",) if values["momentum"].any() else ()

    def fresh_scalars(self, values: Numbers) -> dict[str, HostColumn]:
        return {"begun": np.zeros(len(values["lr"]), dtype=np.float32)}

    def numbers(self, values: Numbers, steps: HostColumn, scalars: dict[str, HostColumn]) -> dict[str, HostColumn]:
        found = {k: values[k] for k in ("maximize", "weight_decay", "momentum", "nesterov")}
        found["down"] = -values["lr"]
        found["rest"] = 1 - values["dampening"]
        found["moving"] = values["momentum"] != 0
        found["first"] = (scalars["begun"] == 0) & found["moving"]
        scalars["begun"] = np.where(found["moving"], 1, scalars["begun"]).astype(np.float32)
        return found

    def fixed(self, values: Numbers) -> dict[str, HostColumn]:
        begun = np.ones(len(values["lr"]))
        return self.numbers(values, begun, {"begun": begun}) | {"start": values["start"]}

    def moving(self, values: Numbers, device: torch.device) -> Moving:
        begins = torch.tensor(values["start"] + 1, dtype=torch.float64, device=device)
        if not begins.any():
            return lambda lr, steps: {"down": -lr}
        return lambda lr, steps: {"down": -lr, "first": steps == begins}

    def apply(self, p: Tensor, g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any]) -> None:
        g = decayed(ascended(g, c["maximize"]), p, c["weight_decay"])
        if "momentum_buffer" in state:
            buffer = state["momentum_buffer"]
            if c["first"] is True:
                buffer.copy_(g)  # the first gradient enters whole
            elif c["moving"] is True and c["first"] is False:
                add_(buffer.mul_(c["momentum"]), g, c["rest"])
            else:
                new = add_(buffer * c["momentum"], g, c["rest"])
                new = choose(c["first"], g, new)
                buffer.copy_(choose(c["moving"], new, buffer))
            ahead = buffer if c["nesterov"] is False else choose(c["nesterov"], add(g, buffer, c["momentum"]), buffer)
            g = choose(c["moving"], ahead, g)
        add_(p, g, c["down"])

    def fused_calls(
        self, segment: Segment, p: Tensor, g: Tensor, state: dict[str, Tensor], values: Numbers
    ) -> FusedCalls | OnePass | None:
        moving, begun = values["momentum"] != 0, segment.scalars["begun"] != 0
        damped = moving & (values["dampening"] != 0)
        # torch's kernel is told whether this is the first step, for all its tensors. Without dampening it need not
        # know: a first gradient enters a momentum of zero whole.
        if not (covers(p) or (self.fused and not damped.any())):
            return None
        segment.scalars["begun"] = (moving | begun).astype(np.float32)
        if covers(p):

            def more(steps: HostColumn) -> Numbers:
                return {"start": np.where(damped & (~begun | (steps == 0)), steps, -1)}

            return pass_of(self, segment, p, g, state, values, more)
        tensors, lrs = [p, g, *state.values()], values["lr"].tolist()
        settings = settings_of(values, ["momentum", "weight_decay", "nesterov", "maximize"])
        old = segment.fused
        if isinstance(old, FusedCalls) and old.over(tensors, settings, lrs):
            return old
        return FusedCalls(_bind, tensors, rows_of(tensors, segment.places), settings, lrs, segment.steps)

    def state_for(self, name: str, values: Mapping[str, Any]) -> bool:
        return bool(values["momentum"] != 0)

    def _to_torch(self, state: dict[str, Any], entry: Entry, index: int) -> dict[str, Any]:
        begun = state.pop("begun", 0)
        return state if begun else {}

    def _from_torch(self, name: str, saved: Mapping[str, Any]) -> Any:
        return float(saved.get("momentum_buffer") is not None)


def _bind(
    tensors: list[list[Tensor]], counts: list[Tensor], settings: Any, lr: float, found_inf: Tensor | None
) -> Callable[[], Any]:
    """The call of torch's kernel."""
    momentum, decay, nesterov, maximize = settings
    given = [*tensors[:2], tensors[2] if momentum else []]
    numbers = {"lr": lr, "momentum": momentum, "weight_decay": decay, "dampening": 0.0}
    flags = {"nesterov": nesterov, "maximize": maximize, "is_first_step": False}
    return partial(torch._fused_sgd_, *given, **numbers, **flags, found_inf=found_inf)
