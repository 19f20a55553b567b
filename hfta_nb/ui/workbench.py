"""The Workbench: Define, Plan, Train, Watch, Results and Runs as one widget."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets

from hfta_nb.errors import StudyError
from hfta_nb.models.recipes import Family
from hfta_nb.records.history import History
from hfta_nb.study import Study, executors, taking_home
from hfta_nb.ui import actions
from hfta_nb.ui.debounce import Debounced, Later
from hfta_nb.ui.define import Define
from hfta_nb.ui.dry_run import DryRun, Tried
from hfta_nb.ui.exports import write_csv, write_png
from hfta_nb.ui.offer import Offer
from hfta_nb.ui.persistence import Persistence
from hfta_nb.ui.plan_view import PlanView, device_text
from hfta_nb.ui.planner import Planner
from hfta_nb.ui.refresh import clear, refresh, sections_of
from hfta_nb.ui.reopen import loaded, restore
from hfta_nb.ui.results import Results
from hfta_nb.ui.run_list import RunList
from hfta_nb.ui.run_phase import AT_REST, ENDED, why_not
from hfta_nb.ui.saved_run import arguments_of, columns_of
from hfta_nb.ui.session import Session
from hfta_nb.ui.shown_run import ShownRun
from hfta_nb.ui.since_run import SinceRun, added
from hfta_nb.ui.train_view import TrainView
from hfta_nb.ui.watch import Watch
from hfta_nb.ui.widgets import Bar

REPLAN_S = 0.25
"""Idle time after typing before the plan is made again."""


class Workbench(ShownRun, ipywidgets.VBox):  # type: ignore[misc]
    """Define a sweep, see its plan, train it in a worker process, watch it, and take the winner home.

    Every button is also a method. Callbacks of a run are called on a thread that reads its events.

    Args:
        family: name of the family, or the family.
        data: a name, own data (`hfta_nb.Data`), or tensors ``(x, y)``; by default the family's first data set.
        grid: axis names to values, which can be edited on the screen; or listed configurations.
        executor: "worker" trains in a worker process, "inline" on a thread (for tests), "processes" or "ray" in many.
        detach: let a run in a process go on when the kernel restarts or ends; *Reattach* shows and steers it again.
        options: further arguments of `hfta_nb.Study`, of which `epochs`, `batch_size`, `patience`, `seed`, `device` and
            others have a field, and the rest, such as ``optimizer="sgd"``, is shown; of its `run`: workers, address.

    Attributes:
        define, plan_view, train_view, live, leaderboard, runs: the parts on the screen.
        taken: the last module from `take`.

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
        executor: str = "worker",
        detach: bool = True,
        **options: Any,
    ) -> None:
        self._later = Later()
        self._replan = Debounced(self._later, REPLAN_S, self._plan)
        self._persistence = Persistence(self, self._later)
        self._waiting = False
        self.taken: Any = None
        self.runs = RunList(self, self._later)
        where = executors.Where.of(executor, options.pop("workers", None), options.pop("address", None), detach)
        if where.kind == "worker" and self._later.has_loop:
            executors.prewarm()  # it imports torch while this is laid out and drawn
        super().__init__(self._made(where, {"family": family, "data": data, "grid": grid, **options}))
        self.add_class("hfta-workbench")
        self._plan()
        self.runs.look()

    def _made(self, where: executors.Where, given: Mapping[str, Any]) -> list[Any]:
        """The parts on the screen, for what is given."""
        self._tried = Tried()
        self._session = Session(where, self._later, self)
        self.steer = self._session.steer  # as the buttons above the table do
        self.define = Define(self._replan, **given)
        self.bar = Bar(goes_on=where.detach and where.kind == "worker")
        self.offer = Offer(lambda path: actions.press_reattach(self, path))
        self.plan_view = PlanView(where, self._later, self._pad)
        self._planner = Planner(self.define, self.plan_view)
        self._dry_run = DryRun(where.kind, self._later, self._on_tried)
        self.plan_view.again.on_click(lambda _: self._dry_run.again())
        pressed, on_request = functools.partial(actions.press, self), functools.partial(actions.press_row, self)
        self.train_view = TrainView(pressed, self._session.measure)
        self.watch = Watch()
        self.results = Results(pressed, on_request, lambda: self.study)
        self.live, self.leaderboard = self.watch.live, self.results.leaderboard
        bodies = self.define, self.plan_view, self.train_view, self.watch, self.results
        self.sections = sections_of(bodies, lambda: self._session.phase in AT_REST)
        press_since = functools.partial(actions.press_since, self)
        self._since = SinceRun(self.define, self.sections["Define"], self._session, press_since)
        # Linked in the front end, so that rows and curves agree while the kernel is busy.
        others = self.leaderboard, self.results.figures.linked
        self._selection = [ipywidgets.jslink((self.live, "selected"), (other, "selected")) for other in others]
        self.live.observe(lambda _: self.refresh(), "color_by")
        self.leaderboard.observe(lambda _: self._persistence.arranged(), "arranged")
        return [self.bar, self.offer, *self.sections.values(), self.runs.section]

    # What it is.

    @property
    def study(self) -> Study:
        """The study of the run; before the first run, the planned one.

        Raises:
            StudyError: the definition can't be trained.
        """
        found = self._session.study or self._planner.draft
        if found is None:
            raise StudyError("nothing is planned", where="Workbench", remedy=self._planner.problem)
        return found

    @property
    def family(self) -> Family | None:
        """The planned family, with the arguments given in code; None without a plan."""
        return None if self._planner.draft is None else self._planner.draft.family

    @property
    def state(self) -> str:
        """The phase of the run: "idle", "starting", "running", "paused", "finished", ..."""
        return str(self._session.phase)

    @property
    def history(self) -> History:
        """The history of the run."""
        return self._session.history

    @property
    def handle(self) -> Any:
        """The `hfta_nb.study.executors.RunHandle` of the run; None before the first."""
        return self._session.handle

    def __repr__(self) -> str:
        return f"Workbench({self.define.summary(self._planner.amount)})"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)
        self._persistence.displayed()

    def show(self) -> None:
        """Display the Workbench in the output of this cell."""
        self._ipython_display_()

    # Actions.

    def run(self, wait: bool = True) -> None:
        """Train the defined study.

        Args:
            wait: wait for the end, then show picture and table as output of this cell. The notebook scrolls to the
                Workbench, which is displayed here if it is not displayed anywhere. An interrupt ends the waiting; the
                run continues.

        Raises:
            StudyError: the definition can't be trained, or a run is in progress.
            HftaError: the run failed.
        """
        reason = why_not("train", self._session.phase, self.planned())
        if reason:
            raise StudyError(f"can't train now: {reason}", where="Workbench")
        self._waiting = wait
        try:
            study = self._planner.fresh()
            self._clear()
            self._persistence.be_seen(wait)
            self._persistence.begun(study)
            self._since.begin()
            self._session.start(study)
            if wait:
                self.handle.wait()  # at the end all subscribers have seen the last event
        finally:
            self._waiting = False
        if wait:
            self.refresh()
            self._persistence.waited()
            if self.handle.error is not None:
                raise self.handle.error

    def train(self) -> None:
        """Start training, as the button does; a finished run is kept."""
        self.run(wait=False)

    def pause(self) -> None:
        """Pause the run between two steps."""
        self._session.ask("pause")

    def resume(self) -> None:
        """Continue after a pause, or resume a stopped or failed run from its last checkpoint."""
        carried_on = self._session.phase in ENDED
        if carried_on:
            self._clear(anew=False)
        self._session.ask("resume")
        if carried_on:
            self._persistence.begun(self.study)

    def stop(self, member: int | None = None) -> None:
        """Stop the run or one member; everything learnt so far is kept."""
        if member is None:
            self._session.ask("stop")
        else:
            self._session.stop_member(member)
            self.say(f"stopping #{member}", "busy")

    def check(self, members: Sequence[int] | None = None) -> Any:
        """Retrain members alone and compare; the leaderboard shows the result.

        Args:
            members: their ids; by default the selected members, or else the best one.

        Returns:
            The handle of the check.

        Raises:
            StudyError: there is no run, or it is in progress.
        """
        chosen = list(members or self.leaderboard.selected or [self.study.best().variant.id])
        handle = self._session.check(chosen, self.results.checked)
        if not handle.ended:
            self.results.say(f"training {', '.join(f'#{i}' for i in chosen)} alone, to compare ...")
        return handle

    def take(self, member: int) -> Any:
        """Get a member's best weights as a plain module, also kept as `taken`; writes a file and shows its code."""
        result = self.study.member(member)
        self.taken = result.module()
        path = taking_home.write(result)
        self.results.show_code(f"take #{member} home", taking_home.source(result, path))
        written = f", its weights are in {path}" if path else ""
        self.results.say(f"#{member} is in {self._persistence.name}.taken{written}")
        return self.taken

    def refine(self, member: int) -> None:
        """Put a finer grid around a member, or a narrower search, into Define."""
        self._since.refine(member)
        self.bar.reveal = True

    def revert(self) -> None:
        """Have Define as it was when the run began."""
        self._since.revert()

    def add(self) -> list[dict[str, Any]]:
        """Train the variants that Define has and the run has not in this run as well; returns them.

        Raises:
            StudyError: nothing is training, or there are none that can join the run.
        """
        variants = self._since.add()
        self.results.say(added(variants))
        return variants

    def export_csv(self) -> Path:
        """Write the leaderboard to ``leaderboard.csv`` in the run's directory; returns the path."""
        return self.results.offer(write_csv(self.study))

    def export_png(self) -> Path:
        """Write curves and utilization, as the live view has them, to ``curves.png``; returns the path."""
        return self.results.offer(write_png(self.study, self.history, self._session.reading(), self.live))

    def code(self) -> str:
        """The source of a cell that reproduces the sweep; also shown."""
        return self.results.show_code("a cell that reproduces this sweep", self.study.to_code())

    @classmethod
    def reattach(cls, path: str | Path, *, family: Any = None, data: Any = None, executor: str = "worker") -> Workbench:
        """A Workbench that shows a saved run, which can be resumed, or one that another process runs, and controls it.

        Args:
            path: the directory of the run.
            family: the family, if the user defined it and it is not defined now.
            data: the data, if it was a stream, which is not saved.
            executor: see `Workbench`.

        Raises:
            StoreError: there is no run, it is damaged, or its data must be given.
            FamilyError: its family is not known.
        """
        study = loaded(path, family, data)
        made = cls(executor=executor, **arguments_of(study))
        made._adopt(study)
        return made

    def restore(self, path: str | Path) -> None:
        """Show a saved run and its definition in this Workbench; like `reattach`, in place.

        Args:
            path: the directory of the run.

        Raises:
            StoreError: there is no run, or it is damaged.
            StudyError: a run is in progress in this Workbench, and would end with it, or a cell waits for it.
            FamilyError: its family is not known.
        """
        restore(self, path, leave=self.bar.goes_on and not self._waiting)

    def remake(self, study: Study) -> None:
        """Lay everything out again for the run of a study that was read from disk."""
        self._release()
        self.children = self._made(self._session.where, arguments_of(study))
        self._plan()
        self._adopt(study)
        self._later.here(self._persistence.keep)

    def close(self) -> None:
        """Close the Workbench. A run in progress continues; stop it first if it should not."""
        self._release()
        self.runs.close()
        super().close()

    # Planning.

    def planned(self) -> str:
        """Update the plan; returns why the definition can't be trained, in words."""
        self._replan.now()
        return self._planner.problem

    def _plan(self) -> None:
        line = self._planner.plan()
        if self._session.phase in AT_REST:
            self._dry_run.plan(self._planner.draft)
        self.sections["Plan"].summarise(line)
        self.sections["Define"].summarise(self.define.summary(self._planner.amount))
        self.bar.hints = self.define.hints() | self.plan_view.simulate.hints()
        if self._planner.draft is not None and self._session.phase in AT_REST:
            self.bar.device = device_text(self._planner.draft.device)
        if self._session.study is None:
            self._persistence.look()
        self.phase_changed()

    def _pad(self, padding: float | str) -> None:
        self.define.fields["padding"].meaning = padding

    def _on_tried(self, found: Tried) -> None:
        before, self._tried = self._tried, found
        self.plan_view.show_tried(found.markup, bool(found.wrong))
        if found[1:] != before[1:]:
            if found.wrong:
                self.sections["Plan"].summarise(found.wrong)
            self.phase_changed()

    # The screen.

    def refresh(self) -> None:
        refresh(self, self._session)
        self._later.soon(self.results.figures.follow)

    def _clear(self, anew: bool = True) -> None:
        """Make room for a run; `anew`: another one than that on the screen."""
        self._dry_run.leave()
        clear(self, anew)

    def _adopt(self, study: Study) -> None:
        """Show a run that was read from disk."""
        self._clear()
        self.leaderboard.arranged = columns_of(study.directory)
        self.live.start(study.history)
        if study.history.run is not None:
            self.run_began(study.history.run)
        self._since.begin()
        self._session.adopt(study)
        self.bar.reveal = True

    def _release(self) -> None:
        # ipywidgets also closes a widget whose construction failed, and closes every widget again on collection.
        for part in ("_session", "define", "live", "plan_view"):
            if part in self.__dict__:
                self.__dict__[part].close()
        for child in self.children[:-1]:  # the list of runs stays for the next one
            child.close()
