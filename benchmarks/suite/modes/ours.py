"""hfta_nb: a fused array and its optimizer."""

from __future__ import annotations

import torch
from torch import Tensor

import hfta_nb as hfta
from benchmarks.suite.job import Job
from benchmarks.suite.modes.base import Mode, table
from benchmarks.suite.tasks import Feed


class Ours(Mode):
    """`array.backward` and `hfta_nb.optim.Adam`, the block size tuned first, as a study does."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.loss, self.feed = job.task.loss, Feed(job.task, job.where)
        self.array = hfta.fuse([job.task.member(i).to(job.where) for i in range(job.members)])
        with job.autocast():
            self.array.tune(self.loss, *self.feed(0))
        self.optimizer = hfta.optim.Adam(self.array, lr=job.lrs)
        self.scaler = hfta.optim.GradScaler(self.array) if job.precision == "fp16" else None
        if self.array.block_size < job.members:
            self.note = f"in blocks of {self.array.block_size} of {job.members} members"

    def train(self, steps: int) -> list[Tensor]:
        return [self._step(number) for number in range(self.done, self.done + steps)]

    def losses(self, held: list[Tensor]) -> list[list[float]]:
        return table(held)

    def _step(self, number: int) -> Tensor:
        x, y = self.feed(number)
        self.optimizer.zero_grad()
        losses = self._backward(x, y)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return losses

    def _backward(self, x: Tensor, y: Tensor) -> Tensor:
        with self.job.autocast():
            losses = self.array.backward(self.loss, x, y, scale=None if self.scaler is None else self.scaler.scales)
        assert isinstance(losses, Tensor)
        return losses


class OursSplit(Ours):
    """The split form: `array(x)`, every member's loss, and autograd."""

    def _backward(self, x: Tensor, y: Tensor) -> Tensor:
        with self.job.autocast():
            losses: Tensor = torch.func.vmap(self.loss, in_dims=(0, None))(self.array(x), y)
        (losses if self.scaler is None else losses * self.scaler.scales).sum().backward()
        return losses.detach()
