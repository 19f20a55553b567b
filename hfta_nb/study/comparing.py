"""Several runs beside each other: which settings differ, the best of each, and all their curves in one history."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import StoreError, StudyError
from hfta_nb.records import events as ev
from hfta_nb.records.events import Json, VariantRecord
from hfta_nb.records.history import Curve, History, Member
from hfta_nb.records.store import Store
from hfta_nb.records.summaries import history_of
from hfta_nb.search.grid import show

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

RUN = "run"
"""The axis of runs that are drawn together."""

DEFAULT = "default"
"""What is shown of a setting that a run leaves to its default."""

_IN_MEMORY = 8  # runs that are kept in memory, since whoever compares two looks at them more than once


@dataclass(frozen=True)
class _Run:
    name: str
    history: History
    asked: Mapping[str, Any]  # empty where it can't be read


def together(runs: Sequence[str | Path]) -> History:
    """The curves of several runs as those of one, which has an axis more: `RUN`. Each begins at time 0.

    Args:
        runs: their directories.

    Raises:
        StudyError: no run is given.
        StoreError: one can't be read, or hasn't begun.
    """
    found = _runs(runs, 1)
    begun = [one.history.run for one in found]
    first, axes, variants = begun[0], dict[str, tuple[Json, ...]](), list[VariantRecord]()
    assert first is not None  # see `_run`
    axes[RUN], merged = tuple(one.name for one in found), History()
    merged.begin_s, merged.state = found[0].history.begin_s, ev.COMPLETE
    for one, run in zip(found, begun, strict=True):
        assert run is not None
        for name, values in run.axes.items():
            axes[name] = tuple(dict.fromkeys((*axes.get(name, ()), *values))) if _plain(values) else tuple(values)
        for member in one.history.members.values():
            if member.state != ev.DELETED:
                late_s = one.history.begin_s - merged.begin_s
                merged.members[len(variants)] = copied = _copy(member, len(variants), one.name, late_s)
                variants.append(VariantRecord(copied.id, copied.config, copied.seed))
    metrics = tuple(dict.fromkeys(name for run in begun if run is not None for name in run.metrics))
    epochs = max(run.epochs for run in begun if run is not None)
    merged.run = replace(first, axes=axes, variants=tuple(variants), metrics=metrics, epochs=epochs)
    return merged


def _plain(values: Sequence[Any]) -> bool:
    return not any(isinstance(value, list | dict) for value in values)


def _copy(member: Member, number: int, run: str, late_s: float) -> Member:
    def shifted(curve: Curve) -> Curve:
        return Curve(curve.epochs, curve.steps, curve.values, [time_s - late_s for time_s in curve.times])

    curves = {name: shifted(curve) for name, curve in member.curves.items()}
    config = {**member.config, RUN: run}
    return replace(member, id=number, config=config, curves=curves, step_loss=shifted(member.step_loss))


def compare(runs: Sequence[str | Path]) -> pandas.DataFrame:
    """Compare runs: the best of each, and the settings in which they differ.

    Args:
        runs: their directories, such as the first of ``list(hfta_nb.runs().directory)``.

    Returns:
        A column per run, by its name. The first rows are of its best member: the monitored metric, the epoch, and the
        values of the axes that vary. The others are the settings that differ: family, data, axes and arguments of
        `Study`; "default" where a run leaves one to its default.

    Raises:
        StudyError: fewer than two runs are given.
        StoreError: one can't be read, or hasn't begun.

    Example:
        >>> import tempfile
        >>> import hfta_nb as hfta
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for lr in (1e-3, 1e-2):
        ...         study = hfta.Study("mlp", {"lr": [lr]}, "iris", epochs=1, directory=f"{folder}/{lr}")
        ...         for _ in study.run():
        ...             pass
        ...     list(hfta.compare([f"{folder}/0.001", f"{folder}/0.01"]).index)
        ['best val_accuracy', 'best epoch', 'best lr', 'axis lr']
    """
    import pandas

    found = _runs(runs, 2)
    columns = {one.name: dict(_rows(one)) for one in found}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    best = [name for name in names if name.startswith("best ")]
    kept = best + [name for name in names if name not in best and _differs(name, list(columns.values()))]
    cells = {
        run: [column.get(name, "-" if name in best else DEFAULT) for name in kept] for run, column in columns.items()
    }
    return pandas.DataFrame(cells, index=pandas.Index(kept, name="setting"), dtype=object)


def overlay(runs: Sequence[str | Path], metric: str | None = None, **options: Any) -> Figure:
    """Draw the curves of several runs in one figure, coloured by run.

    Args:
        runs: their directories.
        metric: the metric to draw; by default the monitored metric of the first run.
        options: further arguments of `hfta_nb.figures.curves`; ``train`` is False by default.

    Raises:
        StudyError: no run is given.
        StoreError: one can't be read, or hasn't begun.
        HftaError: the runs have no such metric.
    """
    from hfta_nb import figures

    history = together(runs)
    assert history.run is not None
    return figures.curves(history, metric or history.run.monitor, RUN, **{"train": False, **options})


# Within.


def _runs(given: Sequence[str | Path], least: int) -> list[_Run]:
    paths = [given] if isinstance(given, str | Path) else list(given)
    if len(paths) < least:
        accepted = f"a list of {'one directory' if least == 1 else 'two directories'} or more"
        raise StudyError("not enough runs", where="runs", got=given, accepted=accepted)
    places = [Path(path) for path in paths]
    names = [place.name for place in places]
    return [_run(place, place.name if names.count(place.name) == 1 else str(place)) for place in places]


def _run(place: Path, name: str) -> _Run:
    store = Store(place)
    history = _read(str(place.absolute()), store.written_s, store.running)
    if history.run is None:
        store.read_study()  # says where there is none
        raise StoreError("the run hasn't begun", where=str(place), remedy="train it: Study.load(...).run()")
    try:
        return _Run(name, history, store.read_study())
    except StoreError:
        return _Run(name, history, {})


@functools.lru_cache(_IN_MEMORY)
def _read(place: str, written_s: float, running: bool | None) -> History:
    """The history of a run, for as long as nothing is written to it."""
    return history_of(Store(place))


def _rows(one: _Run) -> Iterator[tuple[str, Any]]:
    """The settings of a run by name, those of its best member first."""
    history, run = one.history, one.history.run
    assert run is not None
    leader = history.leader
    if leader is not None and not math.isnan(leader.best_value):
        yield f"best {run.monitor}", leader.at_best(run.monitor)
        yield "best epoch", leader.best_epoch
        yield from ((f"best {name}", leader.config.get(name)) for name in run.axes)
    yield from (("family", run.family), ("data", run.data), ("members", len(history.members)))
    yield from ((f"axis {name}", ", ".join(map(show, values))) for name, values in run.axes.items())
    for part in ("search", "population"):
        yield from ((f"{part} {name}", value) for name, value in (one.asked.get(part) or {}).items())
    options = {name: value for name, value in one.asked.get("options", {}).items() if name != "name"}
    yield from {**options, "epochs": run.epochs, "device": run.device_name or run.device}.items()


def _differs(name: str, columns: Sequence[Mapping[str, Any]]) -> bool:
    values = [column.get(name, DEFAULT) for column in columns]
    return any(value != values[0] for value in values)
