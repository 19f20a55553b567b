"""The loop that one would write for one member: the plain module, and data, loss and metrics as they were handed over.

`Study.check` compares members with it. With a run's own training it shares how a module is built and seeded, torch's
optimizers, and the random numbers of augmentation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hfta_nb.engine.array.access import FunctionStates, call_module, flatten, tensor_map, unflatten
from hfta_nb.models import imbalance
from hfta_nb.models.metrics import Metric
from hfta_nb.records import events as ev
from hfta_nb.records.events import Control, Event
from hfta_nb.study.given_augmentation import BySample
from hfta_nb.study.given_data import GivenData, Pair
from hfta_nb.study.given_remedies import Remedies
from hfta_nb.study.users_losses import summed, tapped
from hfta_nb.train import Settings, Trainer
from hfta_nb.train.plan import Group
from hfta_nb.train.step import PlainStep
from hfta_nb.train.whole_sets import MOST_BYTES

Curves = dict[str, list[float]]


class UsersLoop:
    """Trains one member alone.

    Args:
        settings: of the study.
        handed: see `GivenData`.
        group: of the one member.
        after_step: called with its weights after each step.

    Attributes:
        curves: by name, what each epoch gave.
        dtype: the one of the fewest bits among the member's own and those of its losses.
    """

    def __init__(
        self,
        settings: Settings,
        handed: Any,
        group: Group,
        after_step: Callable[[Iterable[Tensor]], None] = lambda weights: None,
    ) -> None:
        self.settings, self.row = settings, group.rows[0]
        self.family, data = settings.family, settings.data
        self.metrics = self.family.metrics_for(data)
        trainer = Trainer(settings, [group], Control())
        built: Any = trainer.build(group)
        # What losses and metrics keep between calls is kept here, and the user's own objects stay as they are.
        self.memory = FunctionStates(1, shows=False)
        self.taps = tapped(self.family, data, self.memory)
        phases = tuple(replace(phase, loss=self.taps[phase.score]) for phase in self.family.phases)
        objective = phases or self.taps["loss"]
        length = trainer.batches(group)
        self.remedies = Remedies(self.row) if imbalance.used(self.row) else None
        if self.remedies is not None:
            self.taps["loss"].remedies = self.remedies
            self.remedies.watch(built.module)
        row = {k: v for k, v in self.row.items() if k not in (*imbalance.AXES, imbalance.COUNTS)}
        self.plain = PlainStep(
            built.module, row, objective, {}, settings.epochs, built.generators, settings.precision, length
        )
        self.after_step = after_step
        seed = self.row["data_seed"]
        self.seed = settings.seed if seed is None else int(seed)
        self.given = GivenData(handed, settings, self.row, self.seed)
        self.augmentation = BySample(trainer.data, self.row, self.seed, settings.device)
        self.latest: dict[str, float] = {}
        self.curves: Curves = {}

    @property
    def dtype(self) -> torch.dtype:
        """See above: what is computed after such a loss is no more exact."""
        found = [self.settings.dtype, *(dtype for tap in self.taps.values() for dtype in tap.dtypes)]
        return max((d for d in found if d.is_floating_point), key=lambda d: torch.finfo(d).eps)

    def epochs(self, count: int) -> Iterator[Event]:
        """Train; events say that it goes on."""
        try:
            yield from self._epochs(count)
        finally:
            self.given.close()

    def _epochs(self, count: int) -> Iterator[Event]:
        batches = self._batches()
        for epoch in range(1, count + 1):
            found = _Means({} if self.family.phases else self.metrics)
            for x, y in next(batches):
                self._put(y, training=True)
                self.plain.train(x if self.remedies is None else self.remedies.weakened(x, y), y)
                self.after_step(self.plain.weights().values())
                losses = self._losses(training=True)
                with self._measuring():
                    found.add(_size(y), losses, self._output(), y)
                yield ev.Heartbeat(time.time())
            values = {f"train_{name}": value for name, value in found.values().items()}
            self.plain.end_epoch()
            scales = self.plain.scales()
            if scales is not None:
                values["train_loss_scale"] = float(scales[0])
            if self.settings.validates(epoch):
                values |= {f"val_{name}": value for name, value in self._validated().items()}
                monitored = values[self.settings.monitor]
                self.plain.end_validation([-monitored if self.settings.maximize else monitored])
            for name, value in values.items():
                self.curves.setdefault(name, []).append(value)

    def _batches(self) -> Iterator[Iterator[Pair]]:
        """For each epoch its batches: a pass through the data, or a number of steps, then of as many as it takes."""
        most, pass_ = self.settings.steps_per_epoch, 0
        if most is None:
            while True:
                yield self._of_pass(pass_)
                pass_ += 1

        def endless() -> Iterator[Pair]:
            number = 0
            while True:
                yield from self._of_pass(number)
                number += 1

        steps = endless()
        while True:
            yield (next(steps) for _ in range(most))

    def _of_pass(self, number: int) -> Iterator[Pair]:
        for place, (x, y) in enumerate(self.given.training(number)):
            if self.augmentation.on:
                x, y = self.augmentation.augmented(x, y, number, place)
            yield self._standardised(x), y

    def _standardised(self, x: Any) -> Any:
        normalizes = self.augmentation.setting.normalize
        return self.augmentation.normalized(x) if normalizes else self.given.standardised(x)

    def _put(self, y: Any, training: bool = False) -> None:
        for tap in self.taps.values():
            tap.target, tap.calls, tap.training = y, [], training

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        """The context of the metrics: the member's random numbers, and what their functions keep."""
        functions = tuple(metric.function for metric in self.metrics.values())
        with self.plain.generators.member(0), self.memory.of_one(functions):
            yield

    def _losses(self, training: bool = False) -> dict[str, float]:
        """What the losses gave: the first values, as optimizers may evaluate a loss again. Of a phase that did not come
        what it gave in training before."""
        for name, tap in self.taps.items():
            if tap.calls and training:
                self.latest[name] = tap.calls[0][0]
        found = {name: tap.calls[0][0] if tap.calls else self.latest.get(name, 0.0) for name, tap in self.taps.items()}
        return {"loss": sum(found.values()), **found} if self.family.phases else found

    def _output(self) -> Any:
        return next(tap.calls[0][1] for tap in self.taps.values() if tap.calls)

    @torch.no_grad()
    def _validated(self) -> dict[str, float]:
        """Losses are means over samples; a metric of whole sets sees all samples at once."""
        whole = {name: metric for name, metric in self.metrics.items() if metric.whole}
        found, pairs = _Means({n: m for n, m in self.metrics.items() if n not in whole}), list[Pair]()
        with self.memory.validating(tuple(tap.loss for tap in self.taps.values())):
            for x, y in self.given.validation():
                x = self._standardised(x)
                self._put(y)
                self.plain.evaluate(x, y)
                output, losses = self._held_out(x), self._losses()
                with self._measuring():
                    found.add(_size(y), losses, output, y)
                if whole:
                    pairs.append((tensor_map(_still, output), y))
            values = found.values()
            parts = _parts(pairs)
            with self._measuring():
                for name, metric in whole.items():
                    each = [_number(metric(output, y)) * _size(y) for output, y in parts]
                    values[name] = sum(each) / found.samples
        return values

    def _held_out(self, x: Any) -> Any:
        """The output for a batch of validation, of the averaged weights where the member has them."""
        if not self.family.phases:
            return self._output()
        if not self.metrics:
            return None
        average, precision = self.plain.average, self.settings.precision
        with self.plain.generators.member(0), precision.products(), precision.autocast():
            return call_module(self.plain.module if average is None else average.module, x)


class _Means:
    """Means over samples, and metrics that are taken batch by batch.

    Args:
        metrics: of a batch.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self.metrics, self.samples = metrics, 0
        self.sums: dict[str, Any] = {}
        self.kept: dict[str, Any] = {}

    def add(self, size: int, losses: Mapping[str, float], output: Any, y: Any) -> None:
        """Add a batch."""
        found: dict[str, Any] = {name: value * size for name, value in losses.items()}
        self.samples += size
        for name, metric in self.metrics.items():
            still = tensor_map(_still, output)
            if metric.accumulator is not None:
                value = metric.function(still, y)
                kept = self.kept.setdefault(name, metric.accumulator(value.device))
                kept.update(value, y)
            elif metric.finish is not None:
                found[name] = summed(metric)(still, y).double()
            else:
                found[name] = _of_batch(metric, still, y) * size
        for name, value in found.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def values(self) -> dict[str, float]:
        """Over all batches."""
        found: dict[str, float] = {}
        for name, total in self.sums.items():
            finish = self.metrics[name].finish if name in self.metrics else None
            found[name] = total / self.samples if finish is None else float(finish(total))
        return found | {name: float(kept.compute()) for name, kept in self.kept.items()}


def _of_batch(metric: Metric, output: Any, y: Any) -> float:
    """A metric of one batch; NaN where a function finds it unfit: AUC with a single class, say."""
    try:
        return _number(metric(output, y))
    except ValueError:
        if not metric.whole:
            raise
        return math.nan


def _number(value: Any) -> float:
    """One number, as `float` makes it, which takes no array with axes."""
    return float(value.reshape(())) if isinstance(value, np.ndarray) and value.ndim else float(value)


def _still(output: Tensor) -> Tensor:
    """As a metric sees it: not in half precision."""
    return output.detach().float() if output.dtype in (torch.float16, torch.bfloat16) else output.detach()


def _parts(pairs: list[Pair]) -> list[Pair]:
    """Outputs and targets of batches, put together as long as they fit; one pair as a rule."""
    parts: list[list[Pair]] = []
    held, last = 0, None
    for pair in pairs:
        tensors, size = [v for v in flatten(pair)[0] if isinstance(v, Tensor)], _size(pair[1])
        whole = all(v.ndim and len(v) == size for v in tensors)
        kind = [(v.dtype, v.shape[1:]) for v in tensors] if whole else None
        taken = sum(v.nbytes for v in tensors)
        if kind is None or kind != last or held + taken > MOST_BYTES:
            parts.append([])
            held = 0
        parts[-1].append(pair)
        held, last = held + taken, kind
    return [_joined(part) for part in parts]


def _joined(pairs: list[Pair]) -> Pair:
    flat = [flatten(pair)[0] for pair in pairs]
    if len(pairs) == 1:
        return pairs[0]
    columns = [torch.cat(column) if isinstance(column[0], Tensor) else column[0] for column in zip(*flat, strict=True)]
    output, y = unflatten(flatten(pairs[0])[1], columns)
    return output, y


def _size(y: Any) -> int:
    while isinstance(y, dict | tuple):
        y = next(iter(y.values())) if isinstance(y, dict) else y[0]
    return len(y)
