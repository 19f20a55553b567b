"""Rprop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from hfta_nb.errors import OptimError
from hfta_nb.optim.hyperparameters import FLAG, LR, HostColumn, Kind, pair
from hfta_nb.optim.member_optimizers import MemberOptimizer
from hfta_nb.optim.torch_arguments import TorchOptimizer


class Rprop(TorchOptimizer, MemberOptimizer):
    """Resilient backpropagation, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them.
        lr: the step size at first, at least 0.
        etas: a pair, or a list of pairs, one per member: what a step size is multiplied by when the gradient's sign
            changes (above 0, below 1) and when it doesn't (above 1).
        step_sizes: the smallest and largest step size; a pair, or a list of pairs.
        capturable, foreach: accepted and ignored.
        maximize: ascend instead.
        differentiable: must be False.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: Riedmiller and Braun, 1993; `torch.optim.Rprop`, which runs here, one member at a time.
    """

    torch_class = torch.optim.Rprop
    torch_state = ("prev", "step_size")
    kinds: ClassVar[Mapping[str, Kind]] = {
        "lr": LR,
        "etas": pair("0 < etas[0] < 1 < etas[1]"),
        "step_sizes": pair("a pair of numbers"),
        "maximize": FLAG,
    }

    def check(self, values: Mapping[str, HostColumn], parameters: Mapping[str, Tensor], where: str) -> None:
        for i, (minus, plus) in enumerate(values["etas"].tolist()):
            if not 0 < minus < 1 < plus:
                raise OptimError("out of bounds", where=f"{where}, etas, member {i}", got=(minus, plus),
                                 accepted=self.kinds["etas"].accepted)  # fmt: skip
