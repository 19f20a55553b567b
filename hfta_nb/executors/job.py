"""What there is to do: a study's method, as it travels to where it runs."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hfta_nb import events as ev
from hfta_nb.events import Control, Event


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes:
        study: it has ``run(control, resume)`` and ``check_events(**arguments)``, iterators of events.
        kind: "run" or "check".
        path: the kernel's module search path, so that the worker imports what the kernel would.
    """

    study: Any
    kind: str = "run"
    resume: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    path: tuple[str, ...] = ()

    def events(self, control: Control) -> Iterator[Event]:
        if self.kind == "check":
            return iter(self.study.check_events(**self.arguments))
        return iter(self.study.run(control, resume=self.resume))


def perform(job: Job, control: Control, deliver: Callable[[Event], None]) -> str:
    """Run a job to its end.

    Returns:
        The error in one line, or nothing. A failure has also been delivered as an event.
    """
    try:
        for event in job.events(control):
            deliver(event)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        deliver(ev.RunChanged(time.time(), ev.FAILED, reason, traceback.format_exc()))
        return reason
    return ""
