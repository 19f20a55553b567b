"""Trains an array and its members alone with any optimizer: closures, sparse gradients, matrices only."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.optim import ArrayOptimizer
from tests.contract.optim_rows import OptimizerRow
from tests.contract.serial import largest, loss_of, make, plain

CPU = torch.device("cpu")


def setup(
    device: torch.device = CPU, dtype: torch.dtype = torch.float64, build: Callable[[], nn.Module] = plain
) -> tuple[list[nn.Module], Tensor, Tensor]:
    """Three members, and a mini-batch of six with its targets."""
    modules = make(build, 3, dtype, device)
    torch.manual_seed(0)
    return modules, torch.randn(6, 5, dtype=dtype, device=device), torch.randn(6, 3, dtype=dtype, device=device)


def parameters_for(row: OptimizerRow, module: nn.Module, axes: int = 2) -> list[nn.Parameter]:
    """All parameters, or those that the optimizer takes: Muon's are matrices."""
    return [p for p in module.parameters() if row.name != "Muon" or p.ndim == axes]


def make_optimizer(row: OptimizerRow, array: FusedArray) -> ArrayOptimizer:
    params = parameters_for(row, array, 3) if row.name == "Muon" else array
    return getattr(hfta.optim, row.name)(params, **row.settings)


def torch_optimizer(row: OptimizerRow, module: nn.Module, member: int) -> torch.optim.Optimizer:
    """Torch's own, with the member's settings."""
    return row.plain_class(parameters_for(row, module), **row.alone(member))


def sparsify(optimizer: Any, parameters: Iterable[nn.Parameter]) -> None:
    """SparseAdam alone wants its gradients sparse."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        for p in parameters:
            p.grad = p.grad.to_sparse(1)


def _bowl(values: list[Tensor], member: int) -> float:
    """A loss, and its gradients in `.grad`, by operations that don't mix entries."""
    total = 0.0
    for k, p in enumerate(values):
        place = torch.arange(p.numel(), dtype=p.dtype, device=p.device).view(p.shape)
        aim = torch.cos(place * (1 + k) + member)
        total += float((p.detach() - aim).square().add(torch.cos(p.detach())).sum())
        p.grad = 2 * (p.detach() - aim) - torch.sin(p.detach())
    return total


def step_with_equal_gradients(
    array: FusedArray, optimizer: Any, modules: list[nn.Module], alone: list[torch.optim.Optimizer]
) -> None:
    """One step of the array and of each member, with gradients that are equal to the last bit where the values are."""

    def together() -> Tensor:
        rows = [[p.detach()[i].clone() for p in array.parameters()] for i in range(len(array))]
        losses = [_bowl(row, i) for i, row in enumerate(rows)]
        for k, p in enumerate(array.parameters()):
            p.grad = torch.stack([row[k].grad for row in rows])
        return torch.tensor(losses, dtype=torch.float64)

    if isinstance(optimizer, hfta.optim.LBFGS):
        optimizer.step(together)
    else:
        together()
        optimizer.step()
    for i, (module, own) in enumerate(zip(modules, alone, strict=True)):
        values = list(module.parameters())
        if isinstance(own, torch.optim.LBFGS):
            own.step(lambda values=values, i=i: _bowl(values, i))
        else:
            _bowl(values, i)
            sparsify(own, values)
            own.step()


class Twins:
    """An array with an optimizer of a row, and its members as plain modules, each with torch's own."""

    def __init__(
        self, row: OptimizerRow, modules: list[nn.Module] | None = None, seeds: list[int] | None = None
    ) -> None:
        self.modules = setup()[0] if modules is None else modules
        self.array = hfta.fuse(self.modules, seeds)
        self.optimizer: Any = make_optimizer(row, self.array)
        self.alone: list[Any] = [torch_optimizer(row, m, i) for i, m in enumerate(self.modules)]

    def all(self) -> Iterator[tuple[nn.Module, Any]]:
        """The array, then each plain module, with what steps it."""
        return zip((self.array, *self.modules), (self.optimizer, *self.alone), strict=True)

    def steps(self, count: int) -> None:
        """With gradients that are equal to the last bit."""
        for _ in range(count):
            step_with_equal_gradients(self.array, self.optimizer, self.modules, self.alone)

    def wave(self, gradient: Callable[[Tensor], Tensor], count: int = 1) -> None:
        """With gradients that are this function of each value."""
        for _ in range(count):
            for module, optimizer in self.all():
                for p in module.parameters():
                    p.grad = gradient(p.detach())
                sparsify(optimizer, module.parameters())
                optimizer.step()

    def equal(self, tolerance: float = 1e-10) -> None:
        assert largest(self.array, self.modules) <= tolerance

    def same_bits(self) -> None:
        for i, module in enumerate(self.modules):
            for p, q in zip(self.array.parameters(), module.parameters(), strict=True):
                assert torch.equal(p[i], q)


def train_array(array: FusedArray, optimizer: Any, x: Tensor, y: Tensor, steps: int, scheduler: Any = None) -> None:
    def closure() -> Any:
        optimizer.zero_grad()
        return array.backward(loss_of, x, y)

    for _ in range(steps):
        if isinstance(optimizer, hfta.optim.LBFGS):
            losses = optimizer.step(closure)
        else:
            losses = closure()
            optimizer.step()
        if isinstance(scheduler, hfta.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(losses)
        elif scheduler is not None:
            scheduler.step()


def train_member(
    module: nn.Module, seed: int | None, optimizer: Any, x: Tensor, y: Tensor, steps: int, scheduler: Any = None
) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(module(x), y)
        loss.backward()
        return loss

    if seed is not None:
        torch.manual_seed(seed)
    for _ in range(steps):
        if isinstance(optimizer, torch.optim.LBFGS):
            loss = optimizer.step(closure)
        else:
            loss = closure()
            sparsify(optimizer, module.parameters())
            optimizer.step()
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(loss.detach())
        elif scheduler is not None:
            scheduler.step()


def through_file(state: Any) -> Any:
    """Saved, and loaded with nothing but tensors and plain data allowed."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
