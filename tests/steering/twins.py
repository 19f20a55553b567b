"""The oracle of steering: each member as torch's own modules and optimizers train it alone, with the same changes."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.data.order import order

OPTIMIZERS: Mapping[str, Any] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}

LONGER = "to train on to epoch "
"""Begins the reason of a change of a member that had ended."""

SAMPLES, HELD_OUT, FEATURES, CLASSES = 48, 16, 5, 3


def net(width: int = 6, p: float = 0.2, inputs: int = FEATURES, classes: int = CLASSES) -> nn.Module:
    """A model that draws random numbers, and has buffers."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(p), nn.Linear(width, classes)
    )


def data() -> hfta.Data:
    """Classes that a small model learns."""
    made = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES + HELD_OUT, FEATURES, generator=made, dtype=torch.float64)
    y = (x[:, :CLASSES] + 0.3 * torch.randn(len(x), CLASSES, generator=made, dtype=torch.float64)).argmax(1)
    return hfta.data.from_tensors(x[:SAMPLES], y[:SAMPLES], x[SAMPLES:], y[SAMPLES:], name="blobs")


class Twin:
    """One member, alone: the plain module with torch's optimizer.

    Attributes:
        config: all values that differ from the study's.
        epochs: that it trains, which its lr schedule spans.
        log: by epoch, its training and validation loss.
        added_up: mini-batches whose gradients wait for an update.
    """

    def __init__(
        self, config: Mapping[str, Any], epochs: int, source: hfta.Data, build: Callable[..., nn.Module] = net
    ) -> None:
        self.config, self.epochs, self.data = dict(config), epochs, source.to(torch.device("cpu"), torch.float64)
        self.epoch = self.batch = self.steps = self.added_up = 0
        self.parts: list[tuple[float, int]] = []
        self.log: dict[int, tuple[float, float]] = {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.get("seed", 0))
            arguments = {name: self.config[name] for name in inspect.signature(build).parameters if name in self.config}
            self.module = build(**arguments).double()
            self.stream = torch.get_rng_state()
        self.optimizer = self._optimizer()
        self.averaged: nn.Module | None = None  # with the moving averages of `ema_decay`

    def __deepcopy__(self, memo: dict[int, Any]) -> Twin:
        made = object.__new__(Twin)
        vars(made).update({k: v if k == "data" else copy.deepcopy(v, memo) for k, v in vars(self).items()})
        for own, theirs in zip(made.module.parameters(), self.module.parameters(), strict=True):
            own.grad = None if theirs.grad is None else theirs.grad.clone()
        return made

    def _optimizer(self) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.config.get("optimizer", "adam")](self.module.parameters(), lr=0.0)

    def _values(self) -> dict[str, Any]:
        get = self.config.get
        values: dict[str, Any] = {"lr": self._lr(), "weight_decay": get("weight_decay", 0.0)}
        if get("optimizer", "adam") in ("adam", "adamw", "nadam"):
            return values | {"betas": (get("beta1", 0.9), 0.999)}
        return values | ({"momentum": get("momentum", 0.0)} if get("optimizer") in ("sgd", "rmsprop") else {})

    def _lr(self) -> float:
        lr, kind = float(self.config.get("lr", 1e-3)), self.config.get("lr_scheduler", "none")
        if kind == "step":
            return lr * float(self.config.get("gamma", 0.1)) ** (self.epoch // int(self.config.get("step_size", 10)))
        if kind == "cosine":
            return lr * (1 + math.cos(math.pi * self.epoch / self.epochs)) / 2
        return lr

    @property
    def length(self) -> int:
        return -(-SAMPLES // self.config.get("batch_size", 16))

    def advance(self, steps: int, epoch: int) -> None:
        """Train to so many steps, and to so many epochs done."""
        while self.steps < steps or self.epoch < epoch:
            if self.batch == self.length:
                self._end_epoch()
            else:
                self._step()

    def finish_epoch(self) -> None:
        """Train to the end of the epoch under way."""
        while self.batch < self.length:
            self._step()
        self._end_epoch()

    def _step(self) -> None:
        size = self.config.get("batch_size", 16)
        seed = self.config.get("data_seed")
        rows = order(SAMPLES, 0 if seed is None else seed, self.epoch)[self.batch * size : (self.batch + 1) * size]
        self.module.train()
        every = self.config.get("accumulate_grad_batches") or 1
        if not self.added_up:
            self.optimizer.zero_grad()
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.stream)
            loss = F.cross_entropy(self.module(self.data.x[rows]), self.data.y[rows])
            self.stream = torch.get_rng_state()
        (loss / every).backward()  # type: ignore[no-untyped-call]
        self.parts.append((loss.item(), len(rows)))
        self.batch, self.steps, self.added_up = self.batch + 1, self.steps + 1, self.added_up + 1
        if self.added_up == every:
            self._update()

    def _update(self) -> None:
        self.added_up = 0
        for group in self.optimizer.param_groups:
            group.update(self._values())
        limit = self.config.get("max_norm")
        if limit is not None:
            nn.utils.clip_grad_norm_(self.module.parameters(), limit)
        self.optimizer.step()
        self._average()

    @torch.no_grad()
    def _average(self) -> None:
        decay = self.config.get("ema_decay")
        if decay is None:
            return
        if self.averaged is None:  # as torch's AveragedModel begins
            self.averaged = copy.deepcopy(self.module)
        else:
            for own, new in zip(self.averaged.parameters(), self.module.parameters(), strict=True):
                own.mul_(decay).add_(new, alpha=1 - decay)
        for kept, now in zip(self.averaged.buffers(), self.module.buffers(), strict=True):
            kept.copy_(now)

    @torch.no_grad()
    def _end_epoch(self) -> None:
        if self.added_up:
            self._update()
        self.epoch, self.batch = self.epoch + 1, 0
        mean = sum(loss * size for loss, size in self.parts) / sum(size for _, size in self.parts)
        self.parts = []
        judged = self.module if self.averaged is None else self.averaged
        judged.eval()
        held_out: Tensor = F.cross_entropy(judged(self.data.x_validation), self.data.y_validation)
        self.log[self.epoch] = mean, held_out.item()

    def edit(self, changes: Mapping[str, Any]) -> None:
        """Go on with other values."""
        kind = self.config.get("optimizer", "adam")
        if changes.get("batch_size", 0) not in (0, self.config.get("batch_size", 16)):
            self.batch, self.parts, self.added_up = 0, [], 0
        self.config |= changes
        if self.config.get("optimizer", "adam") != kind:
            self.optimizer = self._optimizer()
        if "seed" in changes:
            self.stream = torch.Generator().manual_seed(changes["seed"]).get_state()
        if "p" in changes:
            dropout = self.module[3]  # type: ignore[index]
            dropout.p = changes["p"]

    def copy_from(self, source: Twin, changes: Mapping[str, Any]) -> None:
        """Become a copy, with its own random streams."""
        own = self.stream
        for name in ("module", "optimizer", "averaged"):
            setattr(self, name, None)
        parts = copy.deepcopy((source.module, source.optimizer, source.averaged))
        self.module, self.optimizer, self.averaged = parts
        self.stream = own
        keep = {name: self.config[name] for name in ("seed", "data_seed") if name in self.config}
        self.config = {**source.config, **keep, **changes}


class Twins:
    """All members of a study, each alone; what happened to them is read from its events.

    Attributes:
        epochs: that members train which begin now.
    """

    def __init__(self, study: hfta.Study, build: Callable[..., nn.Module] = net) -> None:
        self.study, self.epochs, self.build = study, 0, build
        self.twins: dict[int, Twin] = {}
        cloned = {e.variant for e in study.history.edits if e.how == "cloned"}
        seeds = {variant.id: variant for variant in study.variants}
        done: dict[int, int] = {}
        for event, _ in study.store.events():
            if isinstance(event, ev.EpochDone):
                done |= dict.fromkeys(event.variants, event.epoch)
            if isinstance(event, ev.MemberChanged) and event.reason.startswith(LONGER):
                twin = self.twins[event.variant]
                while twin.epoch < done[event.variant]:  # its schedule spans more epochs from here on
                    twin.finish_epoch()
                twin.epochs = max(twin.epochs, int(event.reason.removeprefix(LONGER)))
            if isinstance(event, ev.RunStarted):
                self.epochs = event.epochs
                for id in [v.id for v in event.variants if v.id not in cloned and v.id not in self.twins]:
                    variant = seeds[id]
                    self.twins[id] = self._made({**study.fixed, **variant.config, "seed": variant.seed})
            if isinstance(event, ev.MemberEdited):
                self._follow(event)

    def _made(self, config: Mapping[str, Any]) -> Twin:
        if config.get("data_seed") is None:
            config = {**config, "data_seed": self.study.seed}
        return Twin(config, self.epochs, self.study.data, self.build)  # type: ignore[arg-type]

    def _follow(self, edit: ev.MemberEdited) -> None:
        if edit.how == "cloned":
            assert edit.parent is not None
            source = self.twins[edit.parent]
            if edit.warm:
                source.advance(edit.step, edit.epoch)
                made = copy.deepcopy(source)
                made.log = {}
                made.edit(edit.changes)
            else:
                made = self._made(source.config | edit.changes)
            self.twins[edit.variant] = made
            return
        twin = self.twins[edit.variant]
        twin.advance(edit.step, edit.epoch)
        assert (twin.steps, twin.epoch) == (edit.step, edit.epoch)
        if edit.how == "extended":
            twin.epochs = int(edit.changes["epochs"])  # type: ignore[arg-type]
        elif edit.how == "set":
            twin.edit(edit.changes)
        else:
            assert edit.parent is not None
            source = self.twins[edit.parent]
            source.advance(edit.step, edit.epoch)
            own = twin.config
            twin.copy_from(source, {})
            twin.config = {**own, **edit.changes}  # they tell what differs from its own, not from the source's

    def differences(self) -> dict[int, float]:
        """By member, the largest difference of its curves from its twin's; every recorded epoch is compared."""
        found = {}
        for id, member in self.study.history.members.items():
            twin, worst = self.twins[id], 0.0
            curves = member.curves
            for name, place in (("train_loss", 0), ("val_loss", 1)):
                if name not in curves:
                    continue
                for epoch, value in zip(curves[name].epochs, curves[name].values, strict=True):
                    while twin.epoch < epoch:
                        twin.finish_epoch()
                    worst = max(worst, abs(twin.log[int(epoch)][place] - value))
            found[id] = worst
        return found
