"""Variants that are added to a study before, during and after a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hfta_nb.errors import HftaError, StudyError
from hfta_nb.records.events import Add, Json, VariantRecord
from hfta_nb.search.grid import Grid, configurations
from hfta_nb.study import definition_files
from hfta_nb.study.arguments import check_schedules
from hfta_nb.study.study_state import Added as Added
from hfta_nb.study.study_state import StudyState
from hfta_nb.train import Trainer
from hfta_nb.train.plan import Builder, Group, make_plan, whole


def add(study: StudyState, variants: Any, key: str = "") -> list[int]:
    """See `Study.add`."""
    listed = tuple(_per_fold(study, configurations(variants)))
    if key and any(one.key == key for one in study.added):
        return []
    if not study.run_state.running:
        if study.store.exists and study.store.running:
            remedy = "post it to the control of its run: control.add(...)"
            raise StudyError("the run is in progress elsewhere", where=str(study.directory), remedy=remedy)
        restore(study)
    before = len(study.variants)
    if study.store.has_events:
        one = Added(listed, key)
        study._take(one, planned_apart(study, one, study.plan_groups))
    else:
        grid = study.grid.plus(listed)
        study.plan_groups, study.grid = planned(study, grid), grid
    if study.store.exists:
        study.store.write_study(definition_files.describe(study))
    return list(range(before, before + len(listed)))


def in_folds(study: StudyState, grid: Grid) -> Grid:
    """The grid, with each of its variants once per fold of the data; as it is where there are none."""
    if not study.data.folds:
        return grid
    axes = None if grid.product is None else dict(grid.product)
    if axes is not None and "fold" not in {**axes, **study.fixed}:
        axes["fold"] = tuple(range(len(study.data.folds)))
    return (Grid.of(()) if axes is None else Grid(axes)).plus(_per_fold(study, grid.listed))


def _per_fold(study: StudyState, listed: Iterable[dict[str, Json]]) -> Iterator[dict[str, Json]]:
    """The configurations, each once per fold unless it names one."""
    for config in listed:
        single = not study.data.folds or "fold" in {**config, **study.fixed}
        yield from [config] if single else [{**config, "fold": fold} for fold in range(len(study.data.folds))]


def planned(study: StudyState, grid: Grid, builder: Builder | None = None) -> list[Group]:
    """The groups of a grid; see `make_plan`."""
    most = study.capacity if isinstance(study.capacity, int) else None
    how: dict[str, Any] = {"serial": study.serial, "padding": study.padding, "capacity": most, "builder": builder}
    groups = make_plan(study.family, grid, study.data, study.fixed, **how)
    check_schedules(groups, study.epochs, study.steps_per_epoch, study.data)
    for group in groups if study.drop_last else ():
        study.data.batches_for(group.rows[0])  # raises if none is left
    return groups


def restore(study: StudyState) -> None:
    """Read the variants that were added to the study on disk."""
    if not study.store.exists:
        return
    for saved in study.store.read_study().get("added", ())[len(study.added) :]:
        parent = saved.get("parent")
        source = None if parent is None else int(parent)
        one = Added(configurations(saved["variants"]), str(saved["key"]), source, bool(saved.get("warm", False)))
        study._take(one, planned_apart(study, one, study.plan_groups))


def requested(study: StudyState, request: Add) -> str:
    """Add the variants of a request; returns the reason if they can't be added."""
    try:
        add(study, request.variants, request.key)
    except HftaError as error:
        return error.message
    return ""


def axes(study: StudyState) -> dict[str, tuple[Json, ...]]:
    """All axes, with the values that occur."""
    grid = study.grid
    for one in study.added:
        grid = grid.plus(one.variants)
    found = dict(grid.axes)
    for event in study.run_state.history.edits:  # values that members were given while they trained
        for name, value in event.changes.items() if event.how in ("set", "copied") else ():
            known = found.get(name) or _unswept(study, name)
            found[name] = known if value in known else (*known, value)
    return found


def _unswept(study: StudyState, name: str) -> tuple[Json, ...]:
    """The one value of an axis that is not in the grid."""
    if name in study.fixed:
        return (study.fixed[name],)
    return (study.family.specs_for(study.data, [name])[name].default,)


def records(study: StudyState) -> Iterator[VariantRecord]:
    """All variants, each with a value on every axis."""
    names = axes(study)
    specs = study.family.specs_for(study.data, [*names, *study.fixed])
    for variant in study.variants:
        yield VariantRecord(variant.id, whole(variant.config, names, study.fixed, specs), variant.seed)


def planned_apart(study: StudyState, one: Added, known: Sequence[Group]) -> list[Group]:
    """The groups of what was added, numbered after all others."""
    first = 1 + max(v.id for g in known for v in g.variants)
    index = 1 + max(g.index for g in known)
    builder = study.run_state.trainer.builder if isinstance(study.run_state.trainer, Trainer) else None
    return [_numbered(group, first, index) for group in planned(study, Grid.of(one.variants), builder)]


def _numbered(group: Group, first: int, index: int) -> Group:
    variants = tuple(replace(v, id=v.id + first) for v in group.variants)
    reason = re.sub(r"array (\d+)", lambda found: f"array {int(found[1]) + index}", group.reason)
    return replace(group, index=group.index + index, variants=variants, reason=reason or "added later")
