"""A study run to its end, with a progress bar."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

from hfta_nb.errors import StudyError
from hfta_nb.errors.plain_text import visible
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.records.history import History
from hfta_nb.records.pace import Pace
from hfta_nb.search.grid import show
from hfta_nb.study.study_state import StudyState

Listener = Callable[[Event], Any]
Listeners = str | Listener | Iterable[str | Listener]
"""One or several, a tracker also by its name."""

DRAW_INTERVAL_S = 0.2
"""The bar is drawn at most this often: an epoch may take a millisecond, and a notebook's page more to show it."""


def fit(
    study: StudyState,
    run: Callable[[], Any],
    on_event: Listeners,
    on_trial: Any,
    progress: bool,
) -> None:
    """See `Study.fit`."""
    listeners = listeners_of(on_event)
    study.run_state.on_trial = listeners_of(on_trial, "on_trial", "an Optuna study and a trial")
    events = run()
    seen = None
    with bar(study) if progress else contextlib.nullcontext(_nothing) as show_event:
        try:
            for event in events:
                seen = study.run_state.read
                show_event(event)
                for listener in listeners:
                    listener(event)
        except BaseException:
            events.close()
            # The end of the run is on disk; report it to the callbacks as well.
            for event, _ in [] if seen is None else study.store.events(seen):
                for listener in listeners:
                    with contextlib.suppress(Exception):  # perhaps the very one that has raised
                        listener(event)
            raise


def listeners_of(given: Any, where: str = "on_event", of: str = "an event") -> list[Callable[..., Any]]:
    """The callbacks that were given, one or several.

    Args:
        given: the callbacks.
        where: the argument's name.
        of: what they are called with.

    Raises:
        StudyError: the argument is not a callback or a list of callbacks.
    """
    several = isinstance(given, Iterable) and not isinstance(given, str)
    found = list(given) if several and not callable(given) else [given]
    if where == "on_event":
        from hfta_nb.study.callbacks.tracker import named

        found = [named(one) if isinstance(one, str) else one for one in found]
    for one in found:
        if not callable(one) or isinstance(one, type):
            accepted = f"a function of {of}, or a list of such; callbacks are instances: TensorBoard(), not TensorBoard"
            raise StudyError(f"can't be called with {of}", where=where, got=one, accepted=accepted)
    return found


@contextlib.contextmanager
def bar(study: StudyState) -> Iterator[Listener]:
    """A progress bar: of a terminal, or of a notebook where this is one."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    words = TextColumn("{task.description}", markup=False)
    columns = (words, BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}"))
    # Drawn as events come: no thread of its own.
    with Progress(*columns, auto_refresh=False) as shown:
        task = shown.add_task(visible(study.name), total=1.0, left="")

        pace = Pace(DRAW_INTERVAL_S)

        def add(event: Event) -> None:
            if pace.due or isinstance(event, ev.RunChanged):
                with pace.drawing():
                    history = study.history
                    shown.update(task, completed=share(history), description=words_of(history), left=left_of(history))
                    shown.refresh()

        yield add


def share(history: History) -> float:
    """The share of all members' epochs that is done; epochs that members skip by ending early count as done."""
    if history.run is None:
        return 0.0
    done = total = 0.0
    for member in history.members.values():
        reached = max([float(member.epoch), *member.step_loss.epochs[-1:]])
        done += reached
        total += reached if member.state in ev.FINAL_STATES else max(reached, history.run.epochs)
    return done / total if total else 1.0


def left_of(history: History) -> str:
    """``0:00:22 left``; ``estimating`` where that is not known yet; nothing where nothing trains."""
    if history.state != ev.RUNNING or history.progress is None:
        return ""
    remaining_s = history.progress.remaining_s
    return f"{timedelta(seconds=round(remaining_s))} left" if math.isfinite(remaining_s) else "estimating"


def words_of(history: History) -> str:
    """``8 members, epoch 7 of 20, best val_accuracy 0.98 (#3)``."""
    if history.run is None:
        return ""
    training = history.count(ev.RUNNING)
    now = (
        history.state.lower() if history.state in ev.FINAL_STATES else f"{training} of {len(history.members)} training"
    )
    parts = [now]
    if training and history.progress is not None:
        epoch = min(history.run.epochs, math.floor(history.progress.epochs_done) + 1)
        parts.append(f"epoch {epoch} of {history.run.epochs}")
    best = history.leader
    if best is not None and best.best_epoch:
        parts.append(f"best {history.run.monitor} {show(best.best_value)} (#{best.id})")
    return ", ".join(parts)


def _nothing(event: Event) -> None:
    """No bar."""
