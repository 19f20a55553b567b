"""Train: the buttons, how far the run is and how fast, and what to do when it failed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ipywidgets

from hfta_nb import events as ev
from hfta_nb.history import History
from hfta_nb.ui.machine import AT_REST, BUTTONS, ENDED, Phase, why_not
from hfta_nb.ui.parts import Progress, button, words
from hfta_nb.ui.text import clock, count, escape, memory, number, rate, shorten

MUCH = 0.1
"""Above this share of the time it is told that training waits for its data."""

_TOOLTIPS = {
    "train": "Train all variants in a process of their own",
    "pause": "Halt between two steps; everything is kept",
    "resume": "Carry on",
    "stop": "Stop the run; everything learnt so far is kept",
}
_COUNTED = (ev.RUNNING, ev.WAITING, ev.COMPLETE, ev.STOPPED, ev.PRUNED, ev.DIVERGED, ev.FAILED)


def fraction(history: History) -> float:
    """How much of the run is done, 0 to 1: the mean over members.

    Those that ended early count as done, unless it was the whole run that ended: it can be carried on.
    """
    cut = {ev.STOPPED, ev.FAILED} if history.state in (ev.STOPPED, ev.FAILED) else set()
    run, now = history.run, history.progress
    if run is None or not history.members:
        return 0.0
    training = set(now.variants) if now else set()
    done = 0.0
    for member in history.members.values():
        epochs = max(float(member.epoch), now.epochs_done if now and member.id in training else 0.0)
        done += 1.0 if member.state in ev.FINAL_STATES - cut else min(1.0, epochs / run.epochs)
    return done / len(history.members)


def progress_text(history: History, phase: Phase) -> str:
    """What stands beside the bar: epoch, elapsed and remaining time; or what the run is busy with."""
    run, now = history.run, history.progress
    if phase is Phase.STARTING and now is None:
        return "starting: " + (history.phase or "a process of its own")
    if run is None or now is None:
        return "" if phase in AT_REST else str(phase)
    groups = len(history.groups)
    array = f"array {now.group + 1} of {groups}, " if groups > 1 and phase is not Phase.FINISHED else ""
    epoch = min(run.epochs, math.floor(now.epochs_done) + (now.epochs_done < run.epochs and phase not in ENDED))
    left = "" if phase in ENDED else f", {_remaining(now)}"
    return f"{array}epoch {epoch}/{run.epochs}, {clock(now.elapsed_s)}{left}"


def _remaining(now: ev.StepsDone) -> str:
    return f"{clock(now.remaining_s)} left" if math.isfinite(now.remaining_s) else "estimating"


def details(history: History, phase: Phase) -> list[str]:
    """The numbers below the bar: rate, speedup, members by state, and the phase where it is not plain training."""
    found = []
    if history.progress and phase not in AT_REST and phase is not Phase.PAUSED:
        found.append(rate(history.progress.samples_per_s))
        if history.progress.waiting_share > MUCH:
            found.append(f"{history.progress.waiting_share:.0%} of the time waiting for data")
    found += [speedup(history), manner(history)]
    paused = {ev.RUNNING: "paused"} if history.state == ev.PAUSED else {}
    counts = [(history.count(state), paused.get(state, state.lower())) for state in _COUNTED]
    found.append(", ".join(f"{n} {state}" for n, state in counts if n))
    found += [halving(event) for event in history.halvings[-1:]]
    found += [difference(event) for event in history.differences[-1:]]
    if history.phase and history.phase != "training" and phase is Phase.RUNNING:
        found.append(history.phase)
    return [text for text in found if text]


def speedup(history: History) -> str:
    """The speed against training the members one after another, with how it was measured."""
    measured = _measured(history)
    if measured is None:
        return ""
    return f"{number(measured.speedup, 3)}x the serial rate, measured on {count(measured.steps, 'step')}"


def manner(history: History) -> str:
    """How the array runs that is at it: ``bf16, 4 of 8 members at a time, replayed``."""
    measured, run = _measured(history), history.run
    precision = run.precision if run is not None and run.precision != "fp32" else ""
    return ", ".join(filter(None, [precision, shorten(measured.strategy, 100) if measured else ""]))


def _measured(history: History) -> ev.SpeedMeasured | None:
    """Of the array that trains, or of the last that was measured."""
    now = history.progress.group if history.progress else -1
    return history.speeds.get(now) or (history.speeds[max(history.speeds)] if history.speeds else None)


def halving(event: ev.ArrayHalved) -> str:
    """That an array went on as two, as its memory did not suffice."""
    first, second = event.into
    how = f"{event.members} members went on as {first} and {second}"
    return f"out of memory while {event.phase}: {how}; {memory(event.needed_bytes)} of {memory(event.free_bytes)}"


def difference(event: ev.DifferenceFound) -> str:
    """That a part of the model runs member by member, as comparing with the plain module has found a difference."""
    part = f"`{event.submodule}`" if event.submodule else "the model"
    return shorten(f"array {event.group + 1}: {part} runs member by member, as {event.reason}", 300)


class TrainView(ipywidgets.VBox):  # type: ignore[misc]
    """Buttons, bar and numbers.

    Args:
        pressed: called with the name of the button: "train", "pause", "resume", "stop", or "confirm" and "retry".
    """

    def __init__(self, pressed: Callable[[str], None]) -> None:
        self.buttons = {name: button(name.capitalize(), _TOOLTIPS[name], f"hfta-button-{name}") for name in BUTTONS}
        for name, made in self.buttons.items():
            made.on_click(lambda _, name=name: pressed(name))
        self.progress = Progress()
        self.question = words("hfta-question")
        yes = button("Start a new run", "The earlier run stays on disk", "hfta-button-confirm")
        no = button("Keep this one", "Change nothing", "hfta-button-cancel")
        yes.on_click(lambda _: pressed("confirm"))
        no.on_click(lambda _: self.ask(""))
        self.confirm_box = ipywidgets.HBox([self.question, yes, no]).add_class("hfta-confirm")
        self.failure = words("hfta-failure")
        retry = button("Retry", "Start the same sweep anew, from the beginning", "hfta-button-retry")
        retry.on_click(lambda _: pressed("retry"))
        self.carry_on = button(
            "Resume from checkpoint", "Carry on from where it was last saved", "hfta-button-carry-on"
        )
        self.carry_on.on_click(lambda _: pressed("resume"))
        ways = ipywidgets.HBox([self.carry_on, retry]).add_class("hfta-ways")
        self.failure_box = ipywidgets.VBox([self.failure, ways]).add_class("hfta-failed")
        row = ipywidgets.HBox([*self.buttons.values(), self.progress.add_class("hfta-progress")]).add_class(
            "hfta-train-row"
        )
        super().__init__([row, self.confirm_box, self.failure_box])
        self.ask("")
        self.fail("", "")

    def __repr__(self) -> str:
        return "TrainView()"

    @property
    def asking(self) -> bool:
        """Whether the question about an earlier run is on the screen."""
        return bool(self.confirm_box.layout.display != "none")

    def ask(self, question: str) -> None:
        """Put a question with its two buttons on the screen, or take it off."""
        self.question.value = f'<span role="alert">{escape(question)}</span>' if question else ""
        self.confirm_box.layout.display = "" if question else "none"

    def fail(self, reason: str, detail: str, resumable: bool = False) -> None:
        """Show why the run failed, and buttons for what to do; nothing where there is no reason."""
        parts = [f'<div role="alert"><strong>The run failed.</strong> {escape(shorten(reason, 1000))}</div>']
        if detail:
            parts.append(f"<details><summary>Details</summary><pre>{escape(detail[-6000:])}</pre></details>")
        self.failure.value = "".join(parts) if reason else ""
        self.carry_on.layout.display = "" if resumable else "none"
        self.failure_box.layout.display = "" if reason else "none"

    def enable(self, phase: Phase, problem: str, checkpoint: bool) -> None:
        """Let those buttons be pressed that make sense; the tooltip of each other says why it can't be."""
        for name, made in self.buttons.items():
            reason = why_not(name, phase, problem, checkpoint)
            made.disabled = bool(reason)
            made.tooltip = f"Not now: {reason}" if reason else self._tooltip(name, phase)

    def show(self, history: History, phase: Phase) -> str:
        """Show how far the run is; returns it in one line."""
        text, below = progress_text(history, phase), details(history, phase)
        done = 1.0 if phase is Phase.FINISHED else fraction(history)
        facts: dict[str, Any] = {"fraction": round(done, 4), "state": str(phase), "text": text, "details": below}
        if facts != self.progress.facts:
            self.progress.facts = facts
        return "; ".join(filter(None, [str(phase), text if not text.startswith(str(phase)) else "", *below[:2]]))

    def _tooltip(self, name: str, phase: Phase) -> str:
        if name == "resume" and phase in ENDED:
            return "Carry on from the last checkpoint of this run"
        return _TOOLTIPS[name]
