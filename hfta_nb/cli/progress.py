"""The progress of a run, for the live display and the plain lines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hfta_nb import events as ev
from hfta_nb.cli import text as show
from hfta_nb.records.events import Event
from hfta_nb.records.history import History, Member

WAITING, ACTIVE, DONE = "waiting", "active", "done"


@dataclass
class GroupProgress:
    """The progress of one group.

    Attributes:
        index: number of the group.
        members: number of its variants.
        epochs: planned epochs.
        done: epochs done, with a fractional part.
        elapsed_s: seconds of training.
        state: "waiting", "active" or "done".
    """

    index: int
    members: int
    epochs: int
    done: float = 0.0
    elapsed_s: float = 0.0
    state: str = WAITING
    _began_s: float = math.nan
    _settled: tuple[float, float] | None = None  # epochs and seconds when a rate was first known
    _variants: tuple[int, ...] = ()
    _ended: int = 0  # so many of its variants, from the first on, have ended

    def begin(self, variants: tuple[int, ...], epochs: int) -> None:
        self._variants, self._ended, self.members, self.epochs = variants, 0, len(variants), epochs

    def look(self, members: Mapping[int, Member]) -> None:
        """See whether all have ended. Cheap: it is asked at each end of one."""
        while self._ended < len(self._variants) and members[self._variants[self._ended]].state in ev.FINAL_STATES:
            self._ended += 1
        if self._ended == len(self._variants):
            self.state = DONE

    @property
    def remaining_s(self) -> float:
        """Estimated seconds left at the rate so far; NaN before a rate is known."""
        if self._settled is None or self.done <= self._settled[0]:
            return math.nan
        done, elapsed_s = self._settled
        return (self.elapsed_s - elapsed_s) * (self.epochs - self.done) / (self.done - done)

    def step(self, event: ev.StepsDone) -> None:
        if math.isnan(self._began_s):  # also after resuming, which does not begin at 0
            self._began_s = event.elapsed_s
        self.done, self.elapsed_s = event.epochs_done, event.elapsed_s - self._began_s
        if self._settled is None and math.isfinite(event.remaining_s):
            self._settled = self.done, self.elapsed_s


class RunProgress:
    """The progress per group, and the texts of a display.

    Args:
        history: returns the history of the run, which the runner updates (and may replace).
    """

    def __init__(self, history: Callable[[], History]) -> None:
        self._history = history
        self.groups: dict[int, GroupProgress] = {}
        self._ends = 0

    @property
    def history(self) -> History:
        return self._history()

    def add(self, event: Event) -> None:
        """Add an event that the history already has."""
        if isinstance(event, ev.PlanMade):
            epochs = self.history.run.epochs if self.history.run else 0
            known = self.groups  # the plan changes if arrays are divided during the run
            self.groups = {g.index: known.get(g.index, GroupProgress(g.index, 0, epochs)) for g in event.groups}
            for g in event.groups:
                self.groups[g.index].begin(g.variants, epochs)
                self._look(g.index)
        elif isinstance(event, ev.RunStarted):
            self.groups = {}
        elif isinstance(event, ev.PhaseChanged):
            self._activate(event.group)
        elif isinstance(event, ev.StepsDone):
            self._activate(event.group)
            self.groups[event.group].step(event)
        elif isinstance(event, ev.MemberChanged):
            self._look(self.history.members[event.variant].group)
        elif isinstance(event, ev.EpochDone):
            self._look(event.group)

    def _activate(self, index: int) -> None:
        if index in self.groups and self.groups[index].state == WAITING:
            self.groups[index].state = ACTIVE

    def _look(self, index: int) -> None:
        if index in self.groups:
            self.groups[index].look(self.history.members)

    def bounded(self, line: str) -> str:
        """The line of an early end; of many the first ones, as the leaderboard has the reasons of all."""
        self._ends += bool(line)
        further = "further members that end early are only counted" if self._ends == MOST_ENDS + 1 else ""
        return line if self._ends <= MOST_ENDS else further if line else ""

    def states(self) -> str:
        """``24 running, 1 diverged``."""
        early = (ev.STOPPED, ev.PRUNED, ev.DIVERGED, *sorted(ev.FAILURES))
        order = (ev.RUNNING, ev.PAUSED, ev.WAITING, ev.COMPLETE, *early)
        counts = Counter(member.state for member in self.history.members.values())
        return ", ".join(f"{counts[state]} {state.lower()}" for state in order if counts[state])

    def best(self) -> str:
        """``#7 val_accuracy 0.984 at epoch 12 (lr=0.004, width=16)``; empty at first."""
        best = self.history.leader
        if best is None or self.history.run is None or not math.isfinite(best.best_value):
            return ""
        monitor = show.clean(self.history.run.monitor)
        where = f" ({show.config(best.config)})" if best.config else ""
        return f"#{best.id} {monitor} {show.metric(best.best_value)} at epoch {best.best_epoch}{where}"

    def rate(self) -> str:
        """``184,000 samples/s``, with the share of time spent waiting for data if it is large."""
        last = self.history.progress
        if not last:
            return ""
        waiting = f" ({last.waiting_share:.0%} waiting for data)" if last.waiting_share > MUCH else ""
        return f"{show.count(last.samples_per_s)} samples/s{waiting}"

    def speed(self, group: int) -> str:
        """``11.2x as fast as one after another (measured on 40 steps)``; empty before it was measured."""
        measured = self.history.speeds.get(group)
        if measured is None:
            return ""
        return (
            f"{measured.speedup:.2g}x as fast as one after another (measured on {show.several(measured.steps, 'step')})"
        )

    def device(self) -> str:
        """``cores 93% 12%, memory 1.2 of 24 GiB``."""
        if not self.history.samples:
            return ""
        last = self.history.samples[-1]
        return ", ".join(filter(None, [device(last.values), last.note]))


MOST_ENDS = 40
"""Lines of members that end early."""

MUCH = 0.1
"""Above this share of the time, waiting for data is reported."""

NAMES = {
    "sm_active": "SM active",
    "sm_occupancy": "occupancy",
    "tensor_active": "tensor",
    "dram_active": "DRAM",
    "gpu_utilization": "utilization",
}
MOST_CORES = 8


def device(values: dict[str, float]) -> str:
    """A sample of the device as text."""
    parts = [f"{name} {show.percent(values[key])}" for key, name in NAMES.items() if key in values]
    cores = [value for key, value in values.items() if key.startswith("core") and key[4:].isdecimal()]
    if cores and len(cores) <= MOST_CORES:
        parts.append("cores " + " ".join(map(show.percent, cores)))
    elif cores:
        parts.append(f"{len(cores)} cores at {show.percent(sum(cores) / len(cores))}")
    if "power_w" in values:
        parts.append(f"{values['power_w']:.0f} W")
    if "memory_bytes" in values:
        total = values.get("memory_total_bytes", math.nan)
        whole = f" of {show.memory(total)}" if math.isfinite(total) else ""
        parts.append(f"memory {show.memory(values['memory_bytes'])}{whole}")
    return ", ".join(parts)
