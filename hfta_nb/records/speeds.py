"""What fusing gains: a training step, and the whole of a run, each beside the same members one after another."""

from __future__ import annotations

import math
from typing import NamedTuple

from hfta_nb.records import events as ev
from hfta_nb.records.history import History, Member

SPAN_S = 5.0
"""See `SteadyRate`."""


class Pace(NamedTuple):
    """Seconds of the same work, one member after another and fused."""

    serial_s: float
    fused_s: float

    @property
    def speedup(self) -> float:
        """How many times as fast fused is; NaN where it can't be told."""
        return self.serial_s / self.fused_s if self.fused_s else math.nan


def step_of(history: History) -> Pace:
    """A training step of every member of the arrays that were measured."""
    speeds = history.speeds.values()
    return Pace(math.fsum(s.serial_step_s for s in speeds), math.fsum(s.step_s for s in speeds))


def run_of(history: History) -> Pace:
    """The run so far: what it took, and what the steps and validations that it has made take one after another.

    The serial time is predicted from plain modules that were timed beside each array's first steps. It has no data to
    wait for, no checkpoints and nothing before the first step: one's own loop is rarely faster. NaN where members have
    trained in an array that was not measured.
    """
    inherited = {e.variant: e.step for e in history.edits if e.how == "cloned" and e.warm}
    each = (_serial_s(history, member, inherited.get(member.id, 0)) for member in history.members.values())
    return Pace(math.fsum(each), history.took_s)


def _serial_s(history: History, member: Member, inherited: int) -> float:
    """What a member's validations and steps take alone, but for those that it has inherited."""
    if not member.step_loss.steps:
        return 0.0
    speed = history.speeds.get(member.group)
    if speed is None:
        return math.nan
    validated = max((len(c.values) for name, c in member.curves.items() if name.startswith("val_")), default=0)
    steps_s = max(0, member.step_loss.steps[-1] - inherited) * speed.serial_step_s
    return (steps_s + (validated * speed.serial_validation_s if validated else 0.0)) / speed.members


def words(history: History) -> str:
    """``1.94x as fast as one after another so far, a step 2.67x``, or that it is slower; empty where nothing was
    measured."""
    if not history.speeds:
        return ""
    run, step = run_of(history).speedup, step_of(history).speedup
    if not math.isfinite(run) or not run:
        return f"{_slower(step)}a step {step:.3g}x as fast as one after another"
    so_far = "" if history.state in ev.FINAL_STATES else " so far"
    # A run has more in it than its steps: where it gains more, they were timed while others had the machine.
    steps = f", a step {step:.3g}x" if step >= run else ""
    return f"{_slower(run)}{run:.3g}x as fast as one after another{so_far}{steps}"


def _slower(ratio: float) -> str:
    return "slower: " if ratio < 1 else ""


def basis(history: History) -> str:
    """What `words` goes by, and where fusing is slower, why it is done; empty where nothing was measured."""
    measured = history.speeds.values()
    if not measured:
        return ""
    arrays = {member.group for member in history.members.values() if member.step_loss.steps}
    steps = sum(s.steps for s in measured)
    said = f"Against plain modules, timed beside {steps} of the first steps in {len(measured)} of {len(arrays)} arrays"
    run, step = run_of(history).speedup, step_of(history).speedup
    if step < 1 and not run >= 1:
        why = "Variants train fused unless Study(serial=True) says otherwise; with few or small ones that can be slower"
    elif run < 1:
        why = "Building and trying what is fastest took longer so far than fusing has gained; a longer run gains more"
    else:
        return f"{said}."
    return f"{said}. {why}."


class SteadyRate:
    """Samples a second of about the last `SPAN_S` seconds: steps in which something is tried would make it jump."""

    def __init__(self) -> None:
        self._elapsed_s = self._sum = self._weight = 0.0

    def after(self, step: ev.StepsDone) -> float:
        """The rate, with one more event; the same one again changes nothing."""
        lap_s = step.elapsed_s - self._elapsed_s
        if lap_s < 0:  # another run
            self._sum = self._weight = 0.0
            lap_s = step.elapsed_s
        kept, self._elapsed_s = math.exp(-lap_s / SPAN_S), step.elapsed_s
        self._sum = kept * self._sum + (1 - kept) * step.samples_per_s
        self._weight = kept * self._weight + 1 - kept
        return self._sum / self._weight if self._weight else step.samples_per_s
