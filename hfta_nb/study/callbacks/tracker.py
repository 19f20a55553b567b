"""Base of the trackers: maps the events of a study to one run of the tool per member."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from hfta_nb.errors import StudyError
from hfta_nb.records import entry_points
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event, Json, VariantRecord
from hfta_nb.search.grid import show


class Tracker(ABC):
    """A callback that records each member's curves in a separate run."""

    def __init__(self) -> None:
        self._run: ev.RunStarted | None = None
        self._variants: dict[int, VariantRecord] = {}
        self._open: set[int] = set()

    def __call__(self, event: Event) -> None:
        if isinstance(event, ev.RunStarted):
            self._run, self._variants = event, {v.id: v for v in event.variants}
        elif isinstance(event, ev.MemberChanged) and event.state == ev.RUNNING:
            self._begin(event.variant)
        elif isinstance(event, ev.EpochDone):
            for place, variant in enumerate(event.variants):
                self._begin(variant)
                values = {name: row[place] for name, row in event.metrics.items()}
                self.log(variant, event.epoch, event.time_s, values)
        elif isinstance(event, ev.MemberChanged) and event.state in ev.FINAL_STATES:
            self._end(event.variant, event.state)
        elif isinstance(event, ev.RunChanged) and event.state in ev.FINAL_STATES:
            for variant in sorted(self._open):
                self._end(variant, event.state)

    @abstractmethod
    def begin(self, variant: int, run: str, name: str, parameters: Mapping[str, Json]) -> None:
        """Called when a member begins or resumes.

        Args:
            variant: its number.
            run: name of the study's run.
            name: name of the member, with its configuration.
            parameters: its configuration and seed, and the study's family and data.
        """

    @abstractmethod
    def log(self, variant: int, epoch: int, time_s: float, values: Mapping[str, float]) -> None:
        """Called with the member's metrics after an epoch."""

    @abstractmethod
    def end(self, variant: int, state: str) -> None:
        """Called with the member's final state."""

    def _begin(self, variant: int) -> None:
        if variant in self._open or self._run is None:
            return
        self._open.add(variant)
        record = self._variants[variant]
        config = ", ".join(f"{name}={show(value)}" for name, value in record.config.items())
        study: dict[str, Json] = {"family": self._run.family, "data": self._run.data, "epochs": self._run.epochs}
        parameters = {**study, **record.config, "seed": record.seed}
        self.begin(variant, self._run.run_id, f"{variant} {config}".strip(), parameters)

    def _end(self, variant: int, state: str) -> None:
        if variant in self._open:
            self._open.discard(variant)
            self.end(variant, state)


def imported(module: str, install: str) -> Any:
    """Import the module of a tool.

    Raises:
        StudyError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise StudyError(f"is not installed ({error})", where=module, remedy=f"pip install {install}") from error


BUILT_IN = {
    "tensorboard": "tensorboard:TensorBoard",
    "mlflow": "mlflow:MLflow",
    "wandb": "wandb:WandB",
    "trackio": "trackio:Trackio",
}
"""The trackers by name: module here and class."""


def named(name: str, **given: Any) -> Tracker:
    """The tracker of a name: ``"tensorboard"``, ``"mlflow"``, ``"wandb"``, ``"trackio"``, or one of another package.

    Args:
        name: of the tracker.
        given: arguments of its class.

    Raises:
        StudyError: there is none of this name, or its tool is not installed.
    """
    if name in BUILT_IN:
        module, _, made = BUILT_IN[name].partition(":")
        tracker: Tracker = getattr(importlib.import_module(f"hfta_nb.study.callbacks.{module}"), made)(**given)
        return tracker
    others = entry_points.found(entry_points.TRACKERS)
    found = entry_points.loaded(entry_points.TRACKERS, name) if name in others else None
    if found is None:
        raise StudyError("unknown tracker", where="on_event", got=name, accepted=", ".join([*BUILT_IN, *others]))
    made_by_other: Tracker = found(**given)
    return made_by_other
