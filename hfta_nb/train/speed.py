"""How fast an array is against the same members one after another."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hfta_nb.data import Stream, count
from hfta_nb.engine.array import MemberGenerators
from hfta_nb.engine.array.inspect import way_of
from hfta_nb.errors import out_of_memory
from hfta_nb.records import events as ev
from hfta_nb.train.plan import Group
from hfta_nb.train.settings import Settings
from hfta_nb.train.step import ArrayStep, PlainStep, Step

SPEED_STEPS = 10
"""How many steps are timed against the plain module's, those left out in which block sizes are tried."""

LEAST_STEPS = 5
"""How many of them are the first ones. The others are the 8th, the 16th, the 32nd and so on: the first may all fall
into a moment in which the notebook or its page has a core."""


_WARM_UP = 5
"""Calls of a plain module beside one of the array's steps, of which the fastest counts."""

_LONG_S = 2e-2
"""For a call that takes longer, what is in the caches makes no difference."""

_ON = {"kernels": "", "one": "on one thread", "blocks": "blocks side by side"}


class SpeedProbe:
    """Times steps of an array, and beside each of them those of plain modules that nobody else needs.

    Attributes:
        twins: a plain module for each architecture in the array, and how many members have it.
        held_out: the number of validation samples; None where it is not known.
    """

    def __init__(
        self, group: int, step: ArrayStep, twins: Sequence[tuple[PlainStep, int]], held_out: int | None = None
    ) -> None:
        self.group, self.step, self.twins, self.held_out = group, step, twins, held_out
        self.members = len(step)
        self.device = step.array.generators.device
        self.fused_s: list[float] = []
        self.serial_s: list[float] = []
        self.validation_s: list[float] = []
        self._seen = 0

    def due(self, step: Step) -> bool:
        """Whether the coming step is timed. Called before each."""
        self._seen += 1
        early = len(self.serial_s) < LEAST_STEPS
        return step is self.step and len(step) == self.members and (early or not self._seen & (self._seen - 1))

    def start(self) -> float:
        self._wait()
        return time.perf_counter()

    def stop(self, begin: float) -> None:
        self._wait()
        self.fused_s.append(time.perf_counter() - begin)

    def alone(self, x: Any, y: Any) -> bool:
        """Time a step of the plain modules on the same batch; says whether enough was measured."""
        self.serial_s.append(self._of_all(lambda twin: twin.train(x, y)))
        if self.held_out is not None and len(self.validation_s) < LEAST_STEPS:  # before validation, which may be late
            batches = self.held_out / count(x)
            self.validation_s.append(batches * self._of_all(lambda twin: twin.evaluate(x, y)))
        return len(self.serial_s) >= SPEED_STEPS

    def _of_all(self, call: Callable[[PlainStep], object]) -> float:
        """The seconds that a call of every member's plain module takes, one after another."""
        return sum(members * self._settled(twin, call) for twin, members in self.twins)

    def _settled(self, twin: PlainStep, call: Callable[[PlainStep], object]) -> float:
        """The seconds of a call like those before it, as the array's step leaves its own data in the caches, less those
        of what a loop of one's own does not do: watching what functions keep."""
        fastest = watching = math.inf
        for _ in range(_WARM_UP):
            begin = self.start()
            call(twin)
            self._wait()
            end = time.perf_counter()
            twin.watch()
            fastest, watching = min(fastest, end - begin), min(watching, time.perf_counter() - end)
            if fastest > _LONG_S:
                break
        return max(fastest - watching, 0.0)

    @property
    def tells(self) -> bool:
        """Whether there is something to tell: not of the first steps alone, in which kernels are recorded; and again
        at the end."""
        return len(self.serial_s) in (LEAST_STEPS + 1, SPEED_STEPS)

    def event(self) -> ev.SpeedMeasured:
        fused, serial, validation = _least(self.fused_s), _least(self.serial_s), _least(self.validation_s)
        how = ", ".join(filter(None, [self._at_once(), _ON[self.step.array.threads], way_of(self.step.array)]))
        steps = len(self.serial_s)
        found = steps, fused, serial, serial / fused, how, validation
        return ev.SpeedMeasured(time.time(), self.group, self.members, *found)

    def _at_once(self) -> str:
        size = self.step.array.block_size
        if size < self.members:
            return f"{size} of {self.members} members at a time" if size > 1 else "members one by one"
        return "all members at once" if size > 1 else ""

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _least(seconds: Sequence[float]) -> float:
    """The shortest: what else the machine does lengthens the others. NaN where nothing was timed."""
    return min(seconds, default=math.nan)


def probe_of(
    step: Step, group: Group, places: Sequence[int], rows: Sequence[int], settings: Settings
) -> SpeedProbe | None:
    """What times an array's first steps; None where there is no array, no memory for plain modules beside it, or no
    time, as in a short run.

    Args:
        step: the array's.
        group: its variants.
        places, rows: of the members that it still has, where they are in the group and in the step.
        settings: of the run.
    """
    none = not places  # all were stopped before they began
    if none or not isinstance(step, ArrayStep) or step.array.settings.brief:
        return None
    objective, metrics = settings.family.objective_for(settings.data), settings.family.metrics_for(settings.data)
    length = max(1, round(step.planned / settings.epochs))
    twins = []
    try:
        for member, count in _architectures(group, places).items():
            generators = MemberGenerators([dict(step.array.generators.states[rows[member]])], settings.device)
            row, how = group.rows[places[member]], (settings.epochs, generators, settings.precision, length)
            twins.append((PlainStep(step.array[rows[member]], row, objective, metrics, *how), count))
    except Exception as error:
        if not out_of_memory(error):
            raise
        return None
    data, fold = settings.data, group.rows[0].get("fold")
    held_out = data.validation.samples if isinstance(data, Stream) else len(data.held_out_of(fold))
    return SpeedProbe(group.index, step, twins, held_out)


def _architectures(group: Group, places: Sequence[int]) -> dict[int, int]:
    """The first member of each architecture, and how many have it: a narrow member is no measure of wide ones."""
    if group.architectures == 1:
        return {0: len(places)}
    firsts: dict[str, int] = {}
    return Counter(firsts.setdefault(repr(group.arguments[place]), i) for i, place in enumerate(places))
