"""Prepares a saved run for a Workbench."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.models.study_config import ARGUMENTS
from hfta_nb.records import regular_files
from hfta_nb.search.grid import Grid
from hfta_nb.study import Study, given_options

COLUMNS = "columns.json"
"""In a run's directory, how the columns of its leaderboard are arranged."""


def as_interrupted(study: Study) -> Study:
    """The study; its run is marked as interrupted if its process is gone."""
    history = study.history  # INTERRUPTED if the run was in progress and nobody holds its lock
    if history.run is None or history.state in ev.FINAL_STATES or study.store.running:
        return study
    # Without file locks, the user who reattaches is responsible.
    history.interrupt()
    return study


def grid_of(study: Study) -> Grid:
    """All variants of a study, including added ones; without the axis of folds, which the study makes."""
    grid = study.grid
    for one in study.added:
        grid = grid.plus(one.variants)
    if len(grid.axes.get("fold", ())) < len(study.data.folds) or not study.data.folds:
        return grid
    axes = None if grid.product is None else {name: v for name, v in grid.product.items() if name != "fold"}
    listed = [{name: value for name, value in config.items() if name != "fold"} for config in grid.listed]
    once = [config for place, config in enumerate(listed) if config not in listed[:place]]
    return (Grid.of(()) if axes is None else Grid(axes)).plus(once)


def searched_of(study: Study) -> dict[str, Any]:
    """The space of a search in a grid's place, and what says how it is searched; empty of a study that is none.

    A function as a space has no rows: its trials are a grid.
    """
    searcher = study.searcher
    if searcher is None or callable(searcher.space):
        return {} if searcher is None else {"padding": study.padding}
    names = ("trials", "slots", "sampler", "pruner", "seeds_by", "constraint", "skip_duplicates")
    found = {name: getattr(searcher, name) for name in names} | {"timeout": searcher.timeout_s}
    seeds = {"seed": searcher.seeds} if searcher.seeds else {}
    storage = {"storage": searcher.home.given} if searcher.home.shared else {}
    given = {name: value for name, value in found.items() if value != ARGUMENTS[name].default}
    return {"grid": {**searcher.space, **seeds}, **given, **storage}


def arguments_of(study: Study) -> dict[str, Any]:
    """The arguments of a Workbench that defines this study."""
    own = not hfta.data.known(study.data_name) or (study.data.folds and study.folds is None)
    return {
        "family": study.family,
        "data": study.data if own else study.data_name,
        "grid": grid_of(study),
        **({"population": study.population} if study.population is not None else {}),
        **searched_of(study),
        **given_options(study),
    }


def keep_columns(directory: Path, arranged: Mapping[str, Any]) -> None:
    """Keep how a person has arranged the columns of a run's leaderboard; see `Leaderboard.arranged`."""
    path = directory / COLUMNS
    with contextlib.suppress(OSError):  # the run itself is not to suffer from a full disk
        if directory.is_dir() and (arranged or path.exists()):
            regular_files.rewrite(path, json.dumps(arranged).encode())


def columns_of(directory: Path) -> dict[str, Any]:
    """What `keep_columns` has kept of a run; empty without, and where it can't be read."""
    try:
        found = regular_files.parsed(regular_files.text(directory / COLUMNS))
    except (OSError, ValueError):
        return {}
    kinds = {"order": list, "hidden": dict, "widths": dict}
    return {k: v for k, v in found.items() if isinstance(v, kinds.get(k, ()))} if isinstance(found, dict) else {}
