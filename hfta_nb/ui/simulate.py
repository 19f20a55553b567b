"""Simulate: what the planned study would take on other devices, as a Gantt chart and a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets

from hfta_nb import events as ev
from hfta_nb import fleet
from hfta_nb.errors import HftaError, StudyError
from hfta_nb.models.study_config import ARGUMENTS
from hfta_nb.study import Study, array_name, executors
from hfta_nb.ui.debounce import Debounced, Later
from hfta_nb.ui.fields import price, whole
from hfta_nb.ui.rate_measuring import Measuring
from hfta_nb.ui.simulated import chart, fastest_of, label, summary, ways
from hfta_nb.ui.text import count, escape, shorten
from hfta_nb.ui.text import words as error_words
from hfta_nb.ui.widgets import Section, button, words

REDRAW_S = 0.25
"""Idle time after typing before the simulation is made again."""

MOST_DEVICES, MOST_ARRAYS = 1024, 200
"""With more the kernel would be busy for seconds."""

FASTEST = "the fastest"
_PROMPT = "how long the arrays would take on other devices, and which of them where"
_ASSUMED = (
    "Rates are assumed: the time of a step is proportional to the number of parameters. Times therefore have no unit, "
    "and only their ratios are meaningful. Press measure to measure the rates on a few batches."
)
_LEFT_OUT = (
    "Times are those of training steps: a run also starts its process, builds arrays, tries what is fastest, validates "
    "and saves, which in a short run takes most of the time."
)
_RUNNING = "a run is in progress; measuring and planning would disturb it"


class Simulate(Section):
    """A part of Plan that is folded at first, and calculates nothing then.

    Args:
        where: runs of this Workbench are executed.
        later: the kernel's main thread.

    Attributes:
        devices, price, way: fields: number of devices, price of one for an hour, and which way the chart shows.
        profile: measured rates of the planned arrays; None without.
    """

    def __init__(self, where: executors.Where, later: Later) -> None:
        self._where, self._later = where, later
        self._study: Study | None = None
        self._key: Any = None
        self._at_rest = True
        self.profile: fleet.Profile | None = None
        self._found: fleet.Simulation | None = None
        self._done = 0  # arrays measured so far
        self._measuring = Measuring(where.kind, self._on_rates)
        self._soon = Debounced(later, REDRAW_S, self.draw)
        hint = "The number of devices to simulate; the run itself does not change"
        workers = min(where.arguments.get("workers") or _devices(), MOST_DEVICES)
        self.devices = whole("devices", workers, 1, hint, most=MOST_DEVICES)
        self.price = price("price per device-hour", "Of one device for one hour, in any currency")
        self.way = ipywidgets.Dropdown(options=[FASTEST], description="chart of", layout={"width": "auto"},
                                       tooltip="The way of using the devices that the chart shows")  # fmt: skip
        self.measure_button = button("measure", "", "hfta-simulate-measure")
        self.measure_button.on_click(lambda _: self.stop_measuring() if self._measuring.on else self._pressed())
        self.wrong, self.rates = words("hfta-error"), words("hfta-simulate-rates")
        self.chart, self.figures = words("hfta-simulate-chart"), words("hfta-simulate-ways")
        row = ipywidgets.HBox([self.devices, self.price, self.way.add_class("hfta-field"), self.measure_button])
        parts = [row.add_class("hfta-fields"), self.wrong, self.rates, self.chart, self.figures]
        super().__init__("Simulate", parts, unfolded=False)
        for field in (self.devices, self.price):
            field.observe(lambda _: self._edited(), "value")
        self.way.observe(lambda _: self._show(), "value")
        self.head.observe(lambda _: self._soon(), "unfolded")
        self.plan(None)

    def __repr__(self) -> str:
        return "Simulate()"

    def hints(self) -> dict[str, str]:
        """What to say of each field, by its label."""
        return {str(w.description): str(w.tooltip) for w in (self.devices, self.price, self.way)}

    def plan(self, study: Study | None) -> None:
        """Called with a new plan, or None; nothing is shown where there is one array and one place for it."""
        several = study is not None and _several(study, self._where)
        self.layout.display = "" if several else "none"
        key = rates_key(study) if study is not None and several else None
        if key != self._key:
            self.stop_measuring()
            self.profile = None
        self._study, self._key = study if several else None, key
        if not several or not self._at_rest or not self.head.unfolded:
            self._forget()
        self._label()
        self._soon()

    def enable(self, at_rest: bool) -> None:
        """Called with whether no run is in progress."""
        if at_rest == self._at_rest:
            return
        self._at_rest = at_rest
        if not at_rest:
            self.stop_measuring()
        for field in (self.devices, self.price):
            field.disabled = not at_rest
        self._label()
        if self._found is None:
            self._soon()

    def draw(self) -> None:
        """Simulate, and show the chart and the table; where that can't be done, say why."""
        if self._study is None or not self._at_rest or not self.head.unfolded:
            return
        if self._fields_wrong():
            self._forget()
            return
        try:
            _check_size(self._study)
            paid = self.price.meaning or 0.0
            self._found = self._study.simulate(self.devices.meaning, self.profile, price_per_device_h=paid)
            self._show()
        except HftaError as error:
            self._forget()
            self.wrong.value = f'<span role="alert">{escape(error_words(error))}</span>'

    def measure(self) -> Any:
        """Measure the rates of the planned arrays, in the worker process; returns the handle.

        Raises:
            StudyError: nothing is planned, or a run is in progress.
            WorkerError: something in the study can't be sent to a process.
        """
        if self._study is None or not self._at_rest:
            raise StudyError(_RUNNING if self._study is not None else "nothing is planned", where="measure")
        self._done = 0
        handle = self._measuring.begin(self._study)
        self._label()
        return handle

    def stop_measuring(self) -> None:
        """Stop measuring; what was measured is thrown away."""
        self._measuring.leave()
        self._label()

    def close(self) -> None:
        """Stop measuring, and close the widget."""
        self._measuring.leave()
        super().close()

    def _pressed(self) -> None:
        try:
            self.measure()
        except HftaError as error:
            self.wrong.value = f'<span role="alert">{escape(error_words(error))}</span>'

    def _on_rates(self, rates: Mapping[int, ev.RateMeasured], state: str, reason: str) -> None:
        """Called from any thread: what was measured so far, and the state of measuring."""
        if state == ev.COMPLETE:
            found = {array_name(r.group): (r.members, r.samples_per_s, r.memory_bytes) for r in rates.values()}
            self.profile = fleet.Profile({name: fleet.Measured(*row) for name, row in found.items()})
            self._later.soon(self.draw)
        elif state in ev.FAILURES:
            self.wrong.value = f'<span role="alert">not measured: {escape(shorten(reason))}</span>'
        self._done = len(rates)
        self._label()

    def _edited(self) -> None:
        self._fields_wrong()
        self._soon()

    def _fields_wrong(self) -> str:
        """What is wrong with the fields, which is shown beside them."""
        wrong = []
        for field in (self.devices, self.price):
            error = field.error
            (field.add_class if error else field.remove_class)("hfta-wrong")
            wrong += [f"{field.description}: {error}"] if error else []
        text = "; ".join(wrong)
        self.wrong.value = f'<span role="alert">{escape(text)}</span>' if text else ""
        return text

    def _label(self) -> None:
        """Say where the rates are from, and what the button does now."""
        on = self._measuring.on
        self.measure_button.description = "stop measuring" if on else "measure"
        hint = "Train each array on a few batches in a process of its own, and discard the weights"
        self.measure_button.disabled = not self._at_rest
        self.measure_button.tooltip = hint if self._at_rest else f"Not now: {_RUNNING}"
        if not self._at_rest:
            said = "A run is in progress: simulate before or after it."
        elif on and self._study is not None:
            said = f"Measuring: {self._done} of {count(len(self._study.groups()), 'array')} done ..."
        elif self.profile is None:
            said = _ASSUMED
        else:
            most = max(len(found.rates) for found in self.profile.groups.values())
            gain = "an array is taken to gain nothing from a second one" if most == 1 else "extrapolated beyond"
            said = f"Rates were measured on {count(most, 'device')} of this machine; {gain}. {_LEFT_OUT}"
        text = f'<span role="status">{escape(said)}</span>'
        if self.rates.value != text:
            self.rates.value = text

    def _forget(self) -> None:
        self._found = None
        self.chart.value = self.figures.value = ""
        self.summarise(_PROMPT)

    def _show(self) -> None:
        """Show the chart that is chosen, and the table."""
        if self._found is None:
            return
        if len(self.way.options) == 1:
            self.way.options = [(FASTEST, FASTEST), *((label(way), way) for way in self._found.plans)]
        way = fastest_of(self._found) if self.way.value == FASTEST else str(self.way.value)
        measured = self.profile is not None
        self.chart.value = chart(self._found, way, measured)
        self.figures.value = ways(self._found, measured, self.price.meaning)
        self.summarise(summary(self._found, measured))


def _several(study: Study, where: executors.Where) -> bool:
    """Whether there is something to simulate: several arrays, or several places for one."""
    return len(study.groups()) > 1 or study.devices > 1 or "executor" in where.arguments


def _check_size(study: Study) -> None:
    arrays = len(study.groups())
    if arrays > MOST_ARRAYS:
        raise StudyError("too many arrays to simulate here", got=count(arrays, "array"),
                         accepted=f"at most {MOST_ARRAYS}", remedy="call simulate of the study")  # fmt: skip


def rates_key(study: Study) -> Any:
    """What rates depend on: the arrays, and how they are trained."""
    idle = {name for name, known in ARGUMENTS.items() if not known.speed} | {"padding"}  # which the arrays tell
    options = tuple(sorted((name, repr(v)) for name, v in study.options.items() if name not in idle))
    arrays = tuple(repr((group.rows, group.arguments)) for group in study.plan_groups)
    return id(study.family.function), study.data_name, options, arrays


def _devices() -> int:
    """The devices of this machine, and two where it has one."""
    import torch

    return max(2, torch.cuda.device_count())
