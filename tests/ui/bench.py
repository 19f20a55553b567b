"""A Workbench without a front end, whose runs are scripted by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from run_events import epoch_done, learning, run_started

from hfta_nb import events as ev
from hfta_nb.errors import WorkerError
from hfta_nb.records.history import History
from hfta_nb.study.executors import RunHandle
from hfta_nb.ui import Workbench

GRID = {"lr": [1e-3, 1e-2], "width": [8]}


class Runs:
    """Stands in for `hfta_nb.study.executors.start`: keeps what was started, and what was asked of it."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []
        self.handles: list[RunHandle] = []
        self.requests: list[ev.Request] = []
        self.error: WorkerError | None = None

    def start(self, study: Any, **arguments: Any) -> RunHandle:
        if self.error is not None:
            raise self.error
        history = History()
        if arguments.get("resume") or arguments.get("job") == "check":
            for event, _ in study.store.events():
                history.add(event)
        self.started.append({"study": study, **arguments})
        self.handles.append(RunHandle(self.requests.append, history))
        return self.handles[-1]

    @property
    def handle(self) -> RunHandle:
        return self.handles[-1]

    def happens(self, *events: ev.Event) -> None:
        """The run tells these."""
        for event in events:
            self.handle.deliver(event)

    def begins(self, bench: Workbench, **changes: Any) -> None:
        """The run tells what it is, and that it trains."""
        study = bench.study
        axes = dict(study.grid.axes)
        fields = {"directory": str(study.directory), "metrics": study.metrics, "monitor": study.monitor}
        fields |= {"direction": "maximize" if study.maximize else "minimize", "epochs": study.epochs}
        ids = range(len(study.variants))
        self.happens(
            run_started(axes, **(fields | changes)),
            ev.PlanMade(1.0, study.groups()),
            ev.PhaseChanged(1.0, 0, "building", "2 members"),
            *(ev.MemberChanged(1.0, i, ev.RUNNING) for i in ids),
            ev.PhaseChanged(2.0, 0, "training"),
        )

    def ends(self, state: str = ev.COMPLETE, reason: str = "", detail: str = "") -> None:
        """The run tells that it is over."""
        self.handle.finish(event=ev.RunChanged(100.0, state, reason, detail))


class Clock:
    """`time.monotonic` of the follower, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(bench: Workbench) -> dict[str, bool]:
    """Which buttons can be pressed."""
    buttons = {**bench.train_view.buttons, **bench.results.buttons}
    return {name: not button.disabled for name, button in buttons.items()}


def can_be_pressed(bench: Workbench) -> set[str]:
    """Names of the buttons of Train that can be pressed."""
    return {name for name, yes in shown(bench).items() if yes and name in bench.train_view.buttons}


def press(bench: Workbench, name: str) -> None:
    """Press a button, as a person can: not where it is greyed out."""
    button = {**bench.train_view.buttons, **bench.results.buttons}[name]
    assert not button.disabled, button.tooltip
    button.click()


def texts(widget: Any) -> Iterator[tuple[str, str]]:
    """Every text that a browser takes as markup, within a widget: class name of the widget, text."""
    if hasattr(widget, "value") and type(widget).__name__ == "HTML":
        yield type(widget).__name__, widget.value
    for child in getattr(widget, "children", ()):
        yield from texts(child)


def steps(epoch: float, members: int = 2, group: int = 0) -> ev.StepsDone:
    """Progress of a run."""
    ids = tuple(range(members))
    return ev.StepsDone(2.0, group, int(23 * epoch), 92, epoch, 36_123.0, 41.2, 22.0, ids, (0.5,) * members)


def improved(*values: float, epoch: int = 1) -> list[ev.Event]:
    """An epoch after which the members are so good."""
    return [
        epoch_done(epoch, len(values), learning, 3.0),
        *(ev.MemberImproved(3.0, i, epoch, "val_accuracy", v) for i, v in enumerate(values)),
    ]


Make = Callable[..., Workbench]
