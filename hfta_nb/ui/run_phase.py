"""The state machine of a Workbench's run: phases, transitions, and the enabled buttons of each phase."""

from __future__ import annotations

from enum import StrEnum

from hfta_nb import events as ev


class RunPhase(StrEnum):
    """The phase of the run on the screen."""

    IDLE = "idle"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


CUT_SHORT = frozenset({RunPhase.STOPPED, RunPhase.FAILED, RunPhase.INTERRUPTED})
ENDED = CUT_SHORT | {RunPhase.FINISHED}
AT_REST = ENDED | {RunPhase.IDLE}
"""Phases without a run in progress."""

BUTTONS = ("train", "pause", "resume", "stop")

_RUN_ENDS = {"complete": RunPhase.FINISHED, **{str(phase): phase for phase in CUT_SHORT}}
_AGAIN = {"train": RunPhase.STARTING, "continue": RunPhase.STARTING}

TABLE: dict[RunPhase, dict[str, RunPhase]] = {
    RunPhase.IDLE: _AGAIN,
    RunPhase.STARTING: {"began": RunPhase.RUNNING, "stop": RunPhase.STOPPING, "paused": RunPhase.PAUSED, **_RUN_ENDS},
    RunPhase.RUNNING: {"pause": RunPhase.PAUSING, "stop": RunPhase.STOPPING, "paused": RunPhase.PAUSED, **_RUN_ENDS},
    RunPhase.PAUSING: {"paused": RunPhase.PAUSED, "resume": RunPhase.RESUMING, "stop": RunPhase.STOPPING, **_RUN_ENDS},
    RunPhase.PAUSED: {"resume": RunPhase.RESUMING, "resumed": RunPhase.RUNNING, "stop": RunPhase.STOPPING, **_RUN_ENDS},
    RunPhase.RESUMING: {"resumed": RunPhase.RUNNING, "began": RunPhase.RUNNING, "stop": RunPhase.STOPPING, **_RUN_ENDS},
    RunPhase.STOPPING: {**_RUN_ENDS},
    RunPhase.FINISHED: {"train": RunPhase.STARTING},
    **dict.fromkeys(CUT_SHORT, _AGAIN),
}
"""The transitions of each phase, by the user's requests and the run's events. Other signals change nothing."""

_SIGNALS = {
    ev.RUNNING: "resumed",
    ev.PAUSED: "paused",
    ev.COMPLETE: "complete",
    ev.STOPPED: "stopped",
    ev.FAILED: "failed",
    ev.INTERRUPTED: "interrupted",
}


def signal_of(event: ev.Event) -> str:
    """The signal of an event; "" for most events."""
    if isinstance(event, ev.RunChanged):
        return _SIGNALS.get(event.state, "")
    training = isinstance(event, ev.PhaseChanged) and event.phase == "training"
    return "began" if training or isinstance(event, ev.StepsDone) else ""


def after(phase: RunPhase, signal: str) -> RunPhase:
    """The phase that a signal leads to."""
    return TABLE[phase].get(signal, phase)


def why_not(button: str, phase: RunPhase, problem: str = "", checkpoint: bool = False) -> str:
    """Why a button is disabled; "" if it is enabled.

    Args:
        button: one of `BUTTONS`.
        phase: phase of the run.
        problem: why the definition can't be trained, in words.
        checkpoint: whether the ended run can be resumed.
    """
    if button == "train":
        if phase not in AT_REST:
            return "a run is in progress; stop it first"
        return problem
    if button == "pause":
        return "" if phase is RunPhase.RUNNING else "nothing is training" if phase in AT_REST else f"the run is {phase}"
    if button == "resume":
        if phase in (RunPhase.PAUSED, RunPhase.PAUSING):
            return ""
        if phase in CUT_SHORT:
            return "" if checkpoint else "nothing was trained yet that it could resume from"
        return "nothing is paused"
    if phase in AT_REST:
        return "nothing is training"
    return "the run is stopping already" if phase is RunPhase.STOPPING else ""
