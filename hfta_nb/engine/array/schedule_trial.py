"""Finds the fastest schedule of an array's steps by timing such steps."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence

from hfta_nb.engine.array.execution_schedule import ExecutionSchedule, convolutions, on_threads
from hfta_nb.engine.array.native_libraries import available
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.strategy.autotune import clock_of
from hfta_nb.engine.kernels.strategy.sandbox import started_s
from hfta_nb.engine.kernels.strategy.times import Times
from hfta_nb.engine.kernels.strategy.timing_cache import kept
from hfta_nb.engine.members import threads
from hfta_nb.engine.replay.array_call import BACKWARD, RESULTS, CallKind
from hfta_nb.engine.replay.calls import Calls

_HOPELESS = 1.6
"""A schedule whose eager steps take more than this multiple of the fastest is not replayed."""
_HOPELESS_IMAGES = 2.5
"""The same if only replayed steps have convolutions by the package's own kernels: these gain most with few members at
once, whose images stay in cache."""
_RECORDING = 2
"""The number of recorded steps."""
_LAPS = 2, 20
"""Timed replayed steps of each schedule: the minimum, and the maximum for those close to the fastest."""
_ENOUGH_S = 2e-2
"""No more laps are added after this long: only short laps need repetition."""
_SHORT_S = 2e-3
"""Schedules with laps as short as this get four at once: a single disturbance can double each of them."""
_THREADED_LAPS = 6
"""The minimum for close schedules on several threads, whose synchronization makes times vary."""
_GAIN = 0.95
"""A smaller block size must take less than this fraction of the time of a larger one."""
_CLOSE = 1.25
"""Schedules within this multiple of the fastest are close."""
_PAID_STEPS = 125
"""Break-even horizon: another schedule is recorded only if its possible gain over this many steps exceeds the cost of
the last one."""
_UNPLANNED_S = 10.0
"""The horizon of a loop whose length nobody knows, at most `_PAID_STEPS`: one that lasts this long is to gain."""
_PART = 0.2
"""In a long run, the horizon as a fraction of all expected steps: another schedule takes at most 3% of the run."""
_ANOTHER = 0.15
"""The fraction of the fastest replayed step that another block size can be expected to save. Threads save at most the
share of all threads but one."""
_RECORDED = 0.6
"""A recorded step is expected to take at most this fraction of the eager one."""


class Trial:
    """Finds the fastest schedule by steps that are made with each.

    Each step runs with the schedule `way`, and its time is passed to `took`. The first step shows how the model runs at
    all. Then each schedule runs eagerly once. Promising schedules are recorded and replayed, the best one first, as
    long as the possible gain exceeds the cost. All of that is single-threaded; then the fastest schedule is tried on
    several threads. At the end, the array has the fastest schedule, and only its recordings are kept.

    Args:
        calls: of the array whose steps these are.
        ways: the schedules to try, larger block sizes first.
        replaying: whether steps may be replayed.
        budget_s: time after which close schedules get no more laps. By default, a schedule is tried only if the cost is
            regained soon.
        kind: of these calls.

    Attributes:
        way: the schedule of the next step.
        seconds: of a step by schedule: of the fastest replayed one, or eager if it was not replayed.
        steps: the number of steps so far.
        tried: of `ways`, those that are timed or too slow to be.
        spent_s: their total time.
        done: whether the schedule has been chosen.
        complete: whether no schedule was skipped only because of too few expected steps.
    """

    def __init__(
        self,
        calls: Calls,
        ways: Sequence[ExecutionSchedule],
        replaying: bool,
        budget_s: float | None = None,
        kind: CallKind = BACKWARD,
    ) -> None:
        self.calls, state = calls, calls.state
        self.kind, self.cache = kind, calls.caches[kind]
        self.state, self.ways, self.replaying, self.budget_s = state, list(ways), replaying, budget_s
        self.complete, self._cost = True, 0.0  # the cost of recording the last schedule
        self.seconds: dict[ExecutionSchedule, float] = {}
        self._plain: dict[ExecutionSchedule, float] = {}
        self.replayed: set[ExecutionSchedule] = set()
        self.steps, self.tried, self.spent_s, self.done = 0, 0, 0.0, False
        self.clock, self._started_s = clock_of(state.generators.device), started_s()
        self._requested = state.settings.compiling
        if kind is BACKWARD:
            state.settings.compiling = "never"  # compiling does not pay during a trial
        self._plan = self._planned()
        self.way = next(self._plan)
        self.way.put(state)

    def took(self, seconds: float) -> None:
        """Report the time of the step that has just been made."""
        self.steps += 1
        self.spent_s += seconds
        held = self.way.is_active(self.state)
        if not held and not (self.way.threads and len(self.ways) > 1):  # one member at a time is the only schedule
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
        """End with the fastest schedule so far."""
        if self.done:
            return
        self.done = True
        self._plan.close()
        best = fastest(self.compared) if self.way.is_active(self.state) else None
        if best is not None:
            best.put(self.state)
        self._leave()
        # Recordings for other schedules take memory.
        self.cache.keep(self.state.settings.block_size, self.state.settings.threads)

    def _leave(self) -> None:
        if self.kind is BACKWARD:
            self.state.settings.compiling = self._requested
        self.cache.waiting = self.cache.at_once = False

    @property
    def _on_gpu(self) -> bool:
        return self.state.generators.device.type == "cuda"

    @property
    def _limit(self) -> float:
        """A schedule whose eager steps take more than this multiple of the fastest is not replayed."""
        if self.replaying and self._on_gpu:
            return math.inf  # eager steps of small blocks wait for their launches, which replayed ones do not
        return _HOPELESS_IMAGES if self.replaying and "conv" in available(self.state) else _HOPELESS

    @property
    def compared(self) -> dict[ExecutionSchedule, float]:
        """Seconds of the schedules to choose from: of those that were replayed, if any."""
        return {way: s for way, s in self.seconds.items() if way in self.replayed} or self.seconds

    @property
    def lost_s(self) -> float:
        """How much longer the steps took than they would have with the fastest schedule, without what happens once."""
        spent = self.spent_s - (started_s() - self._started_s)
        return max(0.0, spent - self.steps * min(self.seconds.values(), default=0.0))

    def _planned(self) -> Generator[ExecutionSchedule, float, None]:
        first, cache = self.ways[0], self.cache
        cache.waiting = True
        yield first
        plain: dict[ExecutionSchedule, float] = {}
        for way in [*self.ways[1:], first]:  # the first has just run
            if self._on_gpu:
                yield way  # libraries plan and load the kernels of new shapes, which takes up to seconds
            plain[way] = yield way
            self.tried += not self.replaying
        self.seconds, self._plain = dict(plain), plain
        limit = self._limit * min(plain.values())
        # With trained convolutions, smaller block sizes gain more from replay, and recording is expensive: the first
        # schedule to be recorded may be the last one.
        small = self.replaying and self.kind is not RESULTS and bool(convolutions(self.state))
        hopeful = [way for way in self.ways if plain[way] <= limit]
        hopeful.sort(key=lambda way: (way.block_size if small else 0, plain[way]))
        self.tried = len(self.ways) - len(hopeful) if self.replaying else self.tried
        cache.waiting, cache.at_once = not self.replaying, self.replaying
        laps: dict[ExecutionSchedule, list[float]] = {}
        if len(hopeful) > 1 and self.replaying:
            yield from self._race(hopeful, laps)
        best = fastest(self.compared)
        others = [] if best is None else on_threads(best, self.state)
        if self.kind is not BACKWARD:  # only whole steps run blocks in parallel
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
        """Try the best schedule on several threads, if they can regain the cost."""
        if self.replaying:
            yield from self._race([best], laps, threaded=True)  # the time to beat
            if self._too_dear(best, threaded=True):
                return
        cache = self.cache
        cache.waiting, cache.at_once = True, False
        for way in others:
            if way.threads == "kernels":  # blocks run in parallel only in replayed steps
                plain[way] = yield way  # creates the threads
                plain[way] = min(plain[way], (yield way))
        if not self.replaying:
            self.seconds.update(plain)
            return
        cache.waiting, cache.at_once = False, True
        # If threads do not help eagerly, they do not help in replay either.
        limit = _GAIN if self.budget_s is None else _HOPELESS
        others = [way for way in others if plain.get(way, 0.0) <= limit * plain[best]]
        yield from self._race([best, *others], laps, threaded=True)

    def _race(
        self, ways: Sequence[ExecutionSchedule], laps: dict[ExecutionSchedule, list[float]], threaded: bool = False
    ) -> Generator[ExecutionSchedule, float, None]:
        """Replay each schedule, as long as that pays; `laps` are earlier ones, which count.

        Args:
            threaded: the schedules differ by their threads.
        """
        for way in ways:
            if way in laps:
                continue
            if laps and self._too_dear(way, threaded):
                break
            before = self.lost_s
            for _ in range(_RECORDING):
                yield way
            laps[way] = []
            while len(laps[way]) < _LAPS[0] or (len(laps[way]) < 2 * _LAPS[0] and min(laps[way]) < _SHORT_S):
                laps[way].append((yield way))
            self._note(laps)
            self._cost = max(0.0, self.lost_s - before)
            self.tried += not threaded
        close = [way for way in laps if way in ways]
        for _ in range(_LAPS[1] - _LAPS[0]):
            close = [way for way in close if self.seconds[way] <= _CLOSE * min(self.seconds.values())]
            if len(close) < 2:  # possibly none: a schedule of an earlier race may be far ahead
                break
            few = threaded and min(len(laps[way]) for way in close) < _THREADED_LAPS
            late = self.spent_s > (self.budget_s or math.inf)
            if not few and (sum(laps[close[0]]) > _ENOUGH_S or late):
                break
            for way in close:
                laps[way].append((yield way))
            self._note(laps)

    def _too_dear(self, way: ExecutionSchedule, threaded: bool) -> bool:
        """True if the next schedule, at the cost of the last one, does not pay within the remaining steps."""
        if self.budget_s is not None:
            return False
        planned, best = self.state.settings.planned_steps, min(self.seconds.values())
        soon = min(_PAID_STEPS, _UNPLANNED_S / min(self._plain.values()))
        steps = min(max(_PAID_STEPS, _PART * planned), planned) if planned else soon  # nothing pays after the end
        saved = steps * (1 - 1 / threads.available_threads() if threaded else _ANOTHER) * best
        if not threaded:  # half of the run may regain what the eager step promises
            saved = max(saved, planned / 2 * (best - _RECORDED * self._plain[way]))
        dear = self._cost > saved
        self.complete = self.complete and not dear
        return dear

    def _note(self, laps: dict[ExecutionSchedule, list[float]]) -> None:
        self.seconds.update({way: min(times) for way, times in laps.items()})
        self.replayed.update(laps)


def fastest(seconds: dict[ExecutionSchedule, float]) -> ExecutionSchedule | None:
    """The fastest schedule; larger block sizes are preferred unless smaller ones are clearly faster."""
    best: ExecutionSchedule | None = None
    for way in sorted(seconds, reverse=True):
        if best is None or seconds[way] < _GAIN * seconds[best]:
            best = way
    return best


# Results are kept like the times of kernels.


def by_name(state: ArrayState, ways: Iterable[ExecutionSchedule]) -> dict[str, ExecutionSchedule]:
    """All schedules that a trial of these may compare, by the names under which their times are kept."""
    every = list(ways)
    return {str(way): way for way in (*every, *(other for way in every for other in on_threads(way, state)))}


def known(state: ArrayState, key: str, ways: Iterable[ExecutionSchedule]) -> dict[ExecutionSchedule, float] | None:
    """Seconds by schedule from an earlier trial of the same schedules for such a step; None if there was none.

    Runs first use results of other runs of about their length, which have skipped schedules that would not have paid:
    what a run has once found, all others like it find.

    Returns:
        None if there was no trial; empty if members can only run in one way.
    """
    names, times = by_name(state, ways), kept(state.generators.device)
    for name in (key + _length(state), key):
        found = times.get(name)
        if found is not None and {str(way) for way in ways} <= found.keys() <= names.keys():
            return {names[way]: seconds for way, seconds in found.items() if seconds is not None}
    return None


def keep(state: ArrayState, key: str, trial: Trial, ways: Iterable[ExecutionSchedule]) -> None:
    """Store results of a trial of these schedules for `known`, in this process and others.

    Nothing is stored if there are results by now that `known` finds: processes that tried at once must agree, also
    where one of them has skipped schedules and another has not.
    """
    requested, compared = [str(way) for way in ways], trial.compared
    times: Times = dict.fromkeys(requested) | {str(way): compared.get(way) for way in trial.seconds}
    names = key, key + _length(state)
    kept(state.generators.device).put(names[not trial.complete], times, unless=names)


def _length(state: ArrayState) -> str:
    """Of the run: how many steps it takes decides which schedules are worth trying."""
    steps = state.settings.planned_steps
    short = not 0 < steps < _PAID_STEPS and _PART * steps <= _PAID_STEPS
    return ", in short runs" if short else f", in runs of about 2^{int(steps).bit_length()} steps"


def described(seconds: dict[ExecutionSchedule, float]) -> str:
    """For people: the schedules that were tried, and their times."""
    return ", ".join(f"{way} ({value * 1e3:.3g} ms a step)" for way, value in seconds.items())
