"""A scripted run: events as a study yields them, for tests of displays."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hfta_nb import events as ev
from hfta_nb.records.events import Control, Event, GroupRecord, Json, VariantRecord
from hfta_nb.records.history import History
from hfta_nb.search.grid import Variant

EPOCHS = 4


def started(axes: dict[str, tuple[Json, ...]] | None = None, *, count: int = 3, **changes: Any) -> ev.RunStarted:
    """The first event: variants numbered from 0, each with one value of each axis in turn."""
    axes = {"lr": (0.001, 0.01, 0.1)} if axes is None else axes
    configs = [{name: values[i % len(values)] for name, values in axes.items()} for i in range(count)]
    fields: dict[str, Any] = {
        "time_s": 0.0,
        "run_id": "run",
        "family": "cnn",
        "data": "digits",
        "device": "cpu",
        "device_name": "Some CPU",
        "dtype": "float32",
        "epochs": EPOCHS,
        "threads": 1,
        "directory": "run",
        "axes": axes,
        "variants": tuple(VariantRecord(i, config, 0) for i, config in enumerate(configs)),
        "metrics": ("train_loss", "val_loss", "val_accuracy"),
        "monitor": "val_accuracy",
        "direction": "maximize",
    }
    return ev.RunStarted(**(fields | changes))


def planned(*groups: Sequence[int], reason: str = "width differs") -> ev.PlanMade:
    """The plan: variants per group."""
    records = (GroupRecord(i, tuple(g), reason if i else "", 1442, 33_900) for i, g in enumerate(groups))
    return ev.PlanMade(0.0, tuple(records))


def steps(group: int, epochs_done: float, elapsed_s: float, variants: Sequence[int]) -> ev.StepsDone:
    losses = (0.5,) * len(variants)
    done = round(epochs_done * 10)
    return ev.StepsDone(0.0, group, done, EPOCHS * 10, epochs_done, 1234.5, elapsed_s, 9.0, tuple(variants), losses)


def epoch(group: int, number: int, values: dict[int, float]) -> Iterator[Event]:
    """The end of an epoch, with the validation accuracy of each member; each improves."""
    accuracies = tuple(values.values())
    metrics = {"train_loss": accuracies, "val_loss": accuracies, "val_accuracy": accuracies}
    yield ev.EpochDone(0.0, group, number, number * 10, tuple(values), metrics)
    for variant, value in values.items():
        yield ev.MemberImproved(0.0, variant, number, "val_accuracy", value)


def whole_run() -> list[Event]:
    """Two groups, of which the second has a member that diverges."""
    running = [ev.MemberChanged(0.0, i, ev.RUNNING) for i in (0, 1)]
    found: list[Event] = [started(), planned((0, 1), (2,)), ev.PhaseChanged(0.0, 0, "tuning", "blocks"), *running]
    found += [
        ev.SpeedMeasured(0.0, 0, 2, 20, 0.01, 0.031, 3.1, "all members at once"),
        ev.PhaseChanged(0.0, 0, "training"),
    ]
    found += [
        steps(0, 2.0, 1.0, (0, 1)),
        ev.DeviceSampled(0.0, "cpu", {"core0": 0.5, "core1": 0.25, "memory_bytes": 2**31}),
    ]
    found += [*epoch(0, 4, {0: 0.75, 1: 0.875}), steps(0, 4.0, 2.0, (0, 1))]
    found += [ev.MemberChanged(0.0, i, ev.COMPLETE) for i in (0, 1)]
    found += [ev.PhaseChanged(0.0, 1, "training"), ev.MemberChanged(0.0, 2, ev.DIVERGED, "loss is nan in epoch 1")]
    return [*found, ev.RunChanged(0.0, ev.COMPLETE)]


class FakeStudy:
    """What the command needs of a study, yielding given events.

    Args:
        events: to be yielded; an exception among them is raised in its place.
        directory: where the run is said to lie.
        checks: what `check_events` yields.
    """

    def __init__(
        self, events: Iterable[Event | Exception], directory: Path = Path("run"), checks: Iterable[Event] = ()
    ) -> None:
        self._events, self._checks = list(events), list(checks)
        self.directory = directory
        self.history = History()
        self.control: Control | None = None
        first = next((e for e in self._events if isinstance(e, ev.RunStarted)), None)
        self.variants = [Variant(v.id, v.config) for v in first.variants] if first else []

    def run(self, control: Control | None = None, resume: bool = False) -> Iterator[Event]:
        self.control = control
        self.history = History()  # as a study does: who shows the run must not keep the one before
        for event in self._events:
            if isinstance(event, Exception):
                raise event
            self.history.add(event)
            yield event

    def check_events(self, members: Sequence[int] | None = None, epochs: int | None = None) -> Iterator[Event]:
        yield from self._checks


def console(*, terminal: bool = False, width: int = 100) -> tuple[Console, io.StringIO]:
    """A console that writes to memory, as on a terminal or as into a file."""
    file = io.StringIO()
    made = Console(
        file=file,
        force_terminal=terminal,
        width=width,
        height=40,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None,
        legacy_windows=False,
        _environ={},
    )
    return made, file


def folded(events: Iterable[Event]) -> History:
    """A history of events."""
    history = History()
    for event in events:
        history.add(event)
    return history
