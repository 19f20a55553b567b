"""Muon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from hfta_nb.errors import OptimError
from hfta_nb.optim.groups import BY_SHAPE
from hfta_nb.optim.hyperparameters import DECAY, FLAG, LR, HostColumn, Kind, at_least
from hfta_nb.optim.member_optimizers import MemberOptimizer
from hfta_nb.optim.torch_arguments import TorchOptimizer


class Muon(TorchOptimizer, MemberOptimizer):
    """Muon, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them; matrices all (of one member).
        lr: learning rate, at least 0.
        weight_decay: apart from the gradient, at least 0.
        momentum: at least 0.
        nesterov: look ahead.
        ns_coefficients: of the Newton-Schulz polynomial: a triple, or a list of triples, one per member.
        eps: the smallest norm divided by.
        ns_steps: of the Newton-Schulz iteration, below 100.
        adjust_lr_fn: None, "original" or "match_rms_adamw".

    Raises:
        OptimError: a value is out of bounds, a list has not one value per member, or a parameter is no matrix.

    Source: Jordan et al., 2024; `torch.optim.Muon`, which runs here, one member at a time.
    """

    torch_class = torch.optim.Muon
    torch_state = ("momentum_buffer",)
    kinds: ClassVar[Mapping[str, Kind]] = {
        "lr": LR,
        "weight_decay": DECAY,
        "momentum": at_least(0.0),
        "nesterov": FLAG,
        "ns_coefficients": Kind("three numbers", size=3),
        "eps": Kind("a number"),
        "ns_steps": Kind("a whole number below 100", lambda v: 0 <= v < 100 and v == int(v), convert=int),
        "adjust_lr_fn": Kind(
            'None, "original" or "match_rms_adamw"', words=(None, "original", "match_rms_adamw"), convert=str
        ),
    }

    def check(self, values: Mapping[str, HostColumn], parameters: Mapping[str, Tensor], where: str) -> None:
        for name, p in parameters.items():
            if p.ndim != 3 or p.is_complex():
                raise OptimError(
                    "not a matrix of real numbers",
                    where=f"{where}, {name}",
                    got=list(p.shape[1:]),
                    accepted="parameters of two axes (of one member)",
                    remedy=f"give the others to another optimizer; {BY_SHAPE}",
                )
