"""An array's optimizer, lr scheduler and clipping, as the training axes of its members name them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb import optim
from hfta_nb.array import FusedArray
from hfta_nb.errors import OptimError
from hfta_nb.optim.fused import available
from hfta_nb.optim.lr_scheduler import ArrayLRScheduler
from hfta_nb.step.protocol import Row


def make_optimizer(params: Any, rows: Sequence[Row]) -> optim.ArrayOptimizer:
    """The optimizer that the rows name, with a value per member, of an array or some of its parameters.

    By torch's fused kernels, as in `PlainStep`, where there are such.
    """

    def column(name: str) -> list[Any]:
        return [row[name] for row in rows]

    kind = rows[0]["optimizer"]
    fused = available(params.parameters() if isinstance(params, FusedArray) else params)
    common: dict[str, Any] = {"lr": column("lr"), "weight_decay": column("weight_decay"), "fused": fused}
    if kind == "sgd":
        sgd = optim.SGD(params, momentum=column("momentum"), nesterov=column("nesterov"), **common)
        sgd.capturable = fused  # torch's has no argument of this name
        return sgd
    betas = list(zip(column("beta1"), column("beta2"), strict=True))
    if kind in ("adam", "adamw"):
        made = optim.Adam if kind == "adam" else optim.AdamW
        return made(params, betas=betas, eps=column("eps"), capturable=fused, **common)
    raise OptimError("unknown optimizer", got=kind, accepted="sgd, adam, adamw")


def limits_of(rows: Sequence[Row], device: torch.device) -> Tensor | None:
    """The norm to which each member's gradients are clipped, ``[M]``, infinite for none; None where all are."""
    limits = [row.get("max_norm") for row in rows]
    if all(limit is None for limit in limits):
        return None
    return torch.tensor([math.inf if v is None else v for v in limits], dtype=torch.float64, device=device)


def make_lr_scheduler(optimizer: optim.ArrayOptimizer, rows: Sequence[Row], epochs: int) -> ArrayLRScheduler | None:
    """The lr scheduler that the rows name, with a setting per member; None for "none"."""
    kind = rows[0]["lr_scheduler"]
    if kind == "step":
        sizes, gammas = [r["step_size"] for r in rows], [r["gamma"] for r in rows]
        return optim.lr_scheduler.StepLR(optimizer, step_size=sizes, gamma=gammas)
    if kind == "cosine":
        lengths, lows = [r["t_max"] or epochs for r in rows], [r["eta_min"] for r in rows]
        return optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=lengths, eta_min=lows)
    return None
