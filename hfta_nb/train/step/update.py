"""The optimizers of an array's step, each with what it minimises."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hfta_nb import optim
from hfta_nb.engine.array import FusedArray
from hfta_nb.errors import out_of_memory
from hfta_nb.models import imbalance
from hfta_nb.models.losses import Loss, share_of_known
from hfta_nb.models.metrics import Metric
from hfta_nb.models.phases import Phase, split
from hfta_nb.optim.clipping import clip_to
from hfta_nb.optim.lr_scheduler import ArrayLRScheduler
from hfta_nb.train.step.optimizers import limits_of, make_lr_scheduler, make_optimizer
from hfta_nb.train.step.parameter_groups import by_optimizer
from hfta_nb.train.step.rollback import OptimizerMemoryError, first_step, undone
from hfta_nb.train.step.step_protocol import Objective, Row, Scores, in_phase, phases_of, remedied, scorer


@dataclass
class Update:
    """One of the optimizers of an array, with what it minimises.

    Attributes:
        phase: of the step that it is; None where it is all of it.
        score: from one member's output and target to its loss and scores.
        only: names of the parameters that it trains; None for all.
        settings: of the members' losses, each with a leading M; see `imbalance`.
        follows: whether it steps by the gradients of the update before it: that of the parameters that Muon leaves.
        limits: per member, the norm to which longer gradients are clipped, ``[M]``; None where no member has one.
        settled: whether the optimizer has its state.
    """

    phase: Phase | None
    loss: Loss
    score: Callable[[Any, Any], tuple[Tensor, Scores]]
    only: frozenset[str] | None
    optimizer: optim.ArrayOptimizer
    lr_scheduler: ArrayLRScheduler | None
    limits: Tensor | None = None
    settled: bool = False
    follows: bool = False
    settings: dict[str, Tensor] = field(default_factory=dict)

    def batch(self, x: Any, y: Any) -> tuple[Any, Any]:
        """A mini-batch as the array takes it: with the settings of the members' losses, and the word of the phase."""
        if self.settings:
            x, y = imbalance.weakened(x, y, self.settings), imbalance.target_of(y, self.settings)
        return in_phase(x, self.phase), y

    def share(self, y: Any) -> Tensor | None:
        """What a mini-batch counts among those of one optimizer step; see `accumulation`."""
        return imbalance.share_of_weights(y, self.settings) if self.settings else share_of_known(self.loss, y)

    def select(self, indices: Sequence[int], array: FusedArray) -> Update:
        """The same for these members alone."""
        optimizer = self.optimizer.select(indices, array)
        lr_scheduler = self.lr_scheduler.select(list(indices), optimizer) if self.lr_scheduler else None
        limits = None if self.limits is None else self.limits[list(indices)]
        settings = {name: value[list(indices)] for name, value in self.settings.items()}
        return replace(
            self, optimizer=optimizer, lr_scheduler=lr_scheduler, limits=limits, settings=settings, settled=False
        )

    def take_settings(self, place: int, other: Update, src: int) -> None:
        """A member's loss has the settings, and its gradients the limit, of member `src` of another update."""
        for name, value in self.settings.items():
            value[place] = other.settings[name][src]
        self._take_limit(place, other, src)

    def _take_limit(self, place: int, other: Update, src: int) -> None:
        if other.limits is None and self.limits is None:
            return
        if self.limits is None:
            device = self.optimizer.array.generators.device
            self.limits = torch.full((len(self.optimizer.array),), torch.inf, dtype=torch.float64, device=device)
        self.limits[place] = torch.inf if other.limits is None else other.limits[src]

    def step(self, scaler: optim.GradScaler | None, restore: Callable[[], None]) -> None:
        """The optimizer's, with what undoes the backward before it."""
        update = functools.partial(self._step, scaler)
        if not self.settled:
            first_step(self.optimizer, update, restore)
            self.settled = True
            if self.optimizer.bound:  # else each step would be guarded
                self.optimizer.guard = undone
            return
        made = self.optimizer.made
        try:
            update()
        except Exception as error:
            untouched = isinstance(error, OptimizerMemoryError) or not self.optimizer.begun
            if out_of_memory(error) and untouched and self.optimizer.made == made:
                restore()
                raise OptimizerMemoryError(str(error)) from error
            raise

    def clip(self) -> None:
        """Shorten the gradients of members that have a limit."""
        if self.limits is not None:
            names = dict(self.optimizer.array.named_parameters())
            clip_to(
                self.optimizer.array, {n: names[n] for n in names if self.only is None or n in self.only}, self.limits
            )

    def _step(self, scaler: optim.GradScaler | None) -> None:
        if self.limits is not None and scaler is not None:
            scaler.unscale_(self.optimizer)
        self.clip()
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)


def updates_of(
    array: FusedArray,
    rows: Sequence[Row],
    objective: Objective,
    metrics: Mapping[str, Metric],
    epochs: int,
    steps_per_epoch: int | None,
) -> list[Update]:
    """The updates that a step is made of: one per phase, and one more where another optimizer takes what Muon leaves.

    Raises:
        FamilyError: the phases do not share out the parameters.
        OptimError: an optimizer or lr scheduler does not take the members' values.
    """
    device = array.generators.device
    parts: list[tuple[Phase | None, Loss, Any, list[str], list[Row]]] = []
    phases, settings = phases_of(objective), imbalance.settings_of(rows, device)
    if callable(objective):
        names = [name for name, _ in array.named_parameters()]
        loss = remedied(objective, rows)
        parts.append((None, loss, scorer(loss, metrics), names, list(rows)))
    for each, names in zip(phases, split(phases, array, "phases") if phases else [], strict=True):
        parts.append((each, each.loss, scorer(each.loss, {}), names, [each.row(row) for row in rows]))
    found = []
    for phase, loss, score, names, own in parts:
        limits, only = limits_of(own, device), None if phase is None else frozenset(names)
        shared_out = by_optimizer(array, names, own[0])
        for number, (taken, first) in enumerate(shared_out):
            kind = [{**row, "optimizer": first["optimizer"]} for row in own]
            chosen = taken if phase is not None or len(shared_out) > 1 else None
            optimizer = make_optimizer(array, chosen, kind)
            schedule = make_lr_scheduler(optimizer, kind, epochs, steps_per_epoch)
            update = Update(phase, loss, score, only, optimizer, schedule, None if number else limits)
            update.follows, update.settings = number > 0, settings
            found.append(update)
    return found


def evaluated(update: Update, differentiated: Callable[[], tuple[Tensor, Scores]]) -> tuple[Tensor, Scores]:
    """A step of an optimizer that evaluates the losses as often as it likes: losses and scores of its first evaluation.

    Args:
        update: of the optimizer.
        differentiated: computes losses ``[M]`` and scores, and leaves the gradients in place.
    """
    first: list[tuple[Tensor, Scores]] = []

    def closure() -> Tensor:
        update.optimizer.zero_grad()
        losses, scores = differentiated()
        update.clip()
        if not first:
            first.append((losses, scores))
        return losses

    update.settled = True  # what fails from here on may have changed something
    update.optimizer.step(closure)
    return first[0]
