"""hfta_nb: the training step of a study, and the split form written by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import hfta_nb as hfta
from benchmarks.suite.job import Job, UnavailableError
from benchmarks.suite.modes.base import Mode, table
from benchmarks.suite.tasks import Feed, Update, inputs
from hfta_nb.engine.eager.gradients import Arguments
from hfta_nb.train.step import ArrayStep

ADAM = {"optimizer": "adam", "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "lr_scheduler": "none"}
"""A study's training axes; the values are those of `torch.optim.Adam`."""

TUNING_S = 0.3


class Ours(Mode):
    """`hfta_nb.train.step.ArrayStep`, the step of a study: tuned block size, `array.backward`, the optimizer."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.feed = Feed(job.task, job.where)
        self.array = hfta.fuse([job.task.member(i).to(job.where) for i in range(job.members)])
        self._prepare()
        size, on = self.array.block_size, self.array.threads
        words = [f"in blocks of {size} of {job.members} members"] if size < job.members else []
        words += [{"one": "on one thread", "blocks": "side by side"}[on]] if on != "kernels" else []
        self.note = ", ".join(words)

    def _prepare(self) -> None:
        task = self.job.task
        rows = [{**ADAM, "lr": lr} for lr in self.job.lrs]
        self.stepper = ArrayStep(
            self.array, rows, task.phases or task.loss, {}, epochs=1, precision=self.job.arithmetic
        )
        self.optimizers: list[Any] = [update.optimizer for update in self.stepper.updates]
        self._tune()

    def _tune(self) -> None:
        """Tune in advance: the comparison is with a warm study."""
        if len(self.array) > 1 or torch.get_num_threads() > 1:
            self.stepper.tune(*self.feed(0), TUNING_S)

    def train(self, steps: int) -> list[Tensor]:
        return [self._step(number) for number in range(self.done, self.done + steps)]

    def losses(self, held: list[Tensor]) -> list[list[float]]:
        return table(held)

    def _step(self, number: int) -> Tensor:
        return self.stepper.train(*self.feed(number))["loss"]


class AsStudy(Ours):
    """The same with the start of a study: the first training steps find the fastest schedule."""

    def _tune(self) -> None:
        self.stepper.tune_at_first()


class OursCompiled(Ours):
    """The same with steps compiled by `torch.compile`'s compiler, whether that is faster or not."""

    def _prepare(self) -> None:
        super()._prepare()
        self.stepper.plan("always", 0.0, brief=False)

    def train(self, steps: int) -> list[Tensor]:
        losses = super().train(steps)
        decided = self.array._calls.steps.decisions()
        refused = [note for note in decided if note.startswith("not compiled")]
        if refused or (self.done + steps >= self.job.check_steps and not decided):
            raise UnavailableError("; ".join(refused or self.array._calls.steps.notes()))
        if decided and decided[0] not in self.note:
            self.note = "; ".join([self.note] * bool(self.note) + decided)
        return losses


class Together(Ours):
    """The same with all members in one block, whether that is faster or not."""

    def _tune(self) -> None:
        pass


class CompiledTogether(Together, OursCompiled):
    """The same compiled."""


class OursSplit(Ours):
    """The split form as users write it: `array(x)`, `array.losses`, autograd."""

    def _prepare(self) -> None:
        job, named = self.job, dict(self.array.named_parameters())
        self.updates = job.task.updates(named)
        self._tune()
        several = len(self.updates) > 1
        self.trained = [[named[name] for name in u.trains] if several else None for u in self.updates]
        self.optimizers = [hfta.optim.Adam(some or self.array, lr=job.lrs, fused=True) for some in self.trained]
        self.scaler = job.arithmetic.array_scaler(self.array)

    def _step(self, number: int) -> Tensor:
        x, y = self.feed(number)
        found = []
        for update, trained, optimizer in zip(self.updates, self.trained, self.optimizers, strict=True):
            optimizer.zero_grad()
            found.append(self._backward(update, trained, x, y))
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
        if self.scaler is not None:
            self.scaler.update()
        return found[0] if len(found) == 1 else torch.stack(found).sum(0)

    def _tune(self) -> None:
        x, y = self.feed(0)
        with self.job.autocast():
            if len(self.updates) == 1:
                self.array.tune(self.updates[0].loss, x, y)
                return
            # As in a study: the block size that is best for all updates together.
            total: dict[int, float] = {}
            for update in self.updates:
                self.array.block_size = len(self.array)
                laps = self.array.tune(update.loss, Arguments(x, update.words), y, only=update.trains)
                total = {size: total.get(size, 0.0) + seconds for size, seconds in laps.items()}
            self.array.block_size = min(total, key=lambda size: total[size], default=len(self.array))

    def _backward(self, update: Update, trained: list[nn.Parameter] | None, x: Any, y: Tensor) -> Tensor:
        with self.job.autocast():
            output = self.array(*inputs(x), **update.words)
            losses = self.array.losses(update.loss, output, y)
        (losses if self.scaler is None else losses * self.scaler.scales).sum().backward(inputs=trained)
        return losses.detach()
