"""The run of a Workbench: its phase, requests and events. It has no widgets."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any, Protocol

from hfta_nb import events as ev
from hfta_nb.errors import HftaError, StudyError, WorkerError
from hfta_nb.records.history import History
from hfta_nb.study import Study, executors
from hfta_nb.ui.debounce import Later
from hfta_nb.ui.run_follower import Follower
from hfta_nb.ui.run_phase import ENDED, RunPhase, after, signal_of, why_not
from hfta_nb.ui.steer import post, refused
from hfta_nb.ui.text import words


class Screen(Protocol):
    """Displays a session. Methods may be called from any thread."""

    def attach(self, handle: Any) -> None:
        """Called with a run to follow."""

    def phase_changed(self) -> None:
        """Called when buttons and status change."""

    def run_began(self, event: ev.RunStarted) -> None:
        """Called with the first event of a run."""

    def starting(self, what: str) -> None:
        """Called with the run's activity before training."""

    def refresh(self) -> None:
        """Called when numbers and tables change."""

    def say(self, text: str, level: str) -> None:
        """Called with a line to show; "bad" where something went wrong."""

    def refused(self, why: str) -> None:
        """Called when a request was not answered."""

    def failed(self, reason: str, detail: str, interrupted: bool = False) -> None:
        """Called when the run failed, or was interrupted, as its process is gone."""

    def ended(self) -> None:
        """Called when the run is over."""


class Session:
    """Controls one run after another.

    Args:
        where: they run.
        later: the kernel's main thread.
        screen: displays the runs.

    Attributes:
        phase: phase of the run.
        study: the last study that was run; None before the first.
        history: history of its run.
        handle: handle of the run; None before the first run, and for a run that was read from disk.
    """

    def __init__(self, where: executors.Where, later: Later, screen: Screen) -> None:
        self.where, self.kind = where, where.kind
        self.phase = RunPhase.IDLE
        self.study: Study | None = None
        self.history = History()
        self.handle: Any = None
        self._later, self._screen = later, screen
        self._lock = RLock()
        self._follower: Follower | None = None
        self._stop_checking: Callable[[], None] = lambda: None

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run can be resumed: something was trained, and is in a checkpoint."""
        with self.reading():
            trained = any(member.epoch or member.step_loss.epochs for member in self.history.members.values())
        return trained and self.study is not None and self.study.store.has_checkpoint

    def reading(self) -> Any:
        """The lock for reading more than one attribute of `history`."""
        return self.handle.lock if self.handle is not None else self._lock

    def start(self, study: Study, resume: bool = False) -> None:
        """Run a study, or resume its run.

        Raises:
            HftaError: it can't be started.
        """
        with self._lock:
            self.phase = after(self.phase, "continue" if resume else "train")
            self.study = study
        self._unfollow()
        self._screen.phase_changed()
        try:
            where = self.where
            self.handle = executors.start(
                study, kind=self.kind, resume=resume, arguments=where.arguments, detach=where.detach
            )
        except HftaError as error:
            self._screen.failed(words(error), "")
            self._signal("failed")
            raise
        self._follow(self.handle)

    def ask(self, name: str) -> None:
        """Forward a button's request: "pause", "resume" or "stop".

        Raises:
            StudyError: it is not possible now; the message says why.
        """
        reason = why_not(name, self.phase, checkpoint=self.has_checkpoint)
        if reason:
            raise StudyError(reason, where=name)
        if name == "resume" and self.phase in ENDED and self.study is not None:
            self.start(self.study, resume=True)
            return
        self._signal(name)
        getattr(self.handle.control, name)()

    def stop_member(self, member: int) -> None:
        """Request that one member stops.

        Raises:
            StudyError: nothing is training.
        """
        reason = why_not("stop", self.phase)
        if reason:
            raise StudyError(reason, where=f"stop #{member}")
        self.handle.control.stop(member)

    def steer(self, name: str, given: Mapping[str, Any]) -> str:
        """Request something for members; returns it in words. See `hfta_nb.ui.steer`.

        Raises:
            HftaError: nothing is training, or it can't be answered.
        """
        reason = why_not("stop", self.phase)
        if reason:
            raise StudyError(reason, where=name)
        return post(self.handle.control, self.history, name, given)

    def check(self, members: Sequence[int], tell: Callable[[list[ev.MemberChecked] | str], None]) -> Any:
        """Retrain members alone and compare.

        Args:
            members: their ids.
            tell: called with all results, or with the error.

        Returns:
            The handle of the check.

        Raises:
            StudyError: there is no run that has ended.
        """
        if self.study is None or self.phase not in ENDED:
            raise StudyError("there is no run that has ended", where="check against training alone")
        chosen, done = list(members), dict[int, ev.MemberChecked]()
        arguments = {"members": chosen}
        handle = executors.start(self.study, kind=self.kind, job="check", arguments=arguments)
        began_s = time.time()

        def on_event(event: ev.Event) -> None:
            if isinstance(event, ev.RunChanged) and event.state in ev.FAILURES:
                self._stop_checking()
                tell(event.reason)
            elif isinstance(event, ev.MemberChecked) and event.time_s >= began_s and event.variant not in done:
                done[event.variant] = event
                with self.reading():
                    self.history.add(event)
                self._screen.refresh()
                if len(done) == len(chosen):
                    self._stop_checking()
                    tell([done[i] for i in chosen])

        self._stop_checking()
        with handle.lock:  # so that no event is missed in between
            early = [m.check for m in handle.history.members.values() if m.check is not None]
            self._stop_checking = handle.subscribe(on_event)
            failed = handle.history.reason if handle.state in ev.FAILURES else None
        for event in early:
            on_event(event)
        if failed is not None:
            tell(failed)
        return handle

    def measure(self, tell: Callable[[str], None]) -> Any:
        """Measure the arrays of an ended run beside plain modules; `tell` is called in the end, with why it failed.

        Raises:
            StudyError: there is no run that has ended.
        """
        if self.study is None or self.phase not in ENDED:
            raise StudyError("there is no run that has ended", where="measure speed")
        handle = executors.start(self.study, kind=self.kind, job="speed")

        def on_event(event: ev.Event) -> None:
            if isinstance(event, ev.SpeedMeasured):
                with self.reading():
                    self.history.add(event)
            elif isinstance(event, ev.RunChanged) and event.state in ev.FINAL_STATES:
                self._stop_checking()
                failed = event.reason if event.state in ev.FAILURES else ""
                tell(failed or ("" if self.history.speeds else "no plain module fits into memory beside the array"))
                self._screen.refresh()

        self._stop_checking()
        with handle.lock:  # so that no event is missed in between
            early, state, reason = dict(handle.history.speeds), handle.state, handle.history.reason
            self._stop_checking = handle.subscribe(on_event)
        for speed in early.values():
            on_event(speed)
        if handle.ended:
            on_event(ev.RunChanged(time.time(), state, reason))
        return handle

    def adopt(self, study: Study) -> None:
        """Show a run that was read from disk; follow and control it where another process runs it."""
        if study.store.running:
            with contextlib.suppress(WorkerError):  # it has ended meanwhile
                self._join(study)
                return
        self.study, self.history, self.handle = study, study.history, None
        states = {ev.COMPLETE: RunPhase.FINISHED, ev.STOPPED: RunPhase.STOPPED, ev.WAITING: RunPhase.IDLE}
        states[ev.FAILED] = RunPhase.FAILED
        self.phase = states.get(self.history.state, RunPhase.INTERRUPTED)
        if self.history.state in ev.FAILURES:
            self._screen.failed(self.history.reason, self.history.detail, self.phase is RunPhase.INTERRUPTED)
        self._screen.phase_changed()
        self._screen.refresh()

    def close(self) -> None:
        """Stop following; a run in progress continues."""
        self._unfollow()
        self._stop_checking()

    # Within.

    def _join(self, study: Study) -> None:
        handle = executors.attach(study)
        self._unfollow()
        with self._lock:
            self.phase, self.study, self.handle = RunPhase.STARTING, study, handle
        self._screen.phase_changed()
        self._follow(handle)
        if handle.state == ev.PAUSED:
            self._signal("paused")

    def _unfollow(self) -> None:
        if self._follower is not None:
            self._follower.close()

    def _follow(self, handle: Any) -> None:
        self.history = handle.history
        with handle.lock:  # earlier events are only in the history, later ones only in callbacks
            self._follower = Follower(handle, self._on_event, self._screen.refresh, self._later)
            begun, state, training = handle.state, self.history.state, self.history.phase.startswith("training")
            run, reason, detail = self.history.run, self.history.reason, self.history.detail
        self._screen.attach(handle)
        if run is not None:
            self._screen.run_began(run)
        if handle.ended:
            self._on_event(ev.RunChanged(time.time(), state, reason, detail))
        elif begun != ev.WAITING and training and state == ev.RUNNING:  # else it belongs to the resumed run
            self._signal("began")
        self._screen.refresh()

    def _on_event(self, event: ev.Event) -> None:
        if isinstance(event, ev.RunStarted):
            self._screen.run_began(event)
            if event.resumed:
                # When it was attached, the history still had the earlier end of the run.
                self._screen.attach(self.handle)
        if isinstance(event, ev.PhaseChanged) and self.phase is RunPhase.STARTING and event.phase != "training":
            self._screen.starting(event.phase + (f" ({event.detail})" if event.detail else ""))
        if isinstance(event, ev.RequestRefused):
            self._screen.refused(refused(event))
        signal = signal_of(event)
        if isinstance(event, ev.RunChanged) and event.state in ev.FAILURES:
            self._screen.failed(event.reason, event.detail, event.state == ev.INTERRUPTED)
        if signal:
            self._signal(signal)

    def _signal(self, signal: str) -> None:
        with self._lock:
            before, self.phase = self.phase, after(self.phase, signal)
            changed = before is not self.phase
        if changed:
            self._screen.phase_changed()
            if self.phase in ENDED:
                self._screen.refresh()
                self._screen.ended()
