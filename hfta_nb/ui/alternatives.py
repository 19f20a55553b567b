"""Other plans of the same sweep, to click: fewer arrays with more padding, or more arrays without any."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ipywidgets

from hfta_nb import events as ev
from hfta_nb import fleet
from hfta_nb.errors import HftaError
from hfta_nb.study import Study, array_name
from hfta_nb.ui.debounce import Debounced, Later
from hfta_nb.ui.rate_measuring import Measuring
from hfta_nb.ui.simulate import rates_key
from hfta_nb.ui.simulated import duration
from hfta_nb.ui.text import count, escape, listing, memory, shorten
from hfta_nb.ui.text import words as error_words
from hfta_nb.ui.widgets import button, words

Make = Callable[[float | str], Study]
"""Makes the defined study with another value of `padding`."""

AFTER_S = 0.25
MOST_ARRAYS = 200
_HINT = "Train each array of each plan on a few batches in the worker process, and discard the weights"
_SAID = "Times are of training steps, measured on a few batches; starting, tuning and validation come on top."


@dataclass(frozen=True)
class Plan:
    """A plan with another value of `padding`."""

    padding: float | str
    study: Study
    label: str


class Alternatives(ipywidgets.VBox):  # type: ignore[misc]
    """A line of buttons, each with what its plan takes; nothing where the plan is the only one.

    Args:
        kind: kind of executor that measures.
        later: the kernel's main thread.
        choose: called with the value of `padding` that was chosen.

    Attributes:
        plans: the other plans.
        estimate: the button that measures.
    """

    def __init__(self, kind: str, later: Later, choose: Callable[[float | str], None]) -> None:
        self._later, self._choose = later, choose
        self._study: Study | None = None
        self._make: Make | None = None
        self._profiles: dict[Any, fleet.Profile] = {}  # of all plans measured so far
        self._waiting: list[Study] = []  # to be measured, the first one now
        self.plans: list[Plan] = []
        self._measuring = Measuring(kind, self._on_rates)
        self._soon = Debounced(later, AFTER_S, self._look)
        self.buttons = ipywidgets.HBox([]).add_class("hfta-alternatives")
        self.estimate = button("estimate times", _HINT, "hfta-button-estimate")
        self.estimate.on_click(lambda _: self.measure() if not self._waiting else self.stop())
        self.said = words("hfta-plan-needs")
        super().__init__([self.buttons, self.said])
        self.plan(None, None)

    def __repr__(self) -> str:
        return f"Alternatives({[one.label for one in self.plans]})"

    def plan(self, study: Study | None, make: Make | None) -> None:
        """Called with a new plan, and what makes others; None while there is no plan, or a run is in progress."""
        self.stop()
        self._study, self._make, self.plans = study, make, []
        self._show()
        if study is not None:
            self._soon()

    def measure(self) -> None:
        """Measure this plan and the others, one after another."""
        studies = [] if self._study is None else [self._study, *(plan.study for plan in self.plans)]
        self._waiting = [study for study in studies if rates_key(study) not in self._profiles]
        self._next()

    def stop(self) -> None:
        """Stop measuring; plans that were measured keep their times."""
        if self._waiting:
            self._waiting = []
            self._measuring.leave()
            self._show()

    # Within.

    def _look(self) -> None:
        """Find the other plans."""
        study, make = self._study, self._make
        if study is None or make is None or study.serial:
            return
        arrays = arrays_of(study)
        self.plans = []
        for padding in (0.99, "never"):
            try:
                other = make(padding)
            except HftaError:
                continue
            found = arrays_of(other)
            if found != arrays and len(found) <= MOST_ARRAYS:
                self.plans.append(Plan(least(make, found, other) if padding != "never" else padding, other,
                                       label(study, other)))  # fmt: skip
        self._show()

    def _next(self) -> None:
        """Measure the next plan, if one waits."""
        try:
            if self._waiting:
                self._measuring.begin(self._waiting[0])
        except HftaError as error:
            self._fail(error_words(error))
        self._show()

    def _on_rates(self, rates: Mapping[int, ev.RateMeasured], state: str, reason: str) -> None:
        """Called from any thread; see `Measuring`."""
        if not self._waiting or state not in ev.FINAL_STATES:
            return
        if state != ev.COMPLETE:
            self._fail(shorten(reason))
            return
        study = self._waiting.pop(0)
        found = {
            array_name(r.group): fleet.Measured(r.members, r.samples_per_s, r.memory_bytes) for r in rates.values()
        }
        self._profiles[rates_key(study)] = fleet.Profile(found)
        self._later.soon(self._next)

    def _fail(self, why: str) -> None:
        self._waiting = []
        self._show()
        self.said.value = f'<span role="alert" class="hfta-error">not measured: {escape(why)}</span>'

    def _show(self) -> None:
        parts: list[Any] = []
        for plan in self.plans:
            made = button(plan.label, f"Set padding to {plan.padding}", "hfta-button-alternative")
            made.on_click(lambda _, padding=plan.padding: self._choose(padding))
            text = words("hfta-alternative")
            text.value = escape(self._takes(plan.study))
            parts.append(ipywidgets.HBox([made, text]).add_class("hfta-field"))
        self.estimate.description = "stop estimating" if self._waiting else "estimate times"
        self.buttons.children = [*parts, self.estimate] if parts else []
        self.layout.display = "" if parts else "none"
        known = None if self._study is None else self._seconds(self._study)
        text = "Measuring each plan on a few batches ..." if self._waiting else ""
        text = f"This plan takes about {duration(known)}. {_SAID}" if known is not None and not text else text
        self.said.value = f'<span role="status">{escape(text)}</span>' if text else ""

    def _takes(self, study: Study) -> str:
        """What a plan takes; its time only where it was measured."""
        groups = study.groups()
        padding = max(group.padding for group in groups)
        size = memory(max(g.fixed_bytes + g.memory_bytes * len(g.variants) for g in groups))
        seconds = self._seconds(study)
        parts = [count(len(groups), "array"), f"{padding:.0%} padding" if padding else "no padding", f"about {size}"]
        return ", ".join(parts + ([f"about {duration(seconds)}"] if seconds is not None else []))

    def _seconds(self, study: Study) -> float | None:
        """Seconds of training steps on one device; None where they were not measured."""
        profile = self._profiles.get(rates_key(study))
        return None if profile is None else min(p.makespan_s for p in study.simulate(1, profile).plans.values())


def arrays_of(study: Study) -> frozenset[tuple[int, ...]]:
    """The variants of each array."""
    return frozenset(group.variants for group in study.groups())


def least(make: Make, arrays: frozenset[tuple[int, ...]], study: Study) -> float:
    """The least round value of `padding` that makes these arrays."""
    first = math.ceil(20 * max(group.padding for group in study.groups())) / 20
    return next((p for p in (first, first + 0.05) if p < 1 and arrays_of(make(p)) == arrays), 0.99)


def label(study: Study, other: Study) -> str:
    """What another plan does: ``pad to one array``, ``split by width``."""
    arrays = len(other.groups())
    if arrays < len(study.groups()):
        return "pad to one array" if arrays == 1 else f"pad to {arrays} arrays"
    apart = split_by(other)
    return f"split by {listing(apart)}" if apart else f"split into {count(arrays, 'array')}"


def split_by(study: Study) -> list[str]:
    """The axes in which the members of no array differ."""
    together = {name for group in study.plan_groups for name in group.differing_in}
    return [name for name, values in study.grid.axes.items() if len(values) > 1 and name not in together]
