"""Train: buttons, progress and speed, and what to do after a failure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ipywidgets

from hfta_nb import events as ev
from hfta_nb.errors import HftaError
from hfta_nb.records import speeds
from hfta_nb.records.history import History
from hfta_nb.ui.failure import failure, mend, own_frames
from hfta_nb.ui.run_phase import AT_REST, BUTTONS, ENDED, RunPhase, why_not
from hfta_nb.ui.text import clock, escape, memory, rate, shorten
from hfta_nb.ui.text import words as error_words
from hfta_nb.ui.trials import Trials
from hfta_nb.ui.widgets import ProgressBar, button, words

MUCH = 0.1
"""Above this share of the time, waiting for data is shown."""

_TOOLTIPS = {
    "train": "Train all variants, in a worker process",
    "pause": "Pause between two steps; everything is kept",
    "resume": "Carry on",
    "stop": "Stop the run; everything learnt so far is kept",
}
_COUNTED = (ev.RUNNING, ev.PAUSED, ev.WAITING, ev.COMPLETE, ev.STOPPED, ev.PRUNED, ev.DIVERGED, *sorted(ev.FAILURES))


def fraction(history: History) -> float:
    """The share of the run that is done, 0 to 1: the mean over members.

    Members that ended early count as done, unless the whole run ended, which can be resumed.
    """
    cut = {ev.STOPPED, *ev.FAILURES} if history.state in (ev.STOPPED, *ev.FAILURES) else set()
    run, now = history.run, history.progress
    if run is None or not history.members:
        return 0.0
    training = set(now.variants) if now else set()
    done = 0.0
    for member in history.members.values():
        epochs = max(float(member.epoch), now.epochs_done if now and member.id in training else 0.0)
        done += 1.0 if member.state in ev.FINAL_STATES - cut else min(1.0, epochs / run.epochs)
    return done / len(history.members)


def progress_text(history: History, phase: RunPhase, trials: Trials | None = None) -> str:
    """The text beside the bar: epoch or trials, elapsed and remaining time, or the run's activity."""
    run, now = history.run, history.progress
    if phase is RunPhase.STARTING and now is None:
        return f"starting: {history.phase}" if history.phase else "starting a worker process"
    if run is None or now is None:
        return "" if phase in AT_REST else str(phase)
    if trials is not None:
        return f"{trials.progress(history)}, {clock(now.elapsed_s)}{_search_left(history, phase, trials)}"
    # Numbers of arrays have gaps where members were tried alone after an error.
    groups = sorted({group.index for group in history.groups} | {now.group})
    place = f"array {groups.index(now.group) + 1} of {len(groups)}, "
    array = place if len(groups) > 1 and phase is not RunPhase.FINISHED else ""
    epoch = min(run.epochs, math.floor(now.epochs_done) + (now.epochs_done < run.epochs and phase not in ENDED))
    left = "" if phase in ENDED else f", {_remaining(now)}"
    return f"{array}epoch {epoch}/{run.epochs}, {clock(now.elapsed_s)}{left}"


def _search_left(history: History, phase: RunPhase, trials: Trials) -> str:
    """What is left of a search, as fast as it was so far: trials that are pruned take less."""
    now, share = history.progress, trials.share(fraction(history), history)
    if phase in ENDED or now is None:
        return ""
    if not math.isfinite(now.remaining_s) or not share:
        return ", estimating"
    return f", at most {clock(now.elapsed_s * (1 - share) / share)} left"


def _remaining(now: ev.StepsDone) -> str:
    return f"{clock(now.remaining_s)} left" if math.isfinite(now.remaining_s) else "estimating"


def details(
    history: History, phase: RunPhase, samples_per_s: float = math.nan, trials: Trials | None = None
) -> list[str]:
    """The numbers below the bar: rate, speedup, members or trials by state, and the phase unless it is training."""
    found = []
    if history.progress and phase not in AT_REST and phase is not RunPhase.PAUSED:
        found.append(rate(samples_per_s))
        if history.progress.waiting_share > MUCH:
            found.append(f"{history.progress.waiting_share:.0%} of the time waiting for data")
    found += [speeds.words(history), manner(history)]
    paused = {ev.RUNNING: "paused"} if history.state == ev.PAUSED else {}
    counts = [(history.count(state), paused.get(state, state.lower())) for state in _COUNTED]
    found.append(trials.counts(history) if trials else ", ".join(f"{n} {state}" for n, state in counts if n))
    found += [halving(event) for event in history.halvings[-1:]]
    found += [difference(event) for event in history.differences[-1:]]
    if history.phase and history.phase != "training" and phase is RunPhase.RUNNING:
        found.append(history.phase)
    return [text for text in found if text]


def manner(history: History) -> str:
    """How the current array runs: ``bf16, 4 of 8 members at a time, recorded steps``."""
    measured, run = _measured(history), history.run
    precision = run.precision if run is not None and run.precision != "fp32" else ""
    return ", ".join(filter(None, [precision, shorten(measured.strategy, 100) if measured else ""]))


def _measured(history: History) -> ev.SpeedMeasured | None:
    """The measurement of the array that trains, or the last one."""
    now = history.progress.group if history.progress else -1
    return history.speeds.get(now) or (history.speeds[max(history.speeds)] if history.speeds else None)


def halving(event: ev.ArrayHalved) -> str:
    """The text for an array that was split in two because memory ran out."""
    first, second = event.into
    how = f"{event.members} members went on as {first} and {second}"
    return f"out of memory while {event.phase}: {how}; {memory(event.needed_bytes)} of {memory(event.free_bytes)}"


def difference(event: ev.DifferenceFound) -> str:
    """That a part of the model runs member by member, as comparing with the plain module has found a difference."""
    part = f"`{event.submodule}`" if event.submodule else "the model"
    return shorten(f"array {event.group}: {part} runs member by member, as {event.reason}", 300)


class TrainView(ipywidgets.VBox):  # type: ignore[misc]
    """Buttons, bar and numbers.

    Args:
        pressed: called with the name of the button: "train", "pause", "resume", "stop", or "confirm" and "retry".
        measure: see `Session.measure`.
    """

    def __init__(self, pressed: Callable[[str], None], measure: Callable[[Callable[[str], None]], Any]) -> None:
        self._measuring = measure
        self.buttons = {name: button(name.capitalize(), _TOOLTIPS[name], f"hfta-button-{name}") for name in BUTTONS}
        for name, made in self.buttons.items():
            made.on_click(lambda _, name=name: pressed(name))
        self.progress, self._rate = ProgressBar(), speeds.SteadyRate()
        self.question = words("hfta-question")
        yes = button("Start a new run", "The earlier run stays on disk", "hfta-button-confirm")
        no = button("Keep this one", "Change nothing", "hfta-button-cancel")
        yes.on_click(lambda _: pressed("confirm"))
        no.on_click(lambda _: self.ask(""))
        self.confirm_box = ipywidgets.HBox([self.question, yes, no]).add_class("hfta-confirm")
        self.failure = words("hfta-failure")
        retry = button("Retry", "Start the same sweep again, from the beginning", "hfta-button-retry")
        retry.on_click(lambda _: pressed("retry"))
        self.carry_on = button("Resume from checkpoint", "Continue from the last checkpoint", "hfta-button-carry-on")
        self.carry_on.on_click(lambda _: pressed("resume"))
        ways = ipywidgets.HBox([self.carry_on, retry]).add_class("hfta-ways")
        self.failure_box = ipywidgets.VBox([self.failure, ways]).add_class("hfta-failed")
        row = ipywidgets.HBox([*self.buttons.values(), self.progress.add_class("hfta-progress")]).add_class(
            "hfta-train-row"
        )
        hint = "Train each array for a few steps beside plain modules, in a process of its own; the run stays as it is"
        self.measure_button = button("measure speed", hint, "hfta-button-measure")
        self.measure_button.on_click(lambda _: self._measure())
        self.measured = words("hfta-measured")
        self.measure_box = ipywidgets.HBox([self.measured, self.measure_button]).add_class("hfta-confirm")
        super().__init__([row, self.measure_box, self.confirm_box, self.failure_box])
        self.offer_measuring(False)
        self.ask("")
        self.fail("", "")

    def __repr__(self) -> str:
        return "TrainView()"

    @property
    def asking(self) -> bool:
        """Whether the question about an earlier run is shown."""
        return bool(self.confirm_box.layout.display != "none")

    def ask(self, question: str) -> None:
        """Show or hide a question with its two buttons."""
        self.question.value = f'<span role="alert">{escape(question)}</span>' if question else ""
        self.confirm_box.layout.display = "" if question else "none"

    def offer_measuring(self, possible: bool) -> None:
        """Show or hide the button that measures the speed of a run that was too short to do so itself."""
        display = "" if possible else "none"
        if self.measure_box.layout.display != display:
            self.measure_box.layout.display = display
            self._say_measured("Too short to have measured what fusing gains.")

    def _measure(self) -> None:
        self._say_measured("measuring, beside plain modules ...", True)
        try:
            self._measuring(lambda failed: self._say_measured(f"not measured: {failed}" if failed else ""))
        except HftaError as error:
            self._say_measured(error_words(error))

    def _say_measured(self, text: str, measuring: bool = False) -> None:
        self.measured.value, self.measure_button.disabled = escape(shorten(text)), measuring

    def fail(self, reason: str, detail: str, resumable: bool = False, what: str = "The run failed.") -> None:
        """Show why the run ended before its time, with buttons for what to do; hide both if the reason is empty."""
        own = own_frames(detail)
        self.failure.value = failure(what, reason, mend(own), own, detail) if reason else ""
        self.carry_on.layout.display = "" if resumable else "none"
        self.failure_box.layout.display = "" if reason else "none"

    def enable(self, phase: RunPhase, problem: str, checkpoint: bool) -> None:
        """Enable the buttons that can be used; the tooltips of the others say why they can't."""
        for name, made in self.buttons.items():
            reason = why_not(name, phase, problem, checkpoint)
            made.disabled = bool(reason)
            made.tooltip = f"Not now: {reason}" if reason else self._tooltip(name, phase)

    def show(self, history: History, phase: RunPhase, trials: Trials | None = None) -> str:
        """Show the progress, of a search by its trials; returns it in one line."""
        rate = math.nan if history.progress is None else self._rate.after(history.progress)
        text, below = progress_text(history, phase, trials), details(history, phase, rate, trials)
        done = fraction(history) if trials is None else trials.share(fraction(history), history)
        done = 1.0 if phase is RunPhase.FINISHED else done
        facts: dict[str, Any] = {"fraction": round(done, 4), "state": str(phase), "text": text, "details": below}
        facts["titles"] = {speeds.words(history): speeds.basis(history)}
        if facts != self.progress.facts:
            self.progress.facts = facts
        return "; ".join(filter(None, [str(phase), text if not text.startswith(str(phase)) else "", *below[:2]]))

    def _tooltip(self, name: str, phase: RunPhase) -> str:
        if name == "resume" and phase in ENDED:
            return "Continue from the last checkpoint of this run"
        return _TOOLTIPS[name]
