"""One member after another: eager or compiled."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.suite.job import Job, UnavailableError
from benchmarks.suite.modes.base import Mode
from benchmarks.suite.tasks import Feed

LossOf = Callable[[Any, Any], Tensor]


def adam(parameters: Any, lr: float) -> torch.optim.Adam:
    """Torch's Adam in its fastest form: one fused kernel if it is supported."""
    parameters = list(parameters)
    try:
        return torch.optim.Adam(parameters, lr=lr, fused=True)
    except RuntimeError:  # a device or dtype without it
        return torch.optim.Adam(parameters, lr=lr, foreach=True)


class PlainTrainer:
    """One plain module with torch's own optimizer, used by serial training and by one process per member."""

    def __init__(self, job: Job, module: nn.Module, lr: float, feed: Feed) -> None:
        self.job, self.feed = job, feed
        self.module = module.to(job.where)
        named = dict(self.module.named_parameters())
        updates = job.task.updates(named)
        self.losses: list[LossOf] = [functools.partial(u.loss_of, self.module) for u in updates]
        self.trained = [[named[name] for name in u.trains] for u in updates]
        self.optimizers = [adam(parameters, lr) for parameters in self.trained]
        self.scaler = job.arithmetic.plain_scaler()

    def train(self, begin: int, steps: int) -> list[Tensor]:
        """Steps `begin`, `begin + 1`, ...; gives their losses."""
        return [self.step(number) for number in range(begin, begin + steps)]

    def step(self, number: int) -> Tensor:
        x, y = self.feed(number)
        found = []
        for loss_of, optimizer, trained in zip(self.losses, self.optimizers, self.trained, strict=True):
            optimizer.zero_grad()
            with self.job.autocast():
                loss = loss_of(x, y)
            scaled = loss if self.scaler is None else self.scaler.scale(loss)
            scaled.backward(inputs=trained if len(self.optimizers) > 1 else None)
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
            found.append(loss.detach())
        if self.scaler is not None:
            self.scaler.update()
        return found[0] if len(found) == 1 else torch.stack(found).sum(0)


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
    """Forward, loss and backward compiled by `torch.compile`, once for all members, which use one module in turn."""

    note = "one compiled module, whose tensors are exchanged between members; compile time is in prepare_s"

    def __init__(self, job: Job) -> None:
        if job.where.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
            raise UnavailableError("torch.compile needs a C++ compiler on a CPU, and there is none")
        super().__init__(job)
        self.states = [_State(t) for t in self.trainers]
        self.trainer = self.trainers[0]
        self.trainer.losses = [torch.compile(loss_of, dynamic=False) for loss_of in self.trainer.losses]

    def train(self, steps: int) -> list[list[Tensor]]:
        kept = []
        for state in self.states:
            state.put(self.trainer)
            kept.append(self.trainer.train(self.done, steps))
            state.take(self.trainer)
        return kept


class _State:
    """The state of one member, to be put into another's module."""

    def __init__(self, trainer: PlainTrainer) -> None:
        self.tensors = [t.data for t in _tensors(trainer.module)]
        self.lr = trainer.optimizers[0].param_groups[0]["lr"]
        self.optimizers: list[dict[Any, Any]] = [{} for _ in trainer.optimizers]
        self.scaler = trainer.scaler

    def put(self, trainer: PlainTrainer) -> None:
        for mine, theirs in zip(_tensors(trainer.module), self.tensors, strict=True):
            mine.data = theirs
        for optimizer, state in zip(trainer.optimizers, self.optimizers, strict=True):
            optimizer.state.clear()
            optimizer.state.update(state)
            optimizer.param_groups[0]["lr"] = self.lr
        trainer.scaler = self.scaler

    def take(self, trainer: PlainTrainer) -> None:
        self.optimizers = [dict(optimizer.state) for optimizer in trainer.optimizers]


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]
