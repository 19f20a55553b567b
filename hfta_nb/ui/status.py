"""The line at the head of a Workbench, which screen readers announce: it changes with the phase, not with numbers."""

from __future__ import annotations

from hfta_nb.history import History
from hfta_nb.ui import results
from hfta_nb.ui.machine import Phase
from hfta_nb.ui.text import count, shorten

_LEVELS = {Phase.FINISHED: "good", Phase.FAILED: "bad", Phase.STOPPED: "idle"}


def status(phase: Phase, history: History, variants: int | None, problem: str, wrong: str = "") -> tuple[str, str]:
    """What is going on in one line, and how good or bad that is.

    Args:
        phase: of the run.
        history: of the run.
        variants: how many are defined; None where they can't be planned.
        problem: why not, in words.
        wrong: what was found to go wrong by trying it, in words.
    """
    if phase is Phase.IDLE:
        if variants is None:
            return shorten(f"not ready: {problem}"), "bad"
        if wrong:
            return shorten(wrong), "bad"
        return f"ready to train {count(variants, 'variant')}", "idle"
    members = count(len(history.members), "variant") if history.members else ""
    texts = {
        Phase.STARTING: "starting: a process of its own",
        Phase.RUNNING: f"training {members}",
        Phase.PAUSED: "paused; everything is kept",
        Phase.FINISHED: f"finished; {results.summary(history)}",
        Phase.STOPPED: f"stopped; {results.summary(history)}",
        Phase.FAILED: shorten(f"failed: {history.reason}") if history.reason else "failed",
    }
    return texts.get(phase, f"{phase} ..."), _LEVELS.get(phase, "busy")
