"""Adafactor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from hfta_nb.errors import OptimError
from hfta_nb.optim.hyperparameters import DECAY, FLAG, LR, HostColumn, Kind, at_least, pair
from hfta_nb.optim.member_optimizers import MemberOptimizer
from hfta_nb.optim.torch_arguments import TorchOptimizer


class Adafactor(TorchOptimizer, MemberOptimizer):
    """Adafactor, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them.
        lr: the largest relative step size, at least 0.
        beta2_decay: power of the running means' decay, at most 0.
        eps: a pair, or a list of pairs, one per member: of the squared gradient (None: what the dtype resolves) and of
            the parameter's size; each at least 0.
        d: the largest root mean square of an update, at least 1.
        weight_decay: apart from the gradient, at least 0.
        foreach: accepted and ignored.
        maximize: ascend instead.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: Shazeer and Stern, 2018; `torch.optim.Adafactor`, which runs here, one member at a time.
    """

    torch_class = torch.optim.Adafactor
    torch_state = ("row_var", "col_var", "variance")
    kinds: ClassVar[Mapping[str, Kind]] = {
        "lr": LR,
        "beta2_decay": Kind("at most 0", lambda v: v <= 0),
        "eps": pair("a pair, each at least 0, or None for the first", lambda v: v >= 0, words=(None,)),
        "d": at_least(1.0),
        "weight_decay": DECAY,
        "maximize": FLAG,
    }

    def check(self, values: Mapping[str, HostColumn], parameters: Mapping[str, Tensor], where: str) -> None:
        if np.isnan(values["eps"][:, 1]).any():
            raise OptimError("None for the second", where=f"{where}, eps", accepted=self.kinds["eps"].accepted)
        for name, p in parameters.items():
            if p.is_complex():
                raise OptimError("a complex parameter", where=f"{where}, {name}", accepted="real parameters")
