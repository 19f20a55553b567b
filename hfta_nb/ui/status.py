"""The status line of a Workbench, which screen readers announce: it changes with the phase, not with numbers."""

from __future__ import annotations

from hfta_nb.records.history import History
from hfta_nb.ui import results
from hfta_nb.ui.failure import in_cells
from hfta_nb.ui.run_phase import RunPhase
from hfta_nb.ui.text import count, shorten

_LEVELS = {RunPhase.FINISHED: "good", RunPhase.FAILED: "bad", RunPhase.INTERRUPTED: "idle", RunPhase.STOPPED: "idle"}


def status(phase: RunPhase, history: History, amount: str, problem: str, wrong: str = "") -> tuple[str, str]:
    """The state in one line, and its level.

    Args:
        phase: of the run.
        history: of the run.
        amount: how many variants or trials are defined, empty if they can't be planned; of a run, how many trials it
            tries, empty of one that is no search.
        problem: why they can't be planned, in words.
        wrong: the error of trying the forward, in words.
    """
    if phase is RunPhase.IDLE:
        if not amount:
            return shorten(f"not ready: {problem}"), "bad"
        if wrong:
            return shorten(wrong), "bad"
        return f"ready to train {amount}", "idle"
    members = amount or (count(len(history.members), "variant") if history.members else "")
    texts = {
        RunPhase.STARTING: "starting a worker process",
        RunPhase.RUNNING: f"training {members}",
        RunPhase.PAUSED: "paused; everything is kept",
        RunPhase.FINISHED: f"finished; {results.summary(history)}",
        RunPhase.STOPPED: f"stopped; {results.summary(history)}",
        RunPhase.INTERRUPTED: f"interrupted; {results.summary(history)}",
        RunPhase.FAILED: shorten(f"failed: {in_cells(history.reason)}") if history.reason else "failed",
    }
    return texts.get(phase, f"{phase} ..."), _LEVELS.get(phase, "busy")
