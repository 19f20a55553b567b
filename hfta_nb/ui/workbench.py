"""The Workbench: Define, Plan, Train, Watch and Results as one widget."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any

import ipywidgets

from hfta_nb import events as ev
from hfta_nb import executors
from hfta_nb.errors import HftaError, StudyError
from hfta_nb.history import History
from hfta_nb.study import Study
from hfta_nb.ui import results, static, watch
from hfta_nb.ui.define import Define
from hfta_nb.ui.follower import Follower
from hfta_nb.ui.leaderboard import table_of
from hfta_nb.ui.loop import Debounced, Later
from hfta_nb.ui.machine import AT_REST, ENDED, Phase, after, signal_of, why_not
from hfta_nb.ui.parts import Bar, Section
from hfta_nb.ui.plan_view import PlanView, device_text
from hfta_nb.ui.results import Results
from hfta_nb.ui.saved import arguments_of, as_interrupted
from hfta_nb.ui.text import count, words
from hfta_nb.ui.train_view import TrainView
from hfta_nb.ui.watch import Watch

REPLAN_S = 0.25
"""How long nothing must be typed before the plan is made again."""

AFTER_START = ("Watch", "Results")
"""Sections that a run fills."""

_LEVELS = {Phase.FINISHED: "good", Phase.FAILED: "bad", Phase.IDLE: "idle", Phase.STOPPED: "idle"}


class Workbench(ipywidgets.VBox):  # type: ignore[misc]
    """Define a sweep, see its plan, train it in a process of its own, watch it, take the winner home.

    Everything that a button does is a method as well. Callbacks of a run come on a thread that reads its events.

    Args:
        family: name of the family, or the family.
        data: a name, own data (`hfta_nb.Data`), or tensors ``(x, y)``; the family's default without.
        grid: axis names to values; all of it can be changed on the screen.
        epochs, batch_size, patience, seed, dtype, device: as in `hfta_nb.Study`.
        executor: where it trains: "worker" (a process of its own) or "inline" (a thread, for tests).
        options: further arguments of `hfta_nb.Study`, such as ``optimizer="sgd"`` or ``directory="runs/first"``.

    Attributes:
        define, plan_view, train_view, live, leaderboard: the parts on the screen.
        handle: of the run, a `hfta_nb.executors.RunHandle`; None before the first.
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
        device: str | None = None,
        executor: str = "worker",
        **options: Any,
    ) -> None:
        self._lock = RLock()
        self._later = Later()
        self._replan = Debounced(self._later, REPLAN_S, self._plan)
        self._fallback = static.Fallback()
        self._follower: Follower | None = None
        self._checker: Callable[[], None] = lambda: None
        self._executor = executor
        self._phase = Phase.IDLE
        self._problem = ""
        self._draft: Study | None = None
        self._study: Study | None = None
        self._history = History()
        self._waiting = False
        self.handle: Any = None
        self.taken: Any = None
        self.define = Define(
            self._edited,
            family,
            data,
            grid,
            epochs=epochs,
            batch_size=batch_size,
            patience=patience,
            seed=seed,
            dtype=dtype,
            device=device,
            options=options,
        )
        self.bar = Bar()
        self.plan_view = PlanView()
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
        self.live.observe(lambda _: self._refresh(), "color_by")
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
        found = self._study or self._draft
        if found is None:
            raise StudyError("nothing is planned", where="Workbench", remedy=self._problem)
        return found

    @property
    def state(self) -> str:
        """Where the run is: "idle", "starting", "running", "paused", "finished", ..."""
        return str(self._phase)

    @property
    def history(self) -> History:
        """What is known of the run."""
        return self._history

    def __repr__(self) -> str:
        variants = None if self._draft is None else len(self._draft.variants)
        return f"Workbench({self.define.summary(variants)})"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self._executor == "worker":
            executors.prewarm()
        display(self._repr_mimebundle_(), raw=True)
        self._fallback.place(self._history if self._phase in ENDED else None)

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
        reason = why_not("train", self._phase, self._problem)
        if reason:
            raise StudyError(f"can't train now: {reason}", where="Workbench")
        self._waiting = wait
        try:
            self._start(self._fresh(), resume=False)
            while wait and not self.handle.ended:
                self.handle.wait(0.2)
        finally:
            self._waiting = False
        if wait:
            self._refresh()
            static.show(self._history)
            if self.handle.error is not None:
                raise self.handle.error

    def train(self) -> None:
        """Start training, as the button does; a finished run is kept where it lies."""
        self.run(wait=False)

    def pause(self) -> None:
        """Halt the run between two steps."""
        self._ask_run("pause", lambda control: control.pause())

    def resume(self) -> None:
        """Go on after a pause; or carry a stopped or failed run on from its last checkpoint."""
        if self._phase in ENDED:
            reason = why_not("resume", self._phase, checkpoint=self._has_checkpoint)
            if reason or self._study is None:
                raise StudyError(reason or "there is no run", where="resume")
            self._start(self._study, resume=True)
        else:
            self._ask_run("resume", lambda control: control.resume())

    def stop(self, member: int | None = None) -> None:
        """Stop the run, or one member of it."""
        if member is None:
            self._ask_run("stop", lambda control: control.stop())
        elif self.handle is not None:
            self.handle.control.stop(member)
            self._say(f"stopping #{member}", "busy")

    def check(self, members: Sequence[int] | None = None) -> Any:
        """Train members alone again and compare; the outcome comes to the leaderboard.

        Args:
            members: their ids; without, those that are selected, or else the best one.

        Returns:
            The handle of the check.

        Raises:
            StudyError: there is no run, or it is still on.
        """
        if self._study is None or self._phase not in ENDED:
            raise StudyError("there is no run that has ended", where="check against serial")
        chosen = list(members or self.leaderboard.selected or [self._study.best().variant.id])
        handle = executors.start(self._study, kind=self._executor, job="check", arguments={"members": chosen})  # type: ignore[arg-type]
        self.results.say(f"training {', '.join(f'#{i}' for i in chosen)} alone to compare ...")
        done: dict[int, ev.MemberChecked] = {}
        self._checker = handle.subscribe(lambda event: self._checked(event, chosen, done))
        with handle.lock:
            early = [m.check for m in handle.history.members.values() if m.check and m.check.variant in chosen]
        for event in early:
            self._checked(event, chosen, done)
        return handle

    def take(self, member: int) -> Any:
        """Take a member home: its best weights in a plain module, also kept as `taken`; the code for it is shown."""
        result = self.study.member(member)
        self.taken = result.module()
        name = _name_of(self) or "workbench"
        here = f"# in this notebook\nmodel = {name}.study.member({member}).module()\n"
        self.results.code_box.title = f"take #{member} home"
        self.results.code_box.code = f"{here}\n# in another one\n{result.to_code()}"
        self.results.say(f"#{member} is in {name}.taken")
        return self.taken

    def export_csv(self) -> Path:
        """Write the leaderboard to ``leaderboard.csv`` in the run's directory; returns the path."""
        path = self.study.directory / "leaderboard.csv"
        self.study.results().to_csv(path)
        self.results.offer(path)
        return path

    def export_png(self) -> Path:
        """Write curves and utilization, as the live view has them, to ``curves.png``; returns the path."""
        path = self.study.directory / "curves.png"
        metric = f"val_{self.live.metric}"
        options = {"metric": metric if metric in self._history.metrics else None, "log_y": self.live.log_y}
        with self._reading():
            data = static.picture(self._history, color_by=self.live.color_by or None, **options)
        path.write_bytes(data)
        self.results.offer(path)
        return path

    def code(self) -> str:
        """The source of a cell that reproduces the sweep, also shown."""
        source = self.study.to_code()
        self.results.code_box.title = "a cell that reproduces this sweep"
        self.results.code_box.code = source
        return source

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
        made._adopt(study)
        return made

    def close(self) -> None:
        """Take it off the screen. A run goes on; stop it first if it should not."""
        if self._follower is not None:
            self._follower.close()
        self._checker()
        for part in (self.define, self.live):
            part.close()
        super().close()

    # Planning.

    def _edited(self) -> None:
        self._replan()

    def _plan(self) -> None:
        definition = self.define.definition()
        problem, draft = "", None
        if definition.problems:
            name, said = next(iter(definition.problems.items()))
            problem = f"{name}: {said}"
        else:
            try:
                draft = Study(definition.family, definition.grid, definition.data, **definition.options)
                self.define.complain(None)
            except HftaError as error:
                self.define.complain(error)
                problem = words(error)
        with self._lock:
            self._problem, self._draft = problem, draft
        if draft is None:
            beside = next((row.name for row in self.define.rows if row.error), "")
            self.plan_view.show_problem(f"No plan yet: see {beside} above." if beside else f"No plan yet. {problem}")
            self.sections["Plan"].summarise(problem)
        else:
            self.sections["Plan"].summarise(self.plan_view.show(draft))
            if self._phase in AT_REST:
                self.bar.device = device_text(draft.device)
        self.sections["Define"].summarise(self.define.summary(len(draft.variants) if draft else None))
        self._show_phase()

    def _fresh(self) -> Study:
        """A study with a directory of its own, made of what is defined."""
        definition = self.define.definition()
        options = dict(definition.options)
        wanted = options.get("directory")
        for number in range(2, 10_000):
            study = Study(definition.family, definition.grid, definition.data, **options)
            if wanted is None or not study.store.exists:
                return study
            options["directory"] = f"{wanted}-{number}"
        raise StudyError("too many runs beside this one", where=str(wanted), remedy="choose another directory")

    # Running.

    def _start(self, study: Study, resume: bool) -> None:
        with self._lock:
            before = self._phase
            self._phase = after(before, "continue" if resume else "train")
            self._study = study
        if self._follower is not None:
            self._follower.close()
        for title, section in self.sections.items():
            # So that a screen holds what matters while a run is on: the plan says the most of it in one line.
            section.head.unfolded = True if title in AFTER_START else section.head.unfolded and title != "Plan"
        self.train_view.ask("")
        self.train_view.fail("", "")
        self.results.say("")
        self._show_phase()
        try:
            self.handle = executors.start(study, kind=self._executor, resume=resume)  # type: ignore[arg-type]
        except HftaError as error:
            self._failed(words(error), "")
            raise
        self._follow(self.handle)

    def _follow(self, handle: Any) -> None:
        self._history = handle.history
        self._follower = Follower(handle, self._heard, self._refresh, self._later)
        self.live.attach(handle)
        # What came before the subscription is in the history alone.
        with handle.lock:
            state, training = handle.history.state, handle.history.phase == "training"
        if state in ev.FINAL_STATES and handle.ended:
            self._heard(ev.RunChanged(time.time(), state, self._history.reason, self._history.detail))
        elif training:
            self._signal("began")
        self._refresh()

    def _heard(self, event: ev.Event) -> None:
        if isinstance(event, ev.RunStarted):
            if event.resumed:
                # When it was attached, the history still said how the run had ended before.
                self.live.attach(self.handle)
            self.bar.device = f"{event.device} {event.device_name}".strip()
            self.bar.directory = event.directory
        if isinstance(event, ev.PhaseChanged) and self._phase is Phase.STARTING:
            self._say(f"starting: {self._history.phase or event.phase}", "busy")
        signal = signal_of(event)
        if signal == "failed" and isinstance(event, ev.RunChanged):
            self._failed(event.reason, event.detail)
        elif signal:
            self._signal(signal)

    def _signal(self, signal: str) -> None:
        with self._lock:
            before, self._phase = self._phase, after(self._phase, signal)
            changed = before is not self._phase
        if changed:
            self._show_phase()
            if self._phase in ENDED:
                self._ended()

    def _failed(self, reason: str, detail: str) -> None:
        resumable = self._has_checkpoint
        remedy = "Resume carries on from the last checkpoint; Retry starts anew." if resumable else "Retry starts anew."
        self.train_view.fail(reason or "no reason was given", detail, remedy)
        self._signal("failed")

    def _ended(self) -> None:
        if not self._waiting:
            self._later.soon(self._keep)

    def _keep(self) -> None:
        """Put the run into the saved outputs; on the kernel's own thread."""
        with self._reading():
            if self._history.run is not None:
                self._fallback.update(self._history)

    def _ask_run(self, name: str, post: Callable[[Any], None]) -> None:
        reason = why_not(name, self._phase)
        if reason or self.handle is None:
            raise StudyError(reason or "there is no run", where=name)
        self._signal(name)
        post(self.handle.control)

    def _checked(self, event: ev.Event, chosen: Sequence[int], done: dict[int, ev.MemberChecked]) -> None:
        if isinstance(event, ev.RunChanged) and event.state == ev.FAILED:
            self.results.say(f"The check failed. {event.reason}", bad=True)
        if isinstance(event, ev.MemberChecked):
            done[event.variant] = event
            with self._reading():
                self._history.add(event)
            self._refresh()
            if len(done) == len(chosen):
                self._checker()
                self.results.show_check([done[i] for i in chosen])

    def _adopt(self, study: Study) -> None:
        """Show a run that was read from disk."""
        self._study, self._history = study, study.history
        run = study.history.run
        self._phase = {ev.COMPLETE: Phase.FINISHED, ev.STOPPED: Phase.STOPPED}.get(study.history.state, Phase.FAILED)
        self.live.start(study.history)
        for title in AFTER_START:
            self.sections[title].head.unfolded = True
        self.bar.directory = str(study.directory)
        if run is not None:
            self.bar.device = f"{run.device} {run.device_name}".strip()
        if self._phase is Phase.FAILED:
            self._failed(study.history.reason, study.history.detail)
        self._show_phase()
        self._refresh()

    # The screen.

    @property
    def _has_checkpoint(self) -> bool:
        return self._study is not None and self._study.store.has_checkpoint

    def _reading(self) -> Any:
        return self.handle.lock if self.handle is not None else self._lock

    def _pressed(self, name: str) -> None:
        """A button: what goes wrong is said on the screen, for nobody reads a kernel's log."""
        try:
            if name == "train" and self._phase in ENDED and self._study is not None and not self.train_view.asking:
                self._question()
            elif name in ("train", "confirm", "retry"):
                self.train()
            else:
                self._actions()[name]()
        except HftaError as error:
            self._say(words(error), "bad")
            if name in ("csv", "png", "code", "check"):
                self.results.say(words(error), bad=True)

    def _actions(self) -> dict[str, Callable[[], Any]]:
        return {
            "pause": self.pause,
            "resume": self.resume,
            "stop": self.stop,
            "csv": self.export_csv,
            "png": self.export_png,
            "code": self.code,
            "check": self.check,
        }

    def _question(self) -> None:
        self._replan.now()
        if self._problem:
            raise StudyError(f"can't train now: {self._problem}")
        self.train_view.ask(
            f"There is a {self._phase} run already; it stays in {self.study.directory}. Start a new one?"
        )

    def _asked(self, what: str, member: int) -> None:
        try:
            if what == "stop":
                self.stop(member)
            else:
                self.take(member)
        except HftaError as error:
            self.results.say(words(error), bad=True)

    def _say(self, text: str, level: str) -> None:
        self.bar.status, self.bar.level = text, level

    def _show_phase(self) -> None:
        """What depends on the phase alone: buttons, and the line that is announced."""
        phase, planned = self._phase, self._draft is not None
        self.train_view.enable(phase, self._problem, self._has_checkpoint)
        self.results.enable(self._history.run is not None, phase in AT_REST, planned)
        self._say(*self._status(phase))

    def _status(self, phase: Phase) -> tuple[str, str]:
        if phase is Phase.IDLE:
            if self._draft is None:
                return f"not ready: {self._problem}", "bad"
            return f"ready to train {count(len(self._draft.variants), 'variant')}", "idle"
        members = count(len(self._study.variants), "variant") if self._study else ""
        texts = {
            Phase.STARTING: "starting: a process of its own",
            Phase.RUNNING: f"training {members}",
            Phase.PAUSED: "paused; everything is kept",
            Phase.FINISHED: f"finished; {results.summary(self._history)}",
            Phase.STOPPED: f"stopped; {results.summary(self._history)}",
            Phase.FAILED: f"failed: {self._history.reason}" if self._history.reason else "failed",
        }
        return texts.get(phase, f"{phase} ..."), _LEVELS.get(phase, "busy")

    def _refresh(self) -> None:
        """What moves while a run is on. On whichever thread: it sets traits only."""
        with self._reading():
            history = self._history
            table = table_of(history, self.live.color_by)
            lines = {"Watch": watch.summary(history), "Results": results.summary(history)}
            lines["Train"] = self.train_view.show(history, self._phase)
        if table != self.leaderboard.table:
            self.leaderboard.table = table
        for title, line in lines.items():
            self.sections[title].summarise(line)


def _name_of(workbench: Workbench) -> str:
    """The variable that holds it in the notebook, for the code that is shown."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    names = shell.user_ns.items() if shell is not None else ()
    return next((n for n, v in names if v is workbench and not n.startswith("_")), "")
