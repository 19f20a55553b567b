"""Shows a session on the parts of a Workbench; see `hfta_nb.ui.session.Screen`."""

from __future__ import annotations

from typing import Any

from hfta_nb import events as ev
from hfta_nb.ui.debounce import Later
from hfta_nb.ui.dry_run import Tried
from hfta_nb.ui.live_view import LiveView
from hfta_nb.ui.persistence import Persistence
from hfta_nb.ui.planner import Planner
from hfta_nb.ui.results import Results
from hfta_nb.ui.run_list import RunList
from hfta_nb.ui.run_phase import AT_REST, RunPhase
from hfta_nb.ui.session import Session
from hfta_nb.ui.since_run import SinceRun
from hfta_nb.ui.status import status
from hfta_nb.ui.train_view import TrainView
from hfta_nb.ui.trials import amount, rungs
from hfta_nb.ui.widgets import Bar


class ShownRun:
    """The methods of a Workbench that its session calls, from any thread; `refresh` is its own."""

    bar: Bar
    train_view: TrainView
    live: LiveView
    results: Results
    runs: RunList
    _later: Later
    _persistence: Persistence
    _planner: Planner
    _session: Session
    _since: SinceRun
    _tried: Tried
    _waiting: bool

    def attach(self, handle: Any) -> None:
        self.live.attach(handle)

    def run_began(self, event: ev.RunStarted) -> None:
        self.bar.device = f"{event.device} {event.device_name}".strip()
        self._persistence.announce(event.directory)
        self._persistence.arranged()
        self._later.soon(self.runs.look)

    def starting(self, what: str) -> None:
        self.say(f"starting: {what}", "busy")

    def refused(self, why: str) -> None:
        self.results.say(why, bad=True)

    def failed(self, reason: str, detail: str, interrupted: bool = False) -> None:
        what = "The run was interrupted." if interrupted else "The run failed."
        self.train_view.fail(reason or "no reason was given", detail, self._session.has_checkpoint, what)

    def ended(self) -> None:
        self._later.soon(lambda: self.results.figures.follow(at_once=True))
        self._later.soon(self.runs.refresh)
        if not self._waiting:
            self._later.soon(self._persistence.keep)

    def phase_changed(self) -> None:
        phase, session = self._session.phase, self._session
        self.train_view.enable(phase, self._planner.problem or self._tried.off, session.has_checkpoint)
        self.results.enable(session.history.run is not None, phase in AT_REST, self._planner.draft is not None)
        self._since.say()
        self.live.rungs = rungs(session.study)
        trains = amount(session.study) if phase is not RunPhase.IDLE else self._planner.amount
        self.say(*status(phase, session.history, trains, self._planner.problem, self._tried.wrong))

    def say(self, text: str, level: str) -> None:
        """Show a line at the head; `level` as in `Bar`."""
        self.bar.status, self.bar.level = text, level
