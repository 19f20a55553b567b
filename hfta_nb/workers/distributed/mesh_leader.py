"""The step of rank 0 of a square of ranks, which the training loop sees: it lets the other ranks do the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from hfta_nb.errors import DistributedError
from hfta_nb.train.step import ArrayStep, Scores, ScoreSink, Step
from hfta_nb.train.step.rollback import on_host
from hfta_nb.workers.distributed.batch_parts import Announced
from hfta_nb.workers.distributed.followers import Followers
from hfta_nb.workers.distributed.grid_products import side_of
from hfta_nb.workers.distributed.mesh_step import MeshStep, check_step
from hfta_nb.workers.distributed.step_recipe import Recipe
from hfta_nb.workers.distributed.transformer_mesh import TransformerMesh


class MeshLeader:
    """The step of rank 0, which the training loop sees; see `Step`, and `leader.Leader`."""

    whole = False

    def __init__(self, own: MeshStep, others: Followers) -> None:
        self.own, self.step, self.others = own, own.step, others

    def __len__(self) -> int:
        return len(self.step)

    def measuring(self, member: int, function: Any) -> AbstractContextManager[None]:
        return self.step.measuring(member, function)

    def train(self, x: Any, y: Any, keep: ScoreSink | None = None) -> Scores:
        with self.others.watched():
            self._send("mesh_train", x, y)
            return self.step.train(x, y, keep)

    def evaluate(self, x: Any, y: Any) -> Scores:
        with self.others.watched():
            self._send("mesh_evaluate", x, y)
            return self.step.evaluate(x, y)

    def _send(self, command: str, x: Any, y: Any) -> None:
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise DistributedError("not tokens and targets of all members", where="mini-batch", got=type(x).__name__,
                                   accepted="two tensors [N, T]", remedy='layout="samples"')  # fmt: skip
        self.others.send(command, Announced.of(x, y))
        for tensor in (x, y):
            self.others.ranks.broadcast_(tensor)

    def end_epoch(self) -> None:
        self.others.send("end_epoch")
        self.step.end_epoch()

    def end_validation(self, values: Sequence[float]) -> None:
        self.others.send("end_validation", list(values))
        self.step.end_validation(values)

    def step_lr_schedulers(self) -> None:
        self.others.send("step_lr_schedulers")
        self.step.step_lr_schedulers()

    def select(self, indices: Sequence[int]) -> MeshLeader:
        self.others.send("mesh_do", "select", list(indices))
        return MeshLeader(self.own.select(indices), self.others)

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.others.send("mesh_do", "load_state", on_host(state))
        self.own.load_state(state)

    def scales(self) -> Tensor | None:
        return None

    def weights(self) -> dict[str, Tensor]:
        with self.others.watched():
            self.others.send("mesh_do", "weights")
            return self.own.weights()

    def unpad(self, index: int) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        return dict

    def state(self) -> dict[str, Any]:
        with self.others.watched():
            self.others.send("mesh_do", "state")
            return self.own.state()


def lead_mesh(others: Followers, step: Step) -> Step:
    """Let all ranks make an array's step, in blocks. A plain module's stays on rank 0.

    Raises:
        DistributedError: the array can't be divided, or is trained in another way than blocks are.
    """
    if not isinstance(step, ArrayStep):
        return step
    check_step(step)
    recipe = Recipe.of(step, "local")
    side = side_of(others.size)
    TransformerMesh.check(recipe.modules, side)  # before anybody builds one
    with others.watched():
        others.send("mesh", recipe)
        return MeshLeader(MeshStep(recipe, others.grid(), step.definition[2]), others)
