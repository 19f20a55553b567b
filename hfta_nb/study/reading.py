"""A study as it was saved: read, and its parts checked by their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from hfta_nb import data as datasets
from hfta_nb.data import AnyData, Data
from hfta_nb.errors import FamilyError, GridError, StoreError
from hfta_nb.models.model_zoo import families
from hfta_nb.models.model_zoo.dotted import is_constructor
from hfta_nb.models.recipes import Family, lightning, with_own
from hfta_nb.models.study_config import by_new_names
from hfta_nb.records.store import Store
from hfta_nb.search.grid import Grid
from hfta_nb.study.arguments import family_of

DATA = "data.safetensors"
"""The file of a study's own data."""

_NEEDED = ("family", "grid", "data", "options")


def read(
    directory: Path, family: str | Family | None, data: Any, trust: bool
) -> tuple[Family, Any, AnyData, dict[str, Any]]:
    """The family, grid, data and options of a study that was saved; see `Study.load`."""
    store = Store(directory)
    saved = checked(store)
    family, data = lightning.taken(family, data)
    recipe = _family(saved, directory, family, trust)
    # What was saved before variants of different architecture could share an array keeps them apart.
    options = {"padding": "never", **saved["options"], "directory": store.directory}
    if not torch.cuda.is_available() and str(options.get("device", "")).startswith("cuda"):
        options["device"] = "cpu"
    listed = saved.get("variants", ())
    try:
        grid = Grid.of(listed) if saved["grid"] is None else Grid(saved["grid"]).plus(listed)
    except GridError as error:
        raise StoreError(f"is not what was saved ({error.message})", where=str(store.path)) from error
    with datasets.ignoring(recipe.loss, saved["data"]["task"] == "regression"):
        found = read_data(store, saved["data"], data)
    return recipe, grid, found, options


def checked(store: Store) -> dict[str, Any]:
    """What was asked, each part of the type that it was saved with.

    Raises:
        StoreError: one is not, or is missing.
    """
    saved = store.read_study()
    if not all(part in saved for part in _NEEDED):
        where, accepted = str(store.path), ", ".join(_NEEDED)
        raise StoreError("is not what was saved", where=where, got=sorted(saved), accepted=accepted)
    if isinstance(saved["options"], dict):
        saved["options"] = by_new_names(saved["options"])
    wrong = next(_wrong(saved), None)
    if wrong is not None:
        raise StoreError(f"is not what was saved: {wrong}", where=str(store.path), got=saved[wrong])
    return saved


def _wrong(saved: Mapping[str, Any]) -> Iterator[str]:
    """The parts that are of another type."""
    grid, data, options = saved["grid"], saved["data"], saved["options"]
    added, own = saved.get("added", []), saved.get("own", [])
    fits = {
        "family": isinstance(saved["family"], str),
        "grid": grid is None or (isinstance(grid, dict) and _all(list(grid.values()), list)),
        "data": isinstance(data, dict)
        and _all([data.get("name"), data.get("task")], str)
        and isinstance(data.get("facts"), dict)
        and _all(data.get("words", []), str),
        "options": isinstance(options, dict) and isinstance(options.get("epochs"), int),
        "variants": _all(saved.get("variants", []), dict),
        "added": _all(added, dict)
        and all(_all(one.get("variants"), dict) and isinstance(one.get("key"), str) for one in added),
        "own": _all(own, str),
        "named": isinstance(saved.get("named", {}), dict),
    }
    yield from (part for part, fit in fits.items() if not fit)


def _all(given: Any, kind: type) -> bool:
    """Whether this is a list of such."""
    return isinstance(given, list) and all(isinstance(one, kind) for one in given)


def _family(saved: Mapping[str, Any], directory: Path, family: str | Family | None, trust: bool) -> Family:
    name = saved["family"]
    if family is None and not trust and is_constructor(name) and name not in families():
        remedy = f"pass it: Study.load(path, family={name!r}); or trust the directory: Study.load(path, trust=True), "
        raise FamilyError("would be imported because a file names it", where=str(directory), got=name,
                          remedy=f"{remedy}hfta-nb run --resume DIR --trust")  # fmt: skip
    try:
        recipe = family_of(name if family is None else family)
    except FamilyError as error:
        raise FamilyError(
            error.what, where=str(directory), got=name, remedy="pass it: Study.load(path, family=...)"
        ) from error
    named = saved.get("named", {})
    if family is None and not set(saved.get("own", ())) <= named.keys():
        own = " and ".join(saved["own"])
        remedy = f"give it with them: Study.load(path, family=dataclasses.replace(hfta_nb.family({name!r}), "
        remedy += ", ".join(f"{one}=..." for one in saved["own"]) + "))"
        raise FamilyError(f"the study had {own} of its own, which are not saved", where=str(directory), remedy=remedy)
    return recipe if isinstance(family, Family) else with_own(recipe, named.get("loss"), named.get("metrics"))


def read_data(store: Store, saved: Mapping[str, Any], given: Any = None) -> AnyData:
    """The data of a study that was saved.

    Args:
        store: the study's.
        saved: what the study says of the data.
        given: the data itself, where nothing of it is kept.

    Raises:
        StoreError: it was read while the study ran, and so is not in the directory; or other data is given.
    """
    if given is not None:
        found = datasets.resolve(given)
        kept = {"task": saved["task"], **saved["facts"]}
        mine = {"task": found.task, **{k: v for k, v in found.facts.items() if k in kept}}
        if kept != mine:
            raise StoreError("not the data of this study", where=str(store.directory), got=mine, accepted=str(kept))
        return found
    if saved.get("streamed"):
        raise StoreError(
            f"{saved['name']} was a stream, of which nothing is kept",
            where=str(store.directory),
            remedy="give it again: Study.load(path, data=...)",
        )
    if datasets.known(saved["name"]) and not saved.get("split"):
        return datasets.load(saved["name"])
    tensors = store.read_tensors(DATA)
    return Data.of_tensors(saved["name"], saved["task"], saved["facts"], tensors, saved.get("words", ()))
