"""Groups trained one after another."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from hfta_nb.array import MemberGenerators, fuse, has_lazy, take_shapes
from hfta_nb.array.generators import seeded_state
from hfta_nb.data import placed
from hfta_nb.events import Control, Event
from hfta_nb.plan import Group
from hfta_nb.step import ArrayStep, PlainStep, Step, call_all
from hfta_nb.train.group import GroupRun
from hfta_nb.train.settings import Clock, Save, Settings


class Trainer:
    """Trains groups one after another; iterate it.

    Args:
        settings: of the run.
        groups: what to train.
        control: requests.
        save: keeps checkpoints; None to keep nothing.
        resume: the state of a checkpoint, to carry on from there.
        prepare: puts something around each group's step.
        checkpoint_every_s: seconds between two checkpoints; one is also made on a pause, a stop and a group's end.

    Attributes:
        stopped: whether the run was asked to stop.
        early_stops: variants that were stopped before their group began.
    """

    def __init__(
        self,
        settings: Settings,
        groups: Sequence[Group],
        control: Control,
        save: Save | None = None,
        resume: Mapping[str, Any] | None = None,
        prepare: Callable[[Step], Step] | None = None,
        checkpoint_every_s: float = 10.0,
    ) -> None:
        self.settings, self.groups, self.control, self.save = settings, groups, control, save
        self.prepare = prepare
        self.checkpoint_every_s = checkpoint_every_s
        self.stopped = False
        self._resume = resume
        self.data = placed(settings.data, settings.device, settings.dtype)
        self.lengths: dict[int, int] = {}  # by batch size, of the passes of a stream, once known
        self.clock = Clock(work_total=self._work())
        self.early_stops: set[int] = set()
        self.last_save = time.perf_counter()

    def __iter__(self) -> Iterator[Event]:
        first = 0
        if self._resume is not None:
            first = int(self._resume["group"])
            self.clock.elapsed_s = float(self._resume["elapsed_s"])
            self.clock.work_done = float(self._resume["work_done"])
        self.clock.skip()
        for group in self.groups[first:]:
            yield from GroupRun(self, group, self._resume).events()
            self._resume = None
            if self.stopped:
                return

    def _work(self) -> float:
        """Steps of all members of all groups; NaN while that is not known."""
        lengths = [self.batches(g) for g in self.groups]
        steps = [math.nan if length is None else self.settings.epochs * length for length in lengths]
        return float(sum(len(g.variants) * n for g, n in zip(self.groups, steps, strict=True)))

    def batches(self, group: Group) -> int | None:
        """Steps in an epoch of this group; None while that is not known."""
        size = int(group.rows[0]["batch_size"])
        return self.settings.steps_per_epoch or self.data.batches(size) or self.lengths.get(size)

    def learn(self, batch_size: int, length: int) -> None:
        """So many batches a pass through a stream has."""
        self.lengths[batch_size] = length
        self.clock.work_total = self._work()

    def build(self, group: Group) -> Step:
        """The step of a group, each member initialised and seeded as it would be alone."""
        s = self.settings
        modules, states = [], []
        outer = torch.random.get_rng_state()
        try:
            for variant, arguments in zip(group.variants, group.arguments, strict=True):
                torch.default_generator.manual_seed(variant.seed)
                module = s.family.build(**arguments).to(s.device, s.dtype)
                if has_lazy(module):
                    sample = self.data.sample(int(group.rows[0]["batch_size"]), s.device, s.dtype)
                    take_shapes(module, lambda m, x=sample: call_all(m, x, s.family.phases))  # type: ignore[misc]
                modules.append(module)
                # The CPU's stream goes on from where building left it; a GPU's has not been drawn from yet.
                states.append(seeded_state(variant.seed, s.device) | {"cpu": torch.random.get_rng_state()})
        finally:
            torch.random.set_rng_state(outer)
        s.precision.check_modules(modules)
        generators = MemberGenerators(states, s.device)
        objective, metrics = s.family.objective_for(s.data), s.family.metrics_for(s.data)
        if group.serial:
            return PlainStep(modules[0], group.rows[0], objective, metrics, s.epochs, generators, s.precision)
        array = fuse(modules, [v.seed for v in group.variants])
        array.generators.states = generators.states
        return ArrayStep(array, group.rows, objective, metrics, s.epochs, s.precision)
