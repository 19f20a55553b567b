"""The status line of a Workbench, which screen readers announce: it changes with the phase, not with numbers."""

from __future__ import annotations

from hfta_nb.history import History
from hfta_nb.ui import results
from hfta_nb.ui.machine import Phase
from hfta_nb.ui.text import count, shorten

_LEVELS = {Phase.FINISHED: "good", Phase.FAILED: "bad", Phase.STOPPED: "idle"}


def status(phase: Phase, history: History, variants: int | None, problem: str, wrong: str = "") -> tuple[str, str]:
    """The state in one line, and its level.

    Args:
        phase: of the run.
        history: of the run.
        variants: number of defined variants; None if they can't be planned.
        problem: why they can't be planned, in words.
        wrong: the error of trying the forward, in words.
    """
    if phase is Phase.IDLE:
        if variants is None:
            return shorten(f"not ready: {problem}"), "bad"
        if wrong:
            return shorten(wrong), "bad"
        return f"ready to train {count(variants, 'variant')}", "idle"
    members = count(len(history.members), "variant") if history.members else ""
    texts = {
        Phase.STARTING: "starting: a separate process",
        Phase.RUNNING: f"training {members}",
        Phase.PAUSED: "paused; everything is kept",
        Phase.FINISHED: f"finished; {results.summary(history)}",
        Phase.STOPPED: f"stopped; {results.summary(history)}",
        Phase.FAILED: shorten(f"failed: {history.reason}") if history.reason else "failed",
    }
    return texts.get(phase, f"{phase} ..."), _LEVELS.get(phase, "busy")
