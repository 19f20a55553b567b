"""Trying ways to run an array's steps, on steps as they are made: which is fastest?"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from hfta_nb.array.schedule import ExecutionSchedule, convolutions, on_threads
from hfta_nb.eager.state import ArrayState
from hfta_nb.kernels.native import conv
from hfta_nb.kernels.strategy.autotune import clock_of, disturbed
from hfta_nb.kernels.strategy.times import Times
from hfta_nb.kernels.strategy.timing_cache import kept
from hfta_nb.members import threads
from hfta_nb.replay.calls import Calls
from hfta_nb.replay.program_cache import ProgramCache

_HOPELESS = 1.6
"""Times the fastest: slower than this without replaying, a way is not looked at with it."""
_HOPELESS_IMAGES = 2.5
"""The same where replayed steps have convolutions of images that steps as ever have not: they win most for members one
after another, whose images stay in cache."""
_RECORDING = 2
"""Steps that are recorded."""
_LAPS = 2, 10
"""Replayed steps that count, of each way: at least, and at most of those close to the fastest."""
_ENOUGH_S = 5e-3
"""After so long laps are not added any more: only short ones say little."""
_THREADED_LAPS = 6
"""At least so many of ways that are close, where several threads wait for each other: such times differ."""
_GAIN = 0.95
"""Fewer members at once must take less than this part of the time of more."""
_CLOSE = 1.25
"""Times the fastest."""
_PAID_STEPS = 125
"""Break-even horizon: another way is recorded only if, should it cost as much as the last one did, it can win that back
within this many steps."""
_PART = 0.05
"""The same as a part of all steps that are to come, in a long run."""
_ANOTHER = 0.15
"""Part of the fastest replayed step which another block size can be expected to win. By threads it is what they save if
nothing is lost: all but one thread's share."""


class Trial:
    """Which way is fastest, found out on steps as they are made.

    Each step runs in the way that `way` says, and its time is told to `took`. The first step finds out how the model
    runs at all. Then each way runs as ever once; what is not hopeless is recorded, the most hopeful first, and
    replayed, as long as what another way can win pays for that. With several threads, all of that is on one, and then
    the fastest is tried on several. At the end the array runs in the fastest way, and only what was recorded for that
    is kept.

    Args:
        calls: of the array whose steps these are.
        ways: what is tried, most members at once first.
        replaying: whether steps may be replayed.
        budget_s: after so long, ways that are close have no more laps; without, steps train, and a way is tried only
            where that is won back soon.
        cache: of these calls' programs; that of `backward` without.

    Attributes:
        way: of the next step.
        seconds: of a step, by way: of the fastest replayed, or where that was not tried, as ever.
        steps: told of so far.
        spent_s: what they took, all together.
        done: whether the way has been chosen.
        complete: whether no way was left out only because trying it would not have paid in so few steps.
    """

    def __init__(
        self,
        calls: Calls,
        ways: Sequence[ExecutionSchedule],
        replaying: bool,
        budget_s: float | None = None,
        cache: ProgramCache[Any] | None = None,
    ) -> None:
        self.calls, state = calls, calls.state
        self.cache: ProgramCache[Any] = calls.steps.cache if cache is None else cache
        self.state, self.ways, self.replaying, self.budget_s = state, list(ways), replaying, budget_s
        self.complete, self._cost = True, 0.0  # what recording the last way has cost
        self.seconds: dict[ExecutionSchedule, float] = {}
        self.replayed: set[ExecutionSchedule] = set()
        self.steps, self.spent_s, self.done = 0, 0.0, False
        self.clock = clock_of(state.generators.device)
        self._asked = state.settings.compiling
        if self._steps:
            state.settings.compiling = "never"  # what is tried is not worth it
        self._plan = self._planned()
        self.way = next(self._plan)
        self.way.put(state)

    def took(self, seconds: float) -> None:
        """Of the step that has just been made."""
        self.steps += 1
        self.spent_s += seconds
        held = self.way.holds(self.state)
        if not held and not (self.way.threads and len(self.ways) > 1):  # one at a time it is, and no other way
            self.settle()
            return
        try:
            if held:
                self.way = self._plan.send(seconds)
            else:
                self.ways, self.seconds = [self.way._replace(block_size=self.state.settings.block_size)], {}
                self._plan = self._planned()
                self.way = next(self._plan)
        except StopIteration:
            self.settle()
        else:
            self.way.put(self.state)

    def settle(self) -> None:
        """End with the fastest of what is known."""
        if self.done:
            return
        self.done = True
        self._plan.close()
        best = fastest(self.compared) if self.way.holds(self.state) else None
        if best is not None:
            best.put(self.state)
        self._leave()
        # What was recorded for others takes room.
        self.cache.keep(self.state.settings.block_size, self.state.settings.threads)

    def abandon(self) -> None:
        """End without a choice: somebody else has chosen."""
        if not self.done:
            self.done = True
            self._plan.close()
            self._leave()

    def _leave(self) -> None:
        if self._steps:
            self.state.settings.compiling = self._asked
        self.cache.waiting = self.cache.at_once = False

    @property
    def _steps(self) -> bool:
        """Whether what is tried are whole steps."""
        return self.cache is self.calls.steps.cache

    @property
    def compared(self) -> dict[ExecutionSchedule, float]:
        """Seconds of the ways from which the fastest is taken: those that were replayed, if any were."""
        return {way: s for way, s in self.seconds.items() if way in self.replayed} or self.seconds

    @property
    def lost_s(self) -> float:
        """How much longer the steps took than they would have in the fastest way."""
        return max(0.0, self.spent_s - self.steps * min(self.seconds.values(), default=0.0))

    def _planned(self) -> Generator[ExecutionSchedule, float, None]:
        first, cache = self.ways[0], self.cache
        cache.waiting = True
        yield first
        plain: dict[ExecutionSchedule, float] = {}
        for way in [*self.ways[1:], first]:  # the first has just run
            plain[way] = yield way
        self.seconds = dict(plain)
        limit = (_HOPELESS_IMAGES if self.replaying and images(self.state) else _HOPELESS) * min(plain.values())
        # Where convolutions are trained, fewer members at once win the more by being replayed, and recording is dear:
        # what is recorded first may be the last.
        trained = self.cache is not self.calls.results.cache
        small = self.replaying and trained and bool(convolutions(self.state))
        hopeful = [way for way in self.ways if plain[way] <= limit]
        hopeful.sort(key=lambda way: (way.block_size if small else 0, plain[way]))
        cache.waiting, cache.at_once = not self.replaying, self.replaying
        laps: dict[ExecutionSchedule, list[float]] = {}
        if len(hopeful) > 1 and self.replaying:
            yield from self._race(hopeful, laps)
        best = fastest(self.compared)
        others = [] if best is None else on_threads(best, self.state)
        if not self._steps:  # only these have blocks side by side
            others = [way for way in others if way.threads != "blocks"]
        if best is not None and others:
            yield from self._on_threads(best, others, plain, laps)

    def _on_threads(
        self,
        best: ExecutionSchedule,
        others: list[ExecutionSchedule],
        plain: dict[ExecutionSchedule, float],
        laps: dict[ExecutionSchedule, list[float]],
    ) -> Generator[ExecutionSchedule, float, None]:
        """Try the best way on several threads, if they can win what that costs."""
        if self.replaying:
            yield from self._race([best], laps, threaded=True)  # what they would have to beat
            if self._too_dear(threaded=True):
                return
        cache = self.cache
        cache.waiting, cache.at_once = True, False
        for way in others:
            if way.threads == "kernels":  # blocks are side by side in what is replayed only
                plain[way] = yield way  # threads are made
                plain[way] = min(plain[way], (yield way))
        if not self.replaying:
            self.seconds.update(plain)
            return
        cache.waiting, cache.at_once = False, True
        # Threads that do not help as ever don't replayed either, where Python's part is left out.
        limit = _GAIN if self.budget_s is None else _HOPELESS
        others = [way for way in others if plain.get(way, 0.0) <= limit * plain[best]]
        yield from self._race([best, *others], laps, threaded=True)

    def _race(
        self, ways: Sequence[ExecutionSchedule], laps: dict[ExecutionSchedule, list[float]], threaded: bool = False
    ) -> Generator[ExecutionSchedule, float, None]:
        """Replay each way, as long as that pays; `laps` are those counted before.

        Args:
            threaded: ways differ by their threads.
        """
        for way in ways:
            if way in laps:
                continue
            if laps and self._too_dear(threaded):
                break
            before = self.lost_s
            for _ in range(_RECORDING):
                yield way
            laps[way] = []
            for _ in range(_LAPS[0]):
                laps[way].append((yield way))
            self._note(laps)
            self._cost = max(0.0, self.lost_s - before)
        close = [way for way in laps if way in ways]
        for _ in range(_LAPS[1] - _LAPS[0]):
            close = [way for way in close if self.seconds[way] <= _CLOSE * min(self.seconds.values())]
            if len(close) < 2:  # or none: a way of an earlier race may be far ahead of all of these
                break
            few = threaded and min(len(laps[way]) for way in close) < _THREADED_LAPS
            late = self.spent_s > (self.budget_s or math.inf)
            if not few and (sum(laps[close[0]]) > _ENOUGH_S or late):
                break
            for way in close:
                laps[way].append((yield way))
            self._note(laps)

    def _too_dear(self, threaded: bool) -> bool:
        """Whether the next way, should it cost what the last did, is not worth it in the steps that count."""
        if self.budget_s is not None:
            return False
        steps = max(_PAID_STEPS, _PART * self.state.settings.planned_steps)
        part = 1 - 1 / threads.available_threads() if threaded else _ANOTHER
        dear = self._cost > steps * part * min(self.seconds.values())
        self.complete = self.complete and not dear
        return dear

    def _note(self, laps: dict[ExecutionSchedule, list[float]]) -> None:
        self.seconds.update({way: min(times) for way, times in laps.items()})
        self.replayed.update(laps)


def images(state: ArrayState) -> bool:
    """Whether replayed steps may have convolutions of the package's own."""
    if state.settings.strategy != "measured" or state.generators.device.type != "cpu":
        return False
    convolves = any(
        isinstance(m, nn.Conv2d | nn.ConvTranspose2d) and m.weight.dtype == torch.float32
        for m in state.skeleton.modules()
    )
    return convolves and conv.usable()


def fastest(seconds: dict[ExecutionSchedule, float]) -> ExecutionSchedule | None:
    """More members at once, unless fewer are clearly faster."""
    best: ExecutionSchedule | None = None
    for way in sorted(seconds, reverse=True):
        if best is None or seconds[way] < _GAIN * seconds[best]:
            best = way
    return best


# What was found is kept, as times of kernels are.

_BRIEFLY = ", in short runs"


def known(state: ArrayState, key: str, ways: Iterable[ExecutionSchedule]) -> dict[ExecutionSchedule, float] | None:
    """Seconds by way of a step like this, from an earlier trial; None where there was none of the same ways.

    Short runs also take over what other short ones have found, which have left out what would not have paid.
    """
    every = list(ways)
    every += [other for way in every for other in on_threads(way, state)]
    by_name = {str(way): way for way in every}
    times, short = kept(state.generators.device), _PART * state.settings.planned_steps <= _PAID_STEPS
    for name in (key, key + _BRIEFLY)[: 1 + short]:
        found = times.get(name)
        if found is not None and {str(way) for way in ways} <= found.keys() <= by_name.keys():
            return {by_name[way]: seconds for way, seconds in found.items() if seconds is not None} or None
    return None


def keep(state: ArrayState, key: str, trial: Trial) -> None:
    """For `known`, in this process and in others."""
    device, compared = state.generators.device, trial.compared
    times: Times = {str(way): compared.get(way) for way in trial.seconds}
    name = key if trial.complete else key + _BRIEFLY
    kept(device).put(name, times, lasting=not disturbed(device))
    kept(device).write()


def told(seconds: dict[ExecutionSchedule, float]) -> str:
    """For people: what was tried, and how long a step took."""
    return ", ".join(f"{way} ({value * 1e3:.3g} ms a step)" for way, value in seconds.items())
