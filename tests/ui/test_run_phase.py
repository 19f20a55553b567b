"""The states of a run on the screen, and the buttons that are enabled in each."""

from __future__ import annotations

import pytest

from hfta_nb import events as ev
from hfta_nb.ui.run_phase import AT_REST, BUTTONS, ENDED, TABLE, RunPhase, after, signal_of, why_not


def test_every_phase_is_in_the_table_and_can_be_reached_and_left() -> None:
    assert TABLE.keys() == set(RunPhase)
    reached = {target for ways in TABLE.values() for target in ways.values()}
    assert reached == set(RunPhase) - {RunPhase.IDLE}
    assert all(TABLE.values())


@pytest.mark.parametrize("phase", [p for p in RunPhase if p not in AT_REST])
@pytest.mark.parametrize(("signal", "end"), [("failed", RunPhase.FAILED), ("stopped", RunPhase.STOPPED)])
def test_a_run_can_end_at_any_time(phase: RunPhase, signal: str, end: RunPhase) -> None:
    assert after(phase, signal) is end


@pytest.mark.parametrize("phase", list(RunPhase))
def test_a_button_can_be_pressed_where_it_leads_somewhere(phase: RunPhase) -> None:
    signals = {"train": "train", "pause": "pause", "stop": "stop"}
    for button, signal in signals.items():
        assert (why_not(button, phase) == "") == (signal in TABLE[phase]), button
    leads = "resume" in TABLE[phase] or ("continue" in TABLE[phase] and phase is not RunPhase.IDLE)
    assert (why_not("resume", phase, checkpoint=True) == "") == leads


@pytest.mark.parametrize("phase", sorted(ENDED))
def test_a_run_without_checkpoint_is_not_resumed(phase: RunPhase) -> None:
    assert why_not("resume", phase, checkpoint=False)


def test_a_problem_keeps_from_training_and_from_nothing_else() -> None:
    assert why_not("train", RunPhase.IDLE, "lr: not a number") == "lr: not a number"
    assert why_not("stop", RunPhase.RUNNING, "lr: not a number") == ""


@pytest.mark.parametrize(
    ("event", "signal"),
    [
        (ev.RunChanged(0.0, ev.PAUSED), "paused"),
        (ev.RunChanged(0.0, ev.RUNNING), "resumed"),
        (ev.RunChanged(0.0, ev.COMPLETE), "complete"),
        (ev.PhaseChanged(0.0, 0, "training"), "began"),
        (ev.PhaseChanged(0.0, 0, "tuning"), ""),
        (ev.Heartbeat(0.0), ""),
    ],
)
def test_what_events_mean(event: ev.Event, signal: str) -> None:
    assert signal_of(event) == signal


def test_a_whole_life() -> None:
    phase = RunPhase.IDLE
    seen = []
    steps = "train began pause paused resume resumed stop stopped continue began failed continue began complete train"
    for signal in steps.split():
        phase = after(phase, signal)
        seen.append(phase)
    wanted = "starting running pausing paused resuming running stopping stopped starting running failed"
    assert " ".join(map(str, seen)) == f"{wanted} starting running finished starting"


def test_what_leads_nowhere_changes_nothing() -> None:
    assert after(RunPhase.FINISHED, "began") is RunPhase.FINISHED
    assert after(RunPhase.PAUSING, "began") is RunPhase.PAUSING
    assert after(RunPhase.STOPPING, "paused") is RunPhase.STOPPING


def test_every_reason_is_said_in_words() -> None:
    for phase in RunPhase:
        for button in BUTTONS:
            reason = why_not(button, phase, "", False)
            assert reason == "" or len(reason.split()) >= 3
