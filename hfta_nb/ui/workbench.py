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
from hfta_nb.study import Study
from hfta_nb.ui import pressing, results, static, watch
from hfta_nb.ui.define import Define
from hfta_nb.ui.exports import name_of, take_home_code, write_csv, write_png
from hfta_nb.ui.leaderboard import table_of
from hfta_nb.ui.loop import Debounced, Later
from hfta_nb.ui.machine import AT_REST, ENDED, why_not
from hfta_nb.ui.parts import Bar, Section
from hfta_nb.ui.plan_view import PlanView, device_text
from hfta_nb.ui.planner import Planner
from hfta_nb.ui.results import Results
from hfta_nb.ui.saved import arguments_of, as_interrupted
from hfta_nb.ui.session import Session
from hfta_nb.ui.status import status
from hfta_nb.ui.train_view import TrainView
from hfta_nb.ui.watch import Watch

REPLAN_S = 0.25
"""How long nothing must be typed before the plan is made again."""

AFTER_START = ("Watch", "Results")
"""Sections that a run fills."""


class Workbench(ipywidgets.VBox):  # type: ignore[misc]
    """Define a sweep, see its plan, train it in a process of its own, watch it, take the winner home.

    Everything that a button does is a method as well. Callbacks of a run come on a thread that reads its events.

    Args:
        family: name of the family, or the family.
        data: a name, own data (`hfta_nb.Data`), or tensors ``(x, y)``; the family's default without.
        grid: axis names to values; all of it can be changed on the screen.
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
        grid: Mapping[str, Any] | None = None,
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
        self._fallback = static.Fallback()
        self._session = Session(executor, self._later, self)
        self._waiting = False
        self._groups: tuple[ev.GroupRecord, ...] = ()
        self.taken: Any = None
        self.define = Define(
            self._replan,
            family,
            data,
            grid,
            epochs=epochs,
            batch_size=batch_size,
            patience=patience,
            seed=seed,
            dtype=dtype,
            precision=precision,
            device=device,
            options=options,
        )
        self.bar = Bar()
        self.plan_view = PlanView()
        self._planner = Planner(self.define, self.plan_view)
        self.train_view = TrainView(self._pressed)
        self.watch = Watch()
        self.results = Results(self._pressed, self._asked)
        self.live, self.leaderboard = self.watch.live, self.results.leaderboard
        views = {
            "Define": self.define,
            "Plan": self.plan_view,
            "Train": self.train_view,
            "Watch": self.watch,
            "Results": self.results,
        }
        # There is nothing to watch yet: the first run unfolds these.
        self.sections = {title: Section(title, [view], title not in AFTER_START) for title, view in views.items()}
        # In the front end: rows and curves follow each other while the kernel is busy with a cell.
        self._selection = ipywidgets.jslink((self.live, "selected"), (self.leaderboard, "selected"))
        self.live.observe(lambda _: self.refresh(), "color_by")
        super().__init__([self.bar, *self.sections.values()])
        self.add_class("hfta-workbench")
        self._plan()

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
        self._fallback.place(self.history if self._session.phase in ENDED else None)

    def show(self) -> None:
        """Display the Workbench in the output of this cell."""
        self._ipython_display_()

    # What a person may do.

    def run(self, wait: bool = True) -> None:
        """Train what is defined.

        Args:
            wait: whether to wait for the end, and then show picture and table as output of this cell. An interrupt
                ends the waiting; the run goes on.

        Raises:
            StudyError: nothing that could be trained is defined, or a run is on.
            HftaError: the run failed.
        """
        self._replan.now()
        reason = why_not("train", self._session.phase, self._planner.problem)
        if reason:
            raise StudyError(f"can't train now: {reason}", where="Workbench")
        self._waiting = wait
        try:
            study = self._planner.fresh()
            self._clear()
            self._session.start(study)
            if wait:
                self.handle.wait()  # in the end everybody who listens has seen the last event
        finally:
            self._waiting = False
        if wait:
            self.refresh()
            static.show(self.history)
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
        if self._session.phase in ENDED:
            self._clear()
        self._session.ask("resume")

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
        handle = self._session.check(chosen, self._checked)
        if not handle.ended:
            self.results.say(f"training {', '.join(f'#{i}' for i in chosen)} alone, to compare ...")
        return handle

    def take(self, member: int) -> Any:
        """Take a member home: its best weights in a plain module, also kept as `taken`; the code for it is shown."""
        result = self.study.member(member)
        self.taken = result.module()
        name = name_of(self, "workbench")
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
    def reattach(cls, path: str | Path, *, family: Any = None, executor: str = "worker") -> Workbench:
        """A Workbench with the run that was saved in a directory: what is known of it is shown, and it can be resumed.

        Args:
            path: the directory of the run.
            family: the family, where it was defined by the user and is not defined now.
            executor: as for a new one.

        Raises:
            StoreError: there is no run there, or it is damaged.
            StudyError: the run is still on, in another process.
            FamilyError: its family is not known.
        """
        study = as_interrupted(Study.load(path, family=family))
        made = cls(executor=executor, **arguments_of(study))
        made._clear()
        made.live.start(study.history)
        if study.history.run is not None:
            made.run_began(study.history.run)
        made._session.adopt(study)
        return made

    def close(self) -> None:
        """Take it off the screen. A run goes on; stop it first if it should not."""
        # ipywidgets closes one that could not be made as well, and every one again when it is collected.
        for part in ("_session", "define", "live"):
            if part in self.__dict__:
                self.__dict__[part].close()
        super().close()

    # Planning.

    def _plan(self) -> None:
        line = self._planner.plan()
        self.sections["Plan"].summarise(line)
        self.sections["Define"].summarise(self.define.summary(self._planner.variants))
        self.bar.hints = self.define.hints()
        if self._planner.draft is not None and self._session.phase in AT_REST:
            self.bar.device = device_text(self._planner.draft.device)
        self.phase_changed()

    # What a session shows on (`hfta_nb.ui.session.Screen`).

    def attach(self, handle: Any) -> None:
        self.live.attach(handle)

    def run_began(self, event: ev.RunStarted) -> None:
        self.bar.device = f"{event.device} {event.device_name}".strip()
        self.bar.directory = event.directory

    def starting(self, what: str) -> None:
        self.say(f"starting: {what}", "busy")

    def failed(self, reason: str, detail: str) -> None:
        self.train_view.fail(reason or "no reason was given", detail, self._session.has_checkpoint)

    def ended(self) -> None:
        if not self._waiting:
            self._later.soon(self._keep)

    def phase_changed(self) -> None:
        phase, session = self._session.phase, self._session
        self.train_view.enable(phase, self._planner.problem, session.has_checkpoint)
        self.results.enable(session.history.run is not None, phase in AT_REST, self._planner.draft is not None)
        self.say(*status(phase, session.history, self._planner.variants, self._planner.problem))

    def refresh(self) -> None:
        with self._session.reading():
            history = self._session.history
            table = table_of(history, self.live.color_by)
            lines = {"Watch": watch.summary(history), "Results": results.summary(history)}
            lines["Train"] = self.train_view.show(history, self._session.phase)
            groups = history.groups
        if table != self.leaderboard.table:
            self.leaderboard.table = table
        for title, line in lines.items():
            self.sections[title].summarise(line)
        if groups != self._groups and groups and self._session.phase not in AT_REST:
            # Measured by now, and cut where that was too much; until a field is edited.
            self._groups = groups
            self.sections["Plan"].summarise(self.plan_view.show(self.study, groups))

    # The screen.

    def _clear(self) -> None:
        """Make room for a run."""
        self._groups = ()
        for title, section in self.sections.items():
            # So that a screen holds what matters while a run is on: the plan says the most of it in one line.
            section.head.unfolded = True if title in AFTER_START else section.head.unfolded and title != "Plan"
        self.train_view.ask("")
        self.train_view.fail("", "")
        self.results.say("")

    def _keep(self) -> None:
        """Put the run into the saved outputs; on the kernel's own thread."""
        if self.history.run is not None:
            self._fallback.update(self.history)

    def _checked(self, found: list[ev.MemberChecked] | str) -> None:
        if isinstance(found, str):
            self.results.say(f"The check failed. {found}", bad=True)
        else:
            self.results.show_check(found)

    def _pressed(self, name: str) -> None:
        pressing.press(self, name)

    def ask_again(self) -> None:
        """Ask whether a new run is meant, as there is one already.

        Raises:
            StudyError: nothing that could be trained is defined.
        """
        self._replan.now()
        if self._planner.problem:
            raise StudyError(f"can't train now: {self._planner.problem}")
        self.train_view.ask(
            f"There is a {self._session.phase} run already; it stays in {self.study.directory}. Start a new one?"
        )

    def _asked(self, what: str, member: int) -> None:
        pressing.press_row(self, what, member)

    def say(self, text: str, level: str) -> None:
        """A line at the head; `level` as in `Bar`."""
        self.bar.status, self.bar.level = text, level
