"""One member after another, as people train today: eager, or compiled."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.suite.job import Job, UnavailableError
from benchmarks.suite.modes.base import Mode
from benchmarks.suite.tasks import Feed


def adam(parameters: Any, lr: float) -> torch.optim.Adam:
    """torch's Adam in its fastest form: one fused kernel where that runs."""
    parameters = list(parameters)
    try:
        return torch.optim.Adam(parameters, lr=lr, fused=True)
    except RuntimeError:  # a device or dtype without it
        return torch.optim.Adam(parameters, lr=lr, foreach=True)


class PlainTrainer:
    """One plain module with torch's own optimizer; what serial and one process per member run."""

    def __init__(self, job: Job, module: nn.Module, lr: float, feed: Feed) -> None:
        self.job, self.feed, loss = job, feed, job.task.loss
        self.module = module = module.to(job.where)
        self.loss_of: Callable[[Any, Any], Tensor] = lambda x, y: loss(module(x), y)
        self.optimizer = adam(self.module.parameters(), lr)
        self.scaler = torch.amp.GradScaler(job.where.type) if job.precision == "fp16" else None

    def train(self, begin: int, steps: int) -> list[Tensor]:
        """Steps `begin`, `begin + 1`, ...; gives their losses."""
        return [self.step(number) for number in range(begin, begin + steps)]

    def step(self, number: int) -> Tensor:
        x, y = self.feed(number)
        self.optimizer.zero_grad()
        with self.job.autocast():
            loss = self.loss_of(x, y)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.detach()


class Serial(Mode):
    """Every member in turn trains all steps of a lap, eagerly."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        feed, task = Feed(job.task, job.where), job.task
        self.trainers = [PlainTrainer(job, task.member(i), lr, feed) for i, lr in enumerate(job.lrs)]

    def train(self, steps: int) -> list[list[Tensor]]:
        return [trainer.train(self.done, steps) for trainer in self.trainers]

    def losses(self, held: list[list[Tensor]]) -> list[list[float]]:
        by_member: list[list[float]] = torch.stack([torch.stack(one) for one in held]).double().cpu().t().tolist()
        return by_member


class Compiled(Serial):
    """Forward, loss and backward compiled by `torch.compile`, once for all members, which take turns in one module."""

    note = "one compiled module, whose tensors are exchanged between members; compile time is in prepare_s"

    def __init__(self, job: Job) -> None:
        if job.where.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
            raise UnavailableError("torch.compile needs a C++ compiler on a CPU, and there is none")
        super().__init__(job)
        torch.compiler.reset()
        self.states = [_State(t) for t in self.trainers]
        self.trainer = self.trainers[0]
        self.trainer.loss_of = torch.compile(self.trainer.loss_of, dynamic=False)

    def train(self, steps: int) -> list[list[Tensor]]:
        kept = []
        for state in self.states:
            state.put(self.trainer)
            kept.append(self.trainer.train(self.done, steps))
            state.optimizer = dict(self.trainer.optimizer.state)
        return kept

    def close(self) -> None:
        torch.compiler.reset()


class _State:
    """What tells one member from another, to be put into another's module."""

    def __init__(self, trainer: PlainTrainer) -> None:
        self.tensors = [t.data for t in _tensors(trainer.module)]
        self.lr = trainer.optimizer.param_groups[0]["lr"]
        self.optimizer: dict[Any, Any] = {}
        self.scaler = trainer.scaler

    def put(self, trainer: PlainTrainer) -> None:
        for mine, theirs in zip(_tensors(trainer.module), self.tensors, strict=True):
            mine.data = theirs
        trainer.optimizer.state.clear()
        trainer.optimizer.state.update(self.optimizer)
        trainer.optimizer.param_groups[0]["lr"] = self.lr
        trainer.scaler = self.scaler


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]
