"""Adafactor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hfta_nb.errors import OptimError
from hfta_nb.optim.flat import FlatOptimizer
from hfta_nb.optim.flat_state import Numbers
from hfta_nb.optim.passes import add_, ascended, lerp_
from hfta_nb.optim.values import FLAG, LR, HostColumn, Kind, at_least, pair, power


class Adafactor(FlatOptimizer):
    """Adafactor, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them.
        lr: the largest relative step size, at least 0.
        beta2_decay: power of the running means' decay, at most 0.
        eps: a pair, or a list of pairs, one per member: of the squared gradient (None: what the dtype resolves) and of
            the parameter's size; each at least 0.
        d: the largest root mean square of an update, at least 1.
        weight_decay: apart from the gradient, at least 0.
        foreach: accepted and ignored: a parameter's update is that of all members at once.
        maximize: ascend instead.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: Shazeer and Stern, 2018; `torch.optim.Adafactor`, member for member. The statistics are over a parameter's
    own shape; where a member's parameter is padded (``array.owned``), over the member's own entries.
    """

    how = "batched over members, parameter by parameter"
    shaped = True
    torch_class = torch.optim.Adafactor
    kinds: ClassVar[Mapping[str, Kind]] = {
        "lr": LR,
        "beta2_decay": Kind("at most 0", lambda v: v <= 0),
        "eps": pair("a pair, each at least 0, or None for the first", lambda v: v >= 0, words=(None,)),
        "d": at_least(1.0),
        "weight_decay": at_least(0.0),
        "maximize": FLAG,
    }

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-2,
        beta2_decay: Any = -0.8,
        eps: Any = (None, 1e-3),
        d: Any = 1.0,
        weight_decay: Any = 0.0,
        *,
        foreach: bool | None = None,
        maximize: Any = False,
    ) -> None:
        given = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
        super().__init__(params, given | {"maximize": maximize})

    def check(self, values: Mapping[str, HostColumn], parameters: Mapping[str, Tensor], where: str) -> None:
        if np.isnan(values["eps"][:, 1]).any():
            raise OptimError("None for the second", where=f"{where}, eps", accepted=self.kinds["eps"].accepted)
        for name, p in parameters.items():
            if p.is_complex():
                raise OptimError("a complex parameter", where=f"{where}, {name}", accepted="real parameters")

    def states(self, values: Numbers) -> tuple[str, ...]:
        return ("row_var", "col_var") if len(self.segment.spans[0].shape) > 1 else ("variance",)

    def _room(self, name: str, p: Tensor) -> Tensor:
        shape = list(p.shape)
        if name != "variance":
            shape[-1 if name == "row_var" else -2] = 1
        return p.new_empty(shape)

    def numbers(self, values: Numbers, steps: HostColumn, scalars: dict[str, HostColumn]) -> dict[str, HostColumn]:
        own, eps2 = values["eps"].T
        resolution = torch.finfo(self.array.arenas[self.segment.arena].data.dtype).eps
        return {
            "maximize": values["maximize"],
            "weight": power(steps.astype(np.float64), values["beta2_decay"]),
            "rho": np.minimum(values["lr"], 1 / power(steps.astype(np.float64), 0.5)),
            "keep": 1 - values["lr"] * values["weight_decay"],
            "eps1": np.where(np.isnan(own), resolution, own),
            "eps2": eps2,
            "d": values["d"],
        }

    def apply(self, p: Tensor, g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any]) -> None:
        own = self.owned().get(self.segment.spans[0].name)
        own = None if own is None else own.to(p.device)
        shaped = {k: v.reshape(-1, *[1] * (p.ndim - 1)) if isinstance(v, Tensor) else v for k, v in c.items()}
        count = math.prod(p.shape[1:]) if own is None else own.flatten(1).sum(1).clamp(min=1).double()
        g = ascended(g, shaped["maximize"])
        rms = _norm(p) / count**0.5
        rate = torch.fmax(_flat(c["eps2"], rms), rms) * _flat(c["rho"], rms)
        if isinstance(c["keep"], Tensor) or c["keep"] != 1:
            p.mul_(shaped["keep"])
        update = _estimate(g, state, shaped, own)
        update = _at_least(update, _squared(shaped["eps1"])).rsqrt_().mul_(g)
        size = _norm(update) / (count**0.5 * _flat(c["d"], rms))
        down = -rate / torch.fmax(torch.ones_like(size), size)
        add_(p, update, down.to(_wide(p.dtype)).reshape(-1, *[1] * (p.ndim - 1)))


def _estimate(g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any], own: Tensor | None) -> Tensor:
    """The running mean of squared gradients, from those of rows and columns where there are such."""
    if "variance" in state:
        return lerp_(state["variance"], g * g, c["weight"]).clone()
    row, column = state["row_var"], state["col_var"]
    width: Any = g.shape[-1] if own is None else own.sum(-1, keepdim=True).clamp(min=1)
    height: Any = g.shape[-2] if own is None else own.sum(-2, keepdim=True).clamp(min=1)
    lerp_(row, torch.linalg.vector_norm(g, dim=-1, keepdim=True).square_().div_(width), c["weight"])
    lerp_(column, torch.linalg.vector_norm(g, dim=-2, keepdim=True).square_().div_(height), c["weight"])
    if own is None:
        mean = row.mean(-2, keepdim=True)
    else:
        mean = row.sum(-2, keepdim=True) / own.any(-1, keepdim=True).sum(-2, keepdim=True).clamp(min=1)
    return (row * column).div_(_at_least(mean, c["eps1"]))


def _norm(x: Tensor) -> Tensor:
    """Per member, in float64 after the sum, as torch's is once it is a Python number."""
    norms: Tensor = torch.linalg.vector_norm(x.flatten(1) if x.ndim > 1 else x.unsqueeze(1), dim=1)
    return norms.double()


def _flat(value: float | Tensor, like: Tensor) -> Tensor:
    return value.flatten().to(like) if isinstance(value, Tensor) else torch.full_like(like, value)


def _squared(value: Any) -> Any:
    return value * value


def _at_least(x: Tensor, low: Any) -> Tensor:
    return torch.clamp(x, min=low.to(x.dtype) if isinstance(low, Tensor) else low)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
