"""A rank beside rank 0: it does what rank 0 tells it, and ends with the first error."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from hfta_nb.records.events import Control
from hfta_nb.train.step import ArrayStep
from hfta_nb.workers.distributed.batch_parts import Announced
from hfta_nb.workers.distributed.data_parallel import DataParallel
from hfta_nb.workers.distributed.grid_products import Grid
from hfta_nb.workers.distributed.mesh_step import MeshStep
from hfta_nb.workers.distributed.ranks import Meet, Ranks, connected_by, lines_of
from hfta_nb.workers.distributed.step_recipe import Recipe
from hfta_nb.workers.processes import pickling
from hfta_nb.workers.processes.child import Send, Task
from hfta_nb.workers.processes.frames import Message


class Follower(Task):
    """Makes the steps that rank 0 announces."""

    ranks: Ranks
    step: ArrayStep
    parallel: DataParallel
    lines: Callable[[], tuple[Ranks, Ranks]]
    meshed: MeshStep | None = None
    grid: Grid | None = None

    def do(self, call: Message, payload: bytes, control: Control, report: Send) -> None:
        """Do what is told: one of the methods below."""
        getattr(self, call["command"])(*pickling.unpacked(payload))

    def join(self, meet: Meet, rank: int, size: int, device: str, timeout_s: float) -> None:
        """Meet the other ranks."""
        own = torch.device(device)
        if own.type == "cuda":
            torch.cuda.set_device(own)
        store, host = meet(rank)
        self.ranks = connected_by(store, rank, size, own, timeout_s, host)
        self.lines = partial(lines_of, store, rank, size, own, timeout_s, host)

    def build(self, recipe: Recipe) -> None:
        self.step = recipe.build(self.ranks.device)
        self.parallel = DataParallel(self.step.array, batch_norm=recipe.batch_norm, group=self.ranks)
        self.step.spread(self.parallel)

    def train(self, batch: Announced) -> None:
        self.parallel.samples = batch.samples
        self.step.train(*batch.received(self.ranks))

    def evaluate(self, batch: Announced) -> None:
        self.parallel.samples = batch.samples
        self.step.evaluate(*batch.received(self.ranks))

    def select(self, indices: list[int]) -> None:
        self.step = self.step.select(indices)
        assert isinstance(self.step.devices, DataParallel)  # as it was spread
        self.parallel = self.step.devices

    def load_state(self, state: dict[str, Any]) -> None:
        self.step.load_state(state)
        self.parallel.part_streams()

    def end_epoch(self) -> None:
        self.step.end_epoch()
        if self.meshed is None:
            self.parallel.check()

    def end_validation(self, values: list[float]) -> None:
        self.step.end_validation(values)

    def step_lr_schedulers(self) -> None:
        self.step.step_lr_schedulers()

    # In blocks on a square of ranks.

    def mesh(self, recipe: Recipe) -> None:
        self.grid = self.grid or Grid(self.ranks, *self.lines())
        self._take(MeshStep(recipe, self.grid))

    def _take(self, meshed: MeshStep) -> None:
        self.meshed, self.step = meshed, meshed.step

    def mesh_train(self, batch: Announced) -> None:
        self.step.train(*batch.broadcast(self.ranks))

    def mesh_evaluate(self, batch: Announced) -> None:
        self.step.evaluate(*batch.broadcast(self.ranks))

    def mesh_do(self, what: str, *given: Any) -> None:
        """Take part in what `MeshStep` does."""
        found = getattr(self.meshed, what)(*given)
        if isinstance(found, MeshStep):
            self._take(found)
