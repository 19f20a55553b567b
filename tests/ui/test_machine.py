"""The states of a run on the screen, and which buttons make sense in each."""

from __future__ import annotations

import pytest

from hfta_nb import events as ev
from hfta_nb.ui.machine import AT_REST, BUTTONS, ENDED, TABLE, Phase, after, signal_of, why_not


def test_every_phase_is_in_the_table_and_can_be_reached_and_left() -> None:
    assert TABLE.keys() == set(Phase)
    reached = {target for ways in TABLE.values() for target in ways.values()}
    assert reached == set(Phase) - {Phase.IDLE}
    assert all(TABLE.values())


@pytest.mark.parametrize("phase", [p for p in Phase if p not in AT_REST])
@pytest.mark.parametrize(("signal", "end"), [("failed", Phase.FAILED), ("stopped", Phase.STOPPED)])
def test_a_run_can_end_at_any_time(phase: Phase, signal: str, end: Phase) -> None:
    assert after(phase, signal) is end


@pytest.mark.parametrize("phase", list(Phase))
def test_a_button_can_be_pressed_where_it_leads_somewhere(phase: Phase) -> None:
    signals = {"train": "train", "pause": "pause", "stop": "stop"}
    for button, signal in signals.items():
        assert (why_not(button, phase) == "") == (signal in TABLE[phase]), button
    leads = "resume" in TABLE[phase] or ("continue" in TABLE[phase] and phase is not Phase.IDLE)
    assert (why_not("resume", phase, checkpoint=True) == "") == leads


@pytest.mark.parametrize("phase", sorted(ENDED))
def test_a_run_without_checkpoint_is_not_resumed(phase: Phase) -> None:
    assert why_not("resume", phase, checkpoint=False)


def test_a_problem_keeps_from_training_and_from_nothing_else() -> None:
    assert why_not("train", Phase.IDLE, "lr: not a number") == "lr: not a number"
    assert why_not("stop", Phase.RUNNING, "lr: not a number") == ""


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
    phase = Phase.IDLE
    seen = []
    steps = "train began pause paused resume resumed stop stopped continue began failed continue began complete train"
    for signal in steps.split():
        phase = after(phase, signal)
        seen.append(phase)
    wanted = "starting running pausing paused resuming running stopping stopped starting running failed"
    assert " ".join(map(str, seen)) == f"{wanted} starting running finished starting"


def test_what_leads_nowhere_changes_nothing() -> None:
    assert after(Phase.FINISHED, "began") is Phase.FINISHED
    assert after(Phase.PAUSING, "began") is Phase.PAUSING
    assert after(Phase.STOPPING, "paused") is Phase.STOPPING


def test_every_reason_is_said_in_words() -> None:
    for phase in Phase:
        for button in BUTTONS:
            reason = why_not(button, phase, "", False)
            assert reason == "" or len(reason.split()) >= 3
