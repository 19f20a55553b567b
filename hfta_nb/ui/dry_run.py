"""Tries each architecture's forward after Plan, in the worker process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hfta_nb import events as ev
from hfta_nb.errors import HftaError
from hfta_nb.errors.user_frames import UserFrame
from hfta_nb.study import Study, executors
from hfta_nb.ui.debounce import Debounced, Later
from hfta_nb.ui.failure import failure, mend, own_frames
from hfta_nb.ui.text import count, escape, shorten, words

AFTER_S = 1.0
"""Idle time before the forward is tried, since *Run All* trains at once."""

TRYING = "Trying each architecture on one batch ..."


class Tried(NamedTuple):
    """What was found.

    Attributes:
        markup: the result, for Plan.
        wrong: the error in one line; empty where all architectures ran.
        off: why nothing can be trained, where no architecture ran.
    """

    markup: str = ""
    wrong: str = ""
    off: str = ""


class DryRun:
    """Tries the planned study; a new plan replaces the earlier one.

    Args:
        kind: kind of executor; nothing is tried automatically in this process.
        later: the kernel's main thread.
        tell: called with what was found; from any thread.
    """

    def __init__(self, kind: str, later: Later, tell: Callable[[Tried], None]) -> None:
        self._kind, self._tell = kind, tell
        self._automatic = kind == "worker" and later.has_loop
        self._soon = Debounced(later, AFTER_S, self._due)
        self._study: Study | None = None
        self._last: Study | None = None
        self._key: Any = None
        self._unsubscribe: Callable[[], None] = lambda: None

    def plan(self, study: Study | None) -> None:
        """Called with a new plan, or None."""
        key = None if study is None else key_of(study)
        if key == self._key:
            return
        self.leave()
        self._key, self._study = key, study
        if study is not None and self._automatic:
            self._soon()

    def leave(self) -> None:
        """Cancel the trial, because a run begins."""
        self._study = None
        self._unsubscribe()
        self._unsubscribe = lambda: None
        self._tell(Tried())

    def again(self) -> None:
        """Try the last study once more: code that its functions call may have changed."""
        if self._last is not None:
            self._start(self._last)

    def begin(self, study: Study) -> Any:
        """Try a study's architectures now; returns the handle.

        Raises:
            WorkerError: something in the study can't be sent to a process.
        """
        self.leave()
        self._key, self._last = key_of(study), study
        handle = executors.start(study.excerpt(), kind=self._kind, job="try")
        self._tell(Tried(f'<span class="hfta-tried">{TRYING}</span>'))

        def on_event(event: ev.Event) -> None:
            if isinstance(event, ev.RunChanged) and event.state in ev.FINAL_STATES:
                failed = event.reason if event.state in ev.FAILURES else ""
                self._tell(said(study, handle.history.tried, failed))

        with handle.lock:  # so that no event is missed in between
            ended, history = handle.ended, handle.history
            self._unsubscribe = handle.subscribe(on_event)
        if ended:
            on_event(ev.RunChanged(time.time(), history.state, history.reason))
        return handle

    def _due(self) -> None:
        if self._study is not None and not executors.warm():
            self._soon()  # a run that begins meanwhile must reuse the worker that is starting
            return
        study, self._study = self._study, None
        if study is not None:
            self._start(study)

    def _start(self, study: Study) -> None:
        try:
            self.begin(study)
        except HftaError as error:
            self._tell(Tried(f'<span class="hfta-error">{escape(words(error))}</span>', words(error)))


def key_of(study: Study) -> Any:
    """The key of the forward's result: everything it depends on."""
    kinds = frozenset(repr(sorted(a.items())) for group in study.plan_groups for a in group.arguments)
    sizes = frozenset(int(row["batch_size"]) for group in study.plan_groups for row in group.rows)
    return (
        id(study.family.function),
        study.data_name,
        sizes,
        str(study.device),
        str(study.dtype),
        study.precision,
        kinds,
    )


def said(study: Study, found: list[ev.ForwardTried], failed: str) -> Tried:
    """The result in words.

    Args:
        study: the tried study.
        found: the results per architecture.
        failed: why the trial failed, in words.
    """
    if failed:
        return Tried(f'<span class="hfta-tried">Not tried on a batch: {escape(shorten(failed))}</span>')
    wrong = [event for event in found if event.reason]
    if not wrong:
        many = f"All {count(len(found), 'architecture')} ran" if len(found) > 1 else "Its forward ran"
        return Tried(f'<span class="hfta-tried">{many} on one batch.</span>' if found else "")
    first = wrong[0]
    frame = UserFrame(first.file, first.line, first.function, first.source) if first.file else None
    own = own_frames(first.detail) or ([frame] if frame else [])
    label = next((v.label for v in study.variants if v.id == first.variant), f"#{first.variant}")
    many = f", as {'does' if len(wrong) == 2 else 'do'} {count(len(wrong) - 1, 'other')}" if len(wrong) > 1 else ""
    of = f" of {count(len(found), 'architecture')}" if many else ""
    todo = mend(own)
    all_wrong = len(wrong) == len(found)
    todo += "" if all_wrong else " Train trains the others, and those that fail are FAILED."
    markup = failure(f"{label} fails on one batch{many}{of}.", first.reason, todo.strip(), own, first.detail)
    line = shorten(f"{frame}: {first.reason}" if frame else first.reason, 200)
    return Tried(f'<div class="hfta-tried hfta-failed">{markup}</div>', line, line if all_wrong else "")
