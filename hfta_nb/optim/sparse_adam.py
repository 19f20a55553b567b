"""SparseAdam."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from hfta_nb.errors import OptimError
from hfta_nb.optim.hyperparameters import BETAS, FLAG, HostColumn, Kind, above
from hfta_nb.optim.member_optimizers import MemberOptimizer
from hfta_nb.optim.torch_arguments import TorchOptimizer


class SparseAdam(TorchOptimizer, MemberOptimizer):
    """Adam of the rows that a step has touched, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them.
        lr: learning rate, above 0.
        betas: a pair, or a list of pairs, one per member; each in [0, 1).
        eps: above 0.
        maximize: ascend instead.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Source: `torch.optim.SparseAdam`, which runs here, one member at a time. An array's gradients are dense: the rows
    (along the first axis) that are not all zero are taken as touched; torch also counts rows that were used and whose
    gradient is exactly zero. A sparse ``.grad`` of ``[M, ...]`` is taken as it is.
    """

    torch_class = torch.optim.SparseAdam
    kinds: ClassVar[Mapping[str, Kind]] = {"lr": above(0.0), "betas": BETAS, "eps": above(0.0), "maximize": FLAG}

    def check(self, values: Mapping[str, HostColumn], parameters: Mapping[str, Tensor], where: str) -> None:
        for name, p in parameters.items():
            if p.is_complex():
                raise OptimError("a complex parameter", where=f"{where}, {name}", accepted="real parameters")

    def _gradient(self, name: str, grad: Tensor, index: int) -> Tensor:
        if grad.is_sparse:
            if name not in self._padded[index]:
                return grad.coalesce()[index]
            grad = grad.to_dense()
        row = super()._gradient(name, grad, index)
        return row.to_sparse(1) if row.ndim else row.to_sparse()
