"""The state machine of a Workbench's run: phases, transitions, and the enabled buttons of each phase."""

from __future__ import annotations

from enum import StrEnum

from hfta_nb import events as ev


class Phase(StrEnum):
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


ENDED = frozenset({Phase.STOPPED, Phase.FINISHED, Phase.FAILED})
AT_REST = ENDED | {Phase.IDLE}
"""Phases without a run in progress."""

BUTTONS = ("train", "pause", "resume", "stop")

_RUN_ENDS = {"complete": Phase.FINISHED, "stopped": Phase.STOPPED, "failed": Phase.FAILED}

TABLE: dict[Phase, dict[str, Phase]] = {
    Phase.IDLE: {"train": Phase.STARTING, "continue": Phase.STARTING},
    Phase.STARTING: {"began": Phase.RUNNING, "stop": Phase.STOPPING, "paused": Phase.PAUSED, **_RUN_ENDS},
    Phase.RUNNING: {"pause": Phase.PAUSING, "stop": Phase.STOPPING, "paused": Phase.PAUSED, **_RUN_ENDS},
    Phase.PAUSING: {"paused": Phase.PAUSED, "resume": Phase.RESUMING, "stop": Phase.STOPPING, **_RUN_ENDS},
    Phase.PAUSED: {"resume": Phase.RESUMING, "resumed": Phase.RUNNING, "stop": Phase.STOPPING, **_RUN_ENDS},
    Phase.RESUMING: {"resumed": Phase.RUNNING, "began": Phase.RUNNING, "stop": Phase.STOPPING, **_RUN_ENDS},
    Phase.STOPPING: {**_RUN_ENDS},
    Phase.STOPPED: {"train": Phase.STARTING, "continue": Phase.STARTING},
    Phase.FINISHED: {"train": Phase.STARTING},
    Phase.FAILED: {"train": Phase.STARTING, "continue": Phase.STARTING},
}
"""The transitions of each phase, by the user's requests and the run's events. Other signals change nothing."""

_SIGNALS = {
    ev.RUNNING: "resumed",
    ev.PAUSED: "paused",
    ev.COMPLETE: "complete",
    ev.STOPPED: "stopped",
    ev.FAILED: "failed",
}


def signal_of(event: ev.Event) -> str:
    """The signal of an event; "" for most events."""
    if isinstance(event, ev.RunChanged):
        return _SIGNALS.get(event.state, "")
    training = isinstance(event, ev.PhaseChanged) and event.phase == "training"
    return "began" if training or isinstance(event, ev.StepsDone) else ""


def after(phase: Phase, signal: str) -> Phase:
    """The phase that a signal leads to."""
    return TABLE[phase].get(signal, phase)


def why_not(button: str, phase: Phase, problem: str = "", checkpoint: bool = False) -> str:
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
        return "" if phase is Phase.RUNNING else "nothing is training" if phase in AT_REST else f"the run is {phase}"
    if button == "resume":
        if phase in (Phase.PAUSED, Phase.PAUSING):
            return ""
        if phase in (Phase.STOPPED, Phase.FAILED):
            return "" if checkpoint else "the run left no checkpoint to resume from"
        return "nothing is paused"
    if phase in AT_REST:
        return "nothing is training"
    return "the run is stopping already" if phase is Phase.STOPPING else ""
