"""Whether each architecture's forward runs, found out after Plan in the process that trains, and never in this one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hfta_nb import events as ev
from hfta_nb import executors
from hfta_nb.errors import HftaError
from hfta_nb.own_lines import OwnLine
from hfta_nb.study import Study
from hfta_nb.ui.debounce import Debounced, Later
from hfta_nb.ui.text import count, escape, shorten, words

AFTER_S = 1.0
"""How long nothing must be typed, and no run begin, before the forward is tried: *Run All* trains at once."""

TRYING = "Trying each architecture on one batch ..."


class DryRun:
    """Tries what is planned; another plan takes the place of the one before.

    Args:
        kind: where runs are; nothing is tried by itself where they are in this process.
        later: the kernel's own thread.
        tell: called with markup, and with what is wrong in a line; from any thread.
    """

    def __init__(self, kind: str, later: Later, tell: Callable[[str, str], None]) -> None:
        self._kind, self._tell = kind, tell
        self._automatic = kind == "worker" and later.has_loop
        self._soon = Debounced(later, AFTER_S, self._due)
        self._study: Study | None = None
        self._key: Any = None
        self._unsubscribe: Callable[[], None] = lambda: None

    def plan(self, study: Study | None) -> None:
        """Something else is planned, or nothing."""
        key = None if study is None else key_of(study)
        if key == self._key:
            return
        self.leave()
        self._key, self._study = key, study
        if study is not None and self._automatic:
            self._soon()

    def leave(self) -> None:
        """Forget what is being tried: a run begins, which says all that there is to say."""
        self._study = None
        self._unsubscribe()
        self._unsubscribe = lambda: None
        self._tell("", "")

    def begin(self, study: Study) -> Any:
        """Try a study's architectures now; returns the handle of it.

        Raises:
            WorkerError: something in the study can't be sent to a process.
        """
        self.leave()
        self._key = key_of(study)
        handle = executors.start(study.excerpt(), kind=self._kind, job="try")  # type: ignore[arg-type]
        self._tell(f'<span class="hfta-tried">{TRYING}</span>', "")

        def heard(event: ev.Event) -> None:
            if isinstance(event, ev.RunChanged) and event.state in ev.FINAL_STATES:
                failed = event.reason if event.state == ev.FAILED else ""
                self._tell(*said(study, handle.history.tried, failed))

        with handle.lock:  # so that nothing is missed between the two
            ended, history = handle.ended, handle.history
            self._unsubscribe = handle.subscribe(heard)
        if ended:
            heard(ev.RunChanged(time.time(), history.state, history.reason))
        return handle

    def _due(self) -> None:
        if self._study is not None and not executors.warm():
            self._soon()  # a run that begins meanwhile must find the worker that is being started
            return
        study, self._study = self._study, None
        if study is None:
            return
        try:
            self.begin(study)
        except HftaError as error:
            self._tell(f'<span class="hfta-error">{escape(words(error))}</span>', words(error))


def key_of(study: Study) -> Any:
    """What decides about how the forward goes."""
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


def said(study: Study, found: list[ev.ForwardTried], failed: str) -> tuple[str, str]:
    """What came of it: as markup, and what is wrong in a line.

    Args:
        study: whose architectures were tried.
        found: what is known of each.
        failed: why it could not be tried, in words.
    """
    if failed:
        return f'<span class="hfta-tried">Not tried on a batch: {escape(shorten(failed))}</span>', ""
    wrong = [event for event in found if event.reason]
    if not wrong:
        many = f"All {count(len(found), 'architecture')} ran" if len(found) > 1 else "Its forward ran"
        return (f'<span class="hfta-tried">{many} on one batch.</span>', "") if found else ("", "")
    first, others = wrong[0], len(wrong) - 1
    own = OwnLine(first.file, first.line, first.function, first.source) if first.file else None
    label = next((v.label for v in study.variants if v.id == first.variant), f"#{first.variant}")
    more = f" So do {count(others, 'other')} of {count(len(found), 'architecture')}." if others else ""
    place = "" if own is None else f"<strong>{escape(own.place)}</strong>"
    code = f"<code>{escape(own.code)}</code>" if own is not None and own.code else ""
    text = (
        f"<div>{escape(shorten(first.reason))}</div><div>{escape(label)} raises this on one batch.{escape(more)}</div>"
    )
    trace = f"<details><summary>Details</summary><pre>{escape(first.detail[-6000:])}</pre></details>"
    line = f"{own}: {first.reason}" if own is not None else first.reason
    return f'<div class="hfta-tried hfta-failed" role="alert">{place} {code}{text}{trace}</div>', shorten(line, 200)
