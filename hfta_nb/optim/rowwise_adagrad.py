"""Row-wise Adagrad, the optimizer of embedding tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hfta_nb.engine.array.access import sparse_gradients
from hfta_nb.errors import OptimError
from hfta_nb.optim.hyperparameters import LR, HostColumn, Kind, above
from hfta_nb.optim.member_optimizers import MemberOptimizer
from hfta_nb.optim.torch_arguments import TorchOptimizer

_SUM = "row_sum"
"""The state: by row, the sum over steps of the mean squared gradient."""


class PlainRowwiseAdagrad(torch.optim.Optimizer):
    """Row-wise Adagrad of a plain module, in the form of `torch.optim`.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        eps: above 0.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-2, eps: float = 1e-10) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if _SUM not in state:
                    state[_SUM] = p.new_zeros(p.shape[:1])
                if p.grad.is_sparse:
                    grad = p.grad.coalesce()
                    _update_rows(p, state[_SUM], grad.indices()[0], grad.values(), group["lr"], group["eps"])
                else:
                    _update_all(p, state[_SUM], p.grad, group["lr"], group["eps"])
        return loss


class RowwiseAdagrad(TorchOptimizer, MemberOptimizer):
    """Adagrad with one number of state per row of a table, each hyperparameter with one value, or one per member.

    A step adds the mean of a row's squared gradient to the row's sum s, and subtracts ``lr * g / (sqrt(s) + eps)``.
    A row is an index of a parameter's first axis (of one member); the state of all members is ``[M, rows]``.

    Tables of `torch.nn.Embedding` and `torch.nn.EmbeddingBag` with ``sparse=True`` have sparse gradients from now on:
    a step sums what it has looked up twice, and reads and writes the rows that it has looked up, all members' in the
    same calls. Gradients of other parameters are dense. Calls with sparse gradients are not recorded.

    Args:
        params: an array, its parameters, or groups of them. Usually the tables; the rest has another optimizer.
        lr: learning rate, at least 0.
        eps: above 0.

    Raises:
        OptimError: a value is out of bounds, a list has not one value per member, or a parameter is a single number or
            complex.

    Example:
        >>> from hfta_nb import fuse, optim
        >>> array = fuse([torch.nn.EmbeddingBag(1000, 4, mode="sum", sparse=True) for _ in range(3)])
        >>> optimizer = optim.RowwiseAdagrad(array, lr=[0.01, 0.1, 1.0])
        >>> losses = array.backward(lambda output, _: output.square().mean(), torch.tensor([[0, 7, 7]]), torch.ones(1))
        >>> optimizer.step()
        >>> optimizer.state[array.weight]["row_sum"].shape
        torch.Size([3, 1000])

    Source: Mudigere et al., ISCA 2022, section 4.1.4. Duchi et al., 2011, where each number has a sum of its own, is
    `Adagrad`.
    """

    how = "all members' rows at once"
    torch_class = PlainRowwiseAdagrad
    torch_state = (_SUM,)
    kinds: ClassVar[Mapping[str, Kind]] = {"lr": LR, "eps": above(0.0)}

    def check(self, values: Mapping[str, HostColumn], parameters: Mapping[str, Tensor], where: str) -> None:
        for name, p in parameters.items():
            if p.ndim < 2 or p.is_complex():
                raise OptimError("not rows of real numbers", where=f"{where}, {name}", got=list(p.shape[1:]),
                                 accepted="parameters of one axis or more (of one member)",
                                 remedy="give the others to another optimizer")  # fmt: skip

    def _make(self, states: Sequence[Mapping[str, Any]] | None) -> None:
        super()._make(states)
        self._sums: dict[str, Tensor] = {}
        modules = dict(self.array.named_modules())
        for name in (name for names in self._names for name in names):
            if getattr(modules.get(name.rpartition(".")[0]), "sparse", False):
                sparse_gradients(self.array).add(name)

    def _update(self, values: Sequence[Mapping[str, HostColumn]], skip: list[int]) -> None:
        if any(self._padded):  # a row of a padded table has a mean of its own width
            super()._update(values, skip)
            return
        self._sync_values(values)
        for names, group, column in zip(self._names, self.param_groups, values, strict=True):
            for name, p in zip(names, group["params"], strict=True):
                left = {*skip, *self.array.missing_grads.get(name, ())}
                members = [i for i in range(len(self.array)) if i not in left]
                if p.grad is not None and members:
                    self._step_of(name, p.grad, members, column)

    def _step_of(self, name: str, grad: Tensor, members: list[int], values: Mapping[str, HostColumn]) -> None:
        table, sums = self._views[name], self._sums_of(name, members)
        lr, eps = (torch.as_tensor(values[k], dtype=table.dtype, device=table.device) for k in ("lr", "eps"))
        whole = len(members) == len(self.array)
        if grad.is_sparse:
            found = grad.coalesce()
            (member, row), rows = found.indices(), found.values()
            if not whole:
                kept = torch.isin(member, torch.tensor(members, device=member.device))
                member, row, rows = member[kept], row[kept], rows[kept]
            _update_rows(table, sums, (member, row), rows, lr[member], eps[member])
            return
        lr, eps = lr.unsqueeze(1), eps.unsqueeze(1)
        if whole:
            _update_all(table, sums, grad, lr, eps)
        else:
            for i in members:
                _update_all(table[i], sums[i], grad[i], lr[i], eps[i])

    def _sums_of(self, name: str, members: list[int]) -> Tensor:
        """The state of all members ``[M, rows]``, whose rows are those of the members' optimizers."""
        sums, states = self._sums.get(name), [o.state for o in self.members]
        keys = [self._rows[i][name] for i in range(len(self.members))]
        held = [state[key].get(_SUM) if key in state else None for state, key in zip(states, keys, strict=True)]
        if sums is None or any(
            (h is None and i in members) or (h is not None and h.data_ptr() != sums[i].data_ptr())
            for i, h in enumerate(held)
        ):
            table = self._views[name]
            sums = torch.stack([table.new_zeros(table.shape[1:2]) if h is None else h.to(table) for h in held])
            for i, (state, key) in enumerate(zip(states, keys, strict=True)):
                if held[i] is not None or i in members:
                    state[key][_SUM] = sums[i]
            self._sums[name] = sums
        return sums

    def _gradient(self, name: str, grad: Tensor, index: int) -> Tensor:
        return super()._gradient(name, grad.to_dense() if grad.is_sparse else grad, index)


def _update_rows(
    table: Tensor,
    sums: Tensor,
    at: Int[Tensor, " K"] | tuple[Int[Tensor, " K"], Int[Tensor, " K"]],
    rows: Float[Tensor, " K *D"],
    lr: float | Float[Tensor, " K"],
    eps: float | Float[Tensor, " K"],
) -> None:
    """One step of some rows, given their gradients; each row is there once."""
    axes = list(range(1, rows.ndim))
    now = sums[at] + (rows.square().mean(axes) if axes else rows.square())
    sums[at] = now
    factor = lr / (now.sqrt() + eps)
    table[at] -= rows * factor.view(-1, *[1] * len(axes))


def _update_all(table: Tensor, sums: Tensor, grad: Tensor, lr: Any, eps: Any) -> None:
    """One step of all rows; those without a gradient stay as they are."""
    axes = list(range(sums.ndim, table.ndim))
    sums += grad.square().mean(axes) if axes else grad.square()
    factor = lr / (sums.sqrt() + eps)
    table -= grad * factor.view(*sums.shape, *[1] * len(axes))
