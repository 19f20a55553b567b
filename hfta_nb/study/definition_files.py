"""Saves and loads the definition of a study."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hfta_nb import data as datasets
from hfta_nb import search
from hfta_nb.data import Data
from hfta_nb.errors import StoreError
from hfta_nb.models.recipes import named_parts
from hfta_nb.models.study_argument import ALWAYS, CHANGED
from hfta_nb.models.study_config import ARGUMENTS
from hfta_nb.records.store import Store, is_full
from hfta_nb.study import arguments
from hfta_nb.study.reading import DATA
from hfta_nb.study.study_state import Added, StudyState


def describe(study: StudyState) -> dict[str, Any]:
    """The definition of a study, as plain data."""
    product = study.grid.product
    grid = None if product is None else {k: list(v) for k, v in product.items()}
    data: dict[str, Any] = {"name": study.data.name, "task": study.data.task, "facts": dict(study.data.facts)}
    if not isinstance(study.data, Data):
        data["streamed"] = True
    elif study.data.words and not datasets.known(study.data.name):
        data["words"] = list(study.data.words)
    if _split_by_own(study):
        data["split"] = True
    definition: dict[str, Any] = {"family": study.family.name, "grid": grid, "data": data, "options": options(study)}
    if study.grid.listed:
        definition["variants"] = list(study.grid.listed)
    if study.added:
        definition["added"] = [_added(one) for one in study.added]
    if study.searcher is not None:
        definition["search"] = search.searcher_to_json(study.searcher)
    if study.population is not None:
        definition["population"] = search.population_to_json(study.population)
    if study.family.own:
        definition["own"] = list(study.family.own)
    if named := named_parts(study.family):
        definition["named"] = named
    return definition


def _split_by_own(study: StudyState) -> bool:
    """Whether the folds are those of a splitter, of which nothing but the splits is kept."""
    return bool(study.data.folds) and study.folds is None


def _added(one: Added) -> dict[str, Any]:
    saved: dict[str, Any] = {"variants": list(one.variants), "key": one.key}
    return saved if one.parent is None else saved | {"parent": one.parent, "warm": one.warm}


_AS_SAVED: dict[str, Callable[[StudyState], Any]] = {
    "monitor": lambda study: study.monitor if len(study.objectives) == 1 else [name for name, _ in study.objectives],
    "device": lambda study: str(study.device),
    "dtype": lambda study: str(study.dtype).removeprefix("torch."),
    "strategy": lambda study: None if study.deterministic or study.strategy == "measured" else study.strategy,
    "keep_checkpoints": lambda study: list(study.keep_checkpoints),
}
"""What is saved of arguments that the study has in another form."""


def options(study: StudyState) -> dict[str, Any]:
    """All arguments except family, grid and data, as keyword arguments of a copy."""
    found = dict[str, Any]()
    for name, known in ARGUMENTS.items():
        if known.saved == ALWAYS or (known.saved == CHANGED and getattr(study, name) != known.default):
            found[name] = _AS_SAVED[name](study) if name in _AS_SAVED else getattr(study, name)
    return found | study.fixed


def given_options(study: StudyState) -> dict[str, Any]:
    """The arguments among `options` that differ from the defaults."""
    usual = {name: known.default for name, known in ARGUMENTS.items()}
    usual["monitor"] = arguments.objectives_of(study.family, study.data, None)[0][0]
    usual["padding"] = arguments.padding_of("auto", study.device, study.searcher is not None)
    usual["name"] = arguments.usual_name(study.family, study.data)
    return {name: value for name, value in options(study).items() if name not in usual or value != usual[name]}


def write(study: StudyState) -> None:
    """Write the definition, own data included."""
    tensors = {}
    if isinstance(study.data, Data) and (_split_by_own(study) or not datasets.known(study.data.name)):
        tensors[DATA] = study.data.tensors()
    study.store.write_study(describe(study), tensors)


def save(study: StudyState, target: Path) -> Path:
    """See `Study.save`."""
    if not study.store.exists:
        write(study)
    if target != study.directory:
        study.store.copy_to(target)
        if study.run_state.unkept is None:
            Store(target).warn_of_lost_files()
    if study.run_state.unkept is not None:
        state, weights = study.run_state.unkept
        store = Store(target)
        for name, end in study.store.unwritten.items():
            store.stage(name, end)
        store.write_checkpoint(state, weights)
        study.run_state.unkept = None
    return target


def rescued(study: StudyState, error: BaseException) -> BaseException:
    """Save a study whose run has ended by this error beside its directory, if it has a checkpoint that could not be
    written: for who has no other use of what is in memory.

    Returns:
        The error, which says where.
    """
    unkept = study.run_state.unkept if isinstance(study, StudyState) else None
    if unkept is None or not isinstance(error, StoreError) or is_full(error):
        return error
    spares = (study.directory.with_name(f"{study.directory.name}-{n}") for n in itertools.count(1))
    place = next(spare for spare in spares if not spare.exists())
    try:
        save(study, place)
    except StoreError:
        shutil.rmtree(place, ignore_errors=True)
        return error
    error.remedy = f"what was in memory was saved to {place}, where the run can be resumed"
    return error.at(error.where)
