"""The Workbench: Define, Plan, Train, Watch and Results as one widget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets

from hfta_nb import events as ev
from hfta_nb import executors
from hfta_nb.errors import StudyError
from hfta_nb.history import History
from hfta_nb.recipes import Family
from hfta_nb.study import Study
from hfta_nb.ui import actions
from hfta_nb.ui.debounce import Debounced, Later
from hfta_nb.ui.define import Define
from hfta_nb.ui.dry_run import DryRun
from hfta_nb.ui.exports import take_home_code, write_csv, write_png
from hfta_nb.ui.offer import Offer
from hfta_nb.ui.persistence import Persistence
from hfta_nb.ui.plan_view import PlanView, device_text
from hfta_nb.ui.planner import Planner
from hfta_nb.ui.refresh import clear, refresh, sections_of
from hfta_nb.ui.reopen import loaded, restore
from hfta_nb.ui.results import Results
from hfta_nb.ui.run_phase import AT_REST, ENDED, why_not
from hfta_nb.ui.saved_run import arguments_of
from hfta_nb.ui.session import Session
from hfta_nb.ui.status import status
from hfta_nb.ui.train_view import TrainView
from hfta_nb.ui.watch import Watch
from hfta_nb.ui.widgets import Bar

REPLAN_S = 0.25
"""How long nothing must be typed before the plan is made again."""

FIELDS = (*("family", "data", "grid", "epochs", "batch_size", "patience"), *("seed", "dtype", "precision", "device"))
"""Arguments that have a field of their own."""


class Workbench(ipywidgets.VBox):  # type: ignore[misc]
    """Define a sweep, see its plan, train it in a process of its own, watch it, take the winner home.

    Everything that a button does is a method as well. Callbacks of a run come on a thread that reads its events.

    Args:
        family: name of the family, or the family.
        data: a name, own data (`hfta_nb.Data`), or tensors ``(x, y)``; the family's default without.
        grid: axis names to values, all of which can be changed on the screen; or listed configurations.
        epochs, batch_size, patience, seed, dtype, precision, device: as in `hfta_nb.Study`.
        executor: where it trains: "worker" (a process of its own) or "inline" (a thread, for tests).
        options: further arguments of `hfta_nb.Study`, such as ``optimizer="sgd"`` or ``directory="runs/first"``.

    Attributes:
        define, plan_view, train_view, live, leaderboard: the parts on the screen.
        taken: the module that was last taken home.

    Raises:
        HftaError: an argument can't be used.

    Example:
        >>> Workbench(family="mlp", data="digits", grid={"lr": [1e-3, 1e-2]}, epochs=1)
        Workbench(mlp on digits, 1 epoch; 2 lr = 2 variants)
    """

    def __init__(
        self,
        family: Any = "cnn",
        data: Any = None,
        grid: Any = None,
        *,
        epochs: int = 20,
        batch_size: int | None = None,
        patience: int | None = None,
        seed: int = 0,
        dtype: str = "float32",
        precision: str = "fp32",
        device: str | None = None,
        executor: str = "worker",
        **options: Any,
    ) -> None:
        self._later = Later()
        self._replan = Debounced(self._later, REPLAN_S, self._plan)
        self._persistence = Persistence(self, self._later)
        self._waiting = False
        self.taken: Any = None
        given = {"family": family, "data": data, "grid": grid, "epochs": epochs, "batch_size": batch_size}
        given |= {"patience": patience, "seed": seed, "dtype": dtype, "precision": precision, "device": device}
        super().__init__(self._made(executor, given | options))
        self.add_class("hfta-workbench")
        self._plan()

    def _made(self, executor: str, given: Mapping[str, Any]) -> list[Any]:
        """The parts on the screen, for what is given."""
        self._wrong = ""  # what was found out by trying
        self._session = Session(executor, self._later, self)
        fields = {k: v for k, v in given.items() if k in FIELDS}
        options = {k: v for k, v in given.items() if k not in FIELDS}
        self.define = Define(self._replan, **fields, options=options)
        self.bar, self.offer = Bar(), Offer(lambda path: actions.press_reattach(self, path))
        self.plan_view = PlanView()
        self._planner = Planner(self.define, self.plan_view)
        self._dry_run = DryRun(executor, self._later, self._tried)
        self.train_view = TrainView(self._pressed)
        self.watch = Watch()
        self.results = Results(self._pressed, self._asked)
        self.live, self.leaderboard = self.watch.live, self.results.leaderboard
        bodies = self.define, self.plan_view, self.train_view, self.watch, self.results
        self.sections = sections_of(bodies)
        # In the front end: rows and curves follow each other while the kernel is busy with a cell.
        self._selection = ipywidgets.jslink((self.live, "selected"), (self.leaderboard, "selected"))
        self.live.observe(lambda _: self.refresh(), "color_by")
        return [self.bar, self.offer, *self.sections.values()]

    # What it is.

    @property
    def study(self) -> Study:
        """The study of the run; before the first run, the one that is planned.

        Raises:
            StudyError: nothing that could be trained is defined.
        """
        found = self._session.study or self._planner.draft
        if found is None:
            raise StudyError("nothing is planned", where="Workbench", remedy=self._planner.problem)
        return found

    @property
    def family(self) -> Family | None:
        """Of what is planned, with all that it was given in code; None where nothing can be planned."""
        return None if self._planner.draft is None else self._planner.draft.family

    @property
    def state(self) -> str:
        """Where the run is: "idle", "starting", "running", "paused", "finished", ..."""
        return str(self._session.phase)

    @property
    def history(self) -> History:
        """What is known of the run."""
        return self._session.history

    @property
    def handle(self) -> Any:
        """Of the run, a `hfta_nb.executors.RunHandle`; None before the first."""
        return self._session.handle

    def __repr__(self) -> str:
        return f"Workbench({self.define.summary(self._planner.variants)})"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self._session.kind == "worker":
            executors.prewarm()
        display(self._repr_mimebundle_(), raw=True)
        self._persistence.displayed()

    def show(self) -> None:
        """Display the Workbench in the output of this cell."""
        self._ipython_display_()

    # What a person may do.

    def run(self, wait: bool = True) -> None:
        """Train what is defined.

        Args:
            wait: whether to wait for the end, and then show picture and table as output of this cell. A notebook
                scrolls to the Workbench meanwhile; one that is displayed nowhere is displayed here. An interrupt ends
                the waiting; the run goes on.

        Raises:
            StudyError: nothing that could be trained is defined, or a run is on.
            HftaError: the run failed.
        """
        reason = why_not("train", self._session.phase, self.planned())
        if reason:
            raise StudyError(f"can't train now: {reason}", where="Workbench")
        self._waiting = wait
        try:
            study = self._planner.fresh()
            self._clear()
            if wait:
                self._persistence.be_seen()
            self._persistence.begun(study)
            self._session.start(study)
            if wait:
                self.handle.wait()  # in the end everybody who listens has seen the last event
        finally:
            self._waiting = False
        if wait:
            self.refresh()
            self._persistence.waited()
            if self.handle.error is not None:
                raise self.handle.error

    def train(self) -> None:
        """Start training, as the button does; a finished run is kept where it lies."""
        self.run(wait=False)

    def pause(self) -> None:
        """Halt the run between two steps."""
        self._session.ask("pause")

    def resume(self) -> None:
        """Go on after a pause; or carry a stopped or failed run on from its last checkpoint."""
        carried_on = self._session.phase in ENDED
        if carried_on:
            self._clear()
        self._session.ask("resume")
        if carried_on:
            self._persistence.begun(self.study)

    def stop(self, member: int | None = None) -> None:
        """Stop the run, or one member of it; what was learnt so far is kept."""
        if member is None:
            self._session.ask("stop")
        else:
            self._session.stop_member(member)
            self.say(f"stopping #{member}", "busy")

    def check(self, members: Sequence[int] | None = None) -> Any:
        """Train members alone again and compare; the outcome comes to the leaderboard.

        Args:
            members: their ids; without, those that are selected, or else the best one.

        Returns:
            The handle of the check.

        Raises:
            StudyError: there is no run, or it is still on.
        """
        chosen = list(members or self.leaderboard.selected or [self.study.best().variant.id])
        handle = self._session.check(chosen, self.results.checked)
        if not handle.ended:
            self.results.say(f"training {', '.join(f'#{i}' for i in chosen)} alone, to compare ...")
        return handle

    def take(self, member: int) -> Any:
        """Take a member home: its best weights in a plain module, also kept as `taken`; the code for it is shown."""
        result = self.study.member(member)
        self.taken = result.module()
        name = self._persistence.name
        self.results.show_code(f"take #{member} home", take_home_code(name, result))
        self.results.say(f"#{member} is in {name}.taken")
        return self.taken

    def export_csv(self) -> Path:
        """Write the leaderboard to ``leaderboard.csv`` in the run's directory; returns the path."""
        return self.results.offer(write_csv(self.study))

    def export_png(self) -> Path:
        """Write curves and utilization, as the live view has them, to ``curves.png``; returns the path."""
        return self.results.offer(write_png(self.study, self.history, self._session.reading(), self.live))

    def code(self) -> str:
        """The source of a cell that reproduces the sweep, also shown."""
        return self.results.show_code("a cell that reproduces this sweep", self.study.to_code())

    @classmethod
    def reattach(cls, path: str | Path, *, family: Any = None, data: Any = None, executor: str = "worker") -> Workbench:
        """A Workbench with the run that was saved in a directory: what is known of it is shown, and it can be resumed.

        Args:
            path: the directory of the run.
            family: the family, where it was defined by the user and is not defined now.
            data: the data, where it was a stream, of which nothing is kept.
            executor: as for a new one.

        Raises:
            StoreError: there is no run there, it is damaged, or its data must be given.
            StudyError: the run is still on, in another process.
            FamilyError: its family is not known.
        """
        study = loaded(path, family, data)
        made = cls(executor=executor, **arguments_of(study))
        made._adopt(study)
        return made

    def restore(self, path: str | Path) -> None:
        """Bring a saved run onto this screen, with what was defined for it; as `reattach`, in place.

        Args:
            path: the directory of the run.

        Raises:
            StoreError: there is no run there, or it is damaged.
            StudyError: a run is on, here or there.
            FamilyError: its family is not known.
        """
        restore(self, path)

    def remake(self, study: Study) -> None:
        """Lay everything out anew, for the run of a study that was read from disk."""
        self._let_go()
        self.children = self._made(self._session.kind, arguments_of(study))
        self._plan()
        self._adopt(study)
        self._later.here(self._persistence.keep)

    def close(self) -> None:
        """Take it off the screen. A run goes on; stop it first if it should not."""
        self._let_go()
        super().close()

    # Planning.

    def planned(self) -> str:
        """Plan what was typed last; returns what keeps it from being trained, in words."""
        self._replan.now()
        return self._planner.problem

    def _plan(self) -> None:
        line = self._planner.plan()
        if self._session.phase in AT_REST:
            self._dry_run.plan(self._planner.draft)
        self.sections["Plan"].summarise(line)
        self.sections["Define"].summarise(self.define.summary(self._planner.variants))
        self.bar.hints = self.define.hints()
        if self._planner.draft is not None and self._session.phase in AT_REST:
            self.bar.device = device_text(self._planner.draft.device)
        if self._session.study is None:
            self._persistence.look()
        self.phase_changed()

    def _tried(self, markup: str, wrong: str) -> None:
        self.plan_view.tried.value, before, self._wrong = markup, self._wrong, wrong
        if wrong != before:
            if wrong:
                self.sections["Plan"].summarise(wrong)
            self.phase_changed()

    # What a session shows on (`hfta_nb.ui.session.Screen`).

    def attach(self, handle: Any) -> None:
        self.live.attach(handle)

    def run_began(self, event: ev.RunStarted) -> None:
        self.bar.device = f"{event.device} {event.device_name}".strip()
        self._persistence.tell(event.directory)

    def starting(self, what: str) -> None:
        self.say(f"starting: {what}", "busy")

    def failed(self, reason: str, detail: str) -> None:
        self.train_view.fail(reason or "no reason was given", detail, self._session.has_checkpoint)

    def ended(self) -> None:
        if not self._waiting:
            self._later.soon(self._persistence.keep)

    def phase_changed(self) -> None:
        phase, session = self._session.phase, self._session
        self.train_view.enable(phase, self._planner.problem, session.has_checkpoint)
        self.results.enable(session.history.run is not None, phase in AT_REST, self._planner.draft is not None)
        self.say(*status(phase, session.history, self._planner.variants, self._planner.problem, self._wrong))

    def refresh(self) -> None:
        refresh(self, self._session)

    # The screen.

    def _clear(self) -> None:
        """Make room for a run."""
        self._dry_run.leave()
        clear(self)

    def _adopt(self, study: Study) -> None:
        """Show a run that was read from disk."""
        self._clear()
        self.live.start(study.history)
        if study.history.run is not None:
            self.run_began(study.history.run)
        self._session.adopt(study)
        self.bar.reveal = True

    def _let_go(self) -> None:
        # ipywidgets closes one that could not be made as well, and every one again when it is collected.
        for part in ("_session", "define", "live"):
            if part in self.__dict__:
                self.__dict__[part].close()
        for child in self.children:
            child.close()

    def _pressed(self, name: str) -> None:
        actions.press(self, name)

    def _asked(self, what: str, member: int) -> None:
        actions.press_row(self, what, member)

    def say(self, text: str, level: str) -> None:
        """A line at the head; `level` as in `Bar`."""
        self.bar.status, self.bar.level = text, level
