"""The step of an array whose matrices lie in blocks on a square of ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.array import FusedArray
from hfta_nb.errors import DistributedError
from hfta_nb.models.losses import is_cross_entropy
from hfta_nb.models.metrics import Metric
from hfta_nb.optim.flat import FlatOptimizer
from hfta_nb.optim.muon import Muon
from hfta_nb.train.step import ArrayStep, Precision
from hfta_nb.workers.distributed.grid_products import Grid
from hfta_nb.workers.distributed.outputs import Part, marked, through
from hfta_nb.workers.distributed.step_recipe import Recipe
from hfta_nb.workers.distributed.transformer_mesh import TransformerMesh, key_of


class MeshDevices:
    """Computes losses, gradients and scores of a mesh; see `SeveralDevices`.

    Args:
        mesh: the blocks of this rank.
        scored: whether there are scores beside the loss. For these each rank has the whole outputs for a moment.
    """

    def __init__(self, mesh: TransformerMesh, scored: bool) -> None:
        self.mesh, self.scored = mesh, scored
        self._through = through(mesh.array)

    def backward(
        self,
        loss_fn: Callable[..., Any],
        x: Any,
        y: Any = None,
        *,
        has_aux: bool = False,
        scale: Tensor | None = None,
        only: Collection[str] | None = None,
    ) -> Any:
        """See `FusedArray.backward`; the loss is the cross entropy."""
        losses, logits = self.mesh.trained(x, y)
        return (losses, self._scores(loss_fn, logits, x, y)) if has_aux else losses

    @torch.no_grad()
    def evaluate(self, function: Callable[..., Any], x: Any, y: Any = None) -> Any:
        """See `FusedArray.evaluate`; the function gives the cross entropy and scores."""
        losses = self.mesh.evaluate(x, y)
        return losses, self._scores(function, self.mesh.logits(x), x, y) if self.scored else {}

    def of(self, array: FusedArray) -> MeshDevices:
        """The same for an array of some of the members."""
        return MeshDevices(self.mesh.of(array), self.scored)

    def _scores(self, function: Callable[..., Any], logits: Tensor, x: Tensor, y: Any) -> Any:
        if not self.scored:
            return {}
        return self._through.evaluate(Part(function, 1), marked(self.mesh.outputs(logits, len(x))), y)


class MeshStep:
    """One rank's step: its blocks, and the whole state as one device has it.

    Args:
        recipe: of the array's step.
        grid: the ranks.
        metrics: those of rank 0; the others compute nothing of them.
    """

    def __init__(self, recipe: Recipe, grid: Grid, metrics: Mapping[str, Metric] | None = None) -> None:
        device = grid.ranks.device
        mesh = TransformerMesh(recipe.modules, grid=grid, device=device)
        beside = recipe.beside() if metrics is None else metrics
        self.step = ArrayStep(mesh.array, recipe.rows, recipe.objective, beside, recipe.epochs,
                              Precision(recipe.precision, device), recipe.steps_per_epoch)  # fmt: skip
        self.step.spread(MeshDevices(mesh, recipe.metrics))
        check_step(self.step)

    @property
    def mesh(self) -> TransformerMesh:
        """The blocks."""
        assert isinstance(self.step.devices, MeshDevices)  # as it was spread
        return self.step.devices.mesh

    def select(self, indices: Sequence[int]) -> MeshStep:
        """These members alone."""
        other = copy.copy(self)
        other.step = self.step.select(indices)
        return other

    def weights(self) -> dict[str, Tensor]:
        """The whole parameters, on all ranks."""
        return self.mesh.weights()

    def state(self) -> dict[str, Any]:
        """As the step of one device gives it, on all ranks."""
        found, mesh = self.step.state(), self.mesh
        optimizers = [_renamed(o, mesh, mesh.whole, to_block=False) for o in found["optimizers"]]
        buffers = {name: buffer.expand(len(self.step), *buffer.shape) for name, buffer in mesh.buffers.items()}
        return {**found, "array": {**mesh.weights(), **buffers}, "optimizers": optimizers}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take what `state` gave, or the step of one device."""
        mesh, device = self.mesh, self.mesh.grid.ranks.device
        whole = {name: value.to(device) for name, value in state["array"].items() if name in mesh.shapes}
        array = {key_of(name): mesh.block(name, value) for name, value in whole.items()}
        optimizers = [_renamed(o, mesh, mesh.block, to_block=True) for o in state["optimizers"]]
        self.step.load_state({**state, "array": array, "optimizers": optimizers})


def check_step(step: ArrayStep) -> None:
    """See that a step is one of blocks.

    Raises:
        DistributedError: it needs more than a block of a parameter, or another loss.
    """
    objective = step.definition[1]
    for what, wrong in _needs(step, objective):
        if wrong:
            raise DistributedError(f"{what} can't be trained in blocks", where='layout="mesh"',
                                   remedy='layout="samples", or leave it out')  # fmt: skip


def _needs(step: ArrayStep, objective: Any) -> Iterator[tuple[str, bool]]:
    yield "another loss than the cross entropy", not is_cross_entropy(objective)
    yield "a remedy for imbalanced classes", any(update.settings for update in step.updates)
    yield "max_norm, a norm of whole gradients,", any(update.limits is not None for update in step.updates)
    yield "averages of weights", step.extras.averages is not None
    yield "accumulated gradients", step.extras.accumulation is not None
    yield f"precision {step.precision.name}", step.precision.name != "fp32"
    for update in step.updates:
        kind = type(update.optimizer)
        elementwise = issubclass(kind, FlatOptimizer) and not issubclass(kind, Muon)
        yield f"{kind.__name__}, whose update is not elementwise,", not elementwise


def _renamed(
    optimizer: Mapping[str, Any], mesh: TransformerMesh, moved: Callable[[str, Tensor], Tensor], to_block: bool
) -> dict[str, Any]:
    """An optimizer's state with the parameters' other names, and its tensors as blocks or as wholes."""
    names = {key_of(name): name for name in mesh.shapes}
    plain = {new: new for new in names.values()} if to_block else names

    def other(name: str) -> str:
        return key_of(name) if to_block else names[name]

    groups = [{**group, "params": [other(name) for name in group["params"]]} for group in optimizer["param_groups"]]
    state = {
        other(name): {**saved, "tensors": {k: moved(plain[name], v.to(mesh.grid.ranks.device))
                                           for k, v in saved["tensors"].items()}}
        for name, saved in optimizer["state"].items()
    }  # fmt: skip
    return {**optimizer, "param_groups": groups, "state": state}
