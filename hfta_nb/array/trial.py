"""Trying ways to run an array's steps, on steps as they are made: which is fastest?"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from typing import Protocol

import torch
from torch import nn

from hfta_nb.array.ways import Way, convolutions, on_threads
from hfta_nb.eager.state import ArrayState
from hfta_nb.kernels.native import conv
from hfta_nb.kernels.strategy.kept import kept
from hfta_nb.kernels.strategy.measuring import clock_of, disturbed
from hfta_nb.kernels.strategy.times import Times
from hfta_nb.members import threads
from hfta_nb.replay.calls import Calls

_HOPELESS = 1.6
"""Times the fastest: slower than this without replaying, a way is not looked at with it."""
_LONG = 1.25, 0.02
"""The same for long steps, of which Python is a small part: times the fastest, and so many seconds more."""
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
"""By so many steps what trying has cost is to be won back, next to members one after another without replaying. Another
way is recorded only if, should it cost as much as the last one did, that still holds."""
_PART = 0.05
"""The same as a part of all steps that are to come, in a long run."""
_LEAST_GAIN = 0.05
"""Part of that time which may be won in any case."""
_ANOTHER = 0.15
"""Part of the fastest replayed step which another block size can be expected to win. By threads it is what they save if
nothing is lost: all but one thread's share."""


class Captures(Protocol):
    """What records and replays calls of one form; see `CapturedSteps`."""

    waiting: bool
    at_once: bool

    def keep(self, block_size: int, threads: str) -> None:
        """Forget what runs in another way."""

    def clear(self) -> None:
        """Forget all."""


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
        brief: only run each way as ever, as all will be tried again soon.
        budget_s: after so long, ways that are close have no more laps; without, steps train, and a way is tried only
            where that is won back soon.
        captures: what records and replays these calls; those of `backward` without.

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
        ways: Sequence[Way],
        replaying: bool,
        budget_s: float | None = None,
        brief: bool = False,
        captures: Captures | None = None,
    ) -> None:
        self.calls, state = calls, calls.state
        self.captures: Captures = calls.steps.cache if captures is None else captures
        self.state, self.ways, self.replaying, self.budget_s = state, list(ways), replaying, budget_s
        self.brief, self.complete = brief, not brief
        self._cost = 0.0  # what recording the last way has cost
        self.seconds: dict[Way, float] = {}
        self.replayed: set[Way] = set()
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
        self.captures.keep(self.state.settings.block_size, self.state.settings.threads)

    def abandon(self) -> None:
        """End without a choice: somebody else has chosen."""
        if not self.done:
            self.done = True
            self._plan.close()
            self._leave()

    def _leave(self) -> None:
        if self._steps:
            self.state.settings.compiling = self._asked
        self.captures.waiting = self.captures.at_once = False

    @property
    def _steps(self) -> bool:
        """Whether what is tried are whole steps."""
        return self.captures is self.calls.steps.cache

    @property
    def compared(self) -> dict[Way, float]:
        """Seconds of the ways from which the fastest is taken: those that were replayed, if any were."""
        return {way: s for way, s in self.seconds.items() if way in self.replayed} or self.seconds

    @property
    def lost_s(self) -> float:
        """How much longer the steps took than they would have in the fastest way."""
        return max(0.0, self.spent_s - self.steps * min(self.seconds.values(), default=0.0))

    def _planned(self) -> Generator[Way, float, None]:
        first, steps = self.ways[0], self.captures
        steps.waiting = True
        yield first
        plain: dict[Way, float] = {}
        for way in [*self.ways[1:], first]:  # the first has just run
            plain[way] = yield way
        self.seconds = dict(plain)
        if self.brief:
            return
        limit = self._limit(min(plain.values()))
        # Where convolutions are trained, fewer members at once win the more by being replayed, and recording is dear:
        # what is recorded first may be the last.
        trained = self.captures is not self.calls.results.cache
        small = self.replaying and trained and bool(convolutions(self.state))
        hopeful = [way for way in self.ways if plain[way] <= limit]
        hopeful.sort(key=lambda way: (way.block_size if small else 0, plain[way]))
        steps.waiting, steps.at_once = not self.replaying, self.replaying
        laps: dict[Way, list[float]] = {}
        if len(hopeful) > 1 and self.replaying:
            yield from self._race(hopeful, laps, plain[self.ways[-1]])
        best = fastest(self.compared)
        others = [] if best is None else on_threads(best, self.state)
        if not self._steps:  # only these have blocks side by side
            others = [way for way in others if way.threads != "blocks"]
        if best is not None and others:
            yield from self._on_threads(best, others, plain, laps)

    def _limit(self, least: float) -> float:
        """Seconds of a step as ever by which a way is hopeless, next to the fastest."""
        if self.replaying and images(self.state):
            return _HOPELESS_IMAGES * least
        return min(_HOPELESS * least, _LONG[0] * least + _LONG[1])

    def _on_threads(
        self, best: Way, others: list[Way], plain: dict[Way, float], laps: dict[Way, list[float]]
    ) -> Generator[Way, float, None]:
        """Try the best way on several threads, if they can win what that costs."""
        if self.replaying:
            yield from self._race([best], laps)  # what they would have to beat
            if self._too_dear(_saved()):
                return
        steps = self.captures
        steps.waiting, steps.at_once = True, False
        for way in others:
            if way.threads == "kernels":  # blocks are side by side in what is replayed only
                plain[way] = yield way  # threads are made
                plain[way] = min(plain[way], (yield way))
        if not self.replaying:
            self.seconds.update(plain)
            return
        steps.waiting, steps.at_once = False, True
        # Threads that do not help as ever don't replayed either, where Python's part is left out.
        limit = _GAIN if self.budget_s is None else _HOPELESS
        others = [way for way in others if plain.get(way, 0.0) <= limit * plain[best]]
        yield from self._race([best, *others], laps)

    def _race(
        self, ways: Sequence[Way], laps: dict[Way, list[float]], alone_s: float | None = None
    ) -> Generator[Way, float, None]:
        """Replay each way, as long as that pays; `laps` are those counted before.

        Args:
            alone_s: of a step of members one after another, as ever; without, ways differ by their threads.
        """
        for way in ways:
            if way in laps:
                continue
            if laps and self._too_dear(_saved() if alone_s is None else _ANOTHER, alone_s):
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
            few = alone_s is None and min(len(laps[way]) for way in close) < _THREADED_LAPS
            late = self.spent_s > (self.budget_s or math.inf)
            if not few and (sum(laps[close[0]]) > _ENOUGH_S or late):
                break
            for way in close:
                laps[way].append((yield way))
            self._note(laps)

    def _too_dear(self, part: float, alone_s: float | None = None) -> bool:
        """Whether the next way, should it cost what the last did, is not worth it in the steps that count.

        Args:
            part: of the fastest step so far, which the next way may win.
            alone_s: see `_race`.
        """
        if self.budget_s is not None:
            return False
        dear = self._cost > self._steps_that_count * part * min(self.seconds.values())
        if alone_s is not None:
            dear = dear or self.lost_s + self._cost > self._won_s(alone_s)
        self.complete = self.complete and not dear
        return dear

    @property
    def _steps_that_count(self) -> float:
        return max(_PAID_STEPS, _PART * self.state.settings.planned_steps)

    def _won_s(self, alone_s: float) -> float:
        """What the fastest way so far wins, in the steps that count, over steps of this length."""
        return self._steps_that_count * max(alone_s - min(self.seconds.values()), _LEAST_GAIN * alone_s)

    def _note(self, laps: dict[Way, list[float]]) -> None:
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


def _saved() -> float:
    """Part of a step's time that all threads together save at most."""
    return 1 - 1 / threads.at_hand()


def fastest(seconds: dict[Way, float]) -> Way | None:
    """More members at once, unless fewer are clearly faster."""
    best: Way | None = None
    for way in sorted(seconds, reverse=True):
        if best is None or seconds[way] < _GAIN * seconds[best]:
            best = way
    return best


# What was found is kept, as times of kernels are.

_BRIEFLY = ", in short runs"


def known(state: ArrayState, key: str, ways: Iterable[Way]) -> dict[Way, float] | None:
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


def told(seconds: dict[Way, float]) -> str:
    """For people: what was tried, and how long a step took."""
    return ", ".join(f"{way} ({value * 1e3:.3g} ms a step)" for way, value in seconds.items())
