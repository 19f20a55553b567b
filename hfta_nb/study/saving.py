"""What of a study is kept beside what happened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hfta_nb import data as datasets
from hfta_nb.data import AnyData, Data
from hfta_nb.errors import FamilyError, StoreError
from hfta_nb.grid import Grid
from hfta_nb.recipes import Family
from hfta_nb.store import Store
from hfta_nb.study.arguments import family_of
from hfta_nb.study.protocol import Definition, Study


def describe(study: Study) -> dict[str, Any]:
    """What was asked, for study.json."""
    product = study.grid.product
    grid = None if product is None else {k: list(v) for k, v in product.items()}
    data: dict[str, Any] = {"name": study.data.name, "task": study.data.task, "facts": dict(study.data.facts)}
    if not isinstance(study.data, Data):
        data["streamed"] = True
    elif study.data.words and not datasets.known(study.data.name):
        data["words"] = list(study.data.words)
    asked: dict[str, Any] = {"family": study.family.name, "grid": grid, "data": data, "options": study.options}
    if study.grid.listed:
        asked["variants"] = list(study.grid.listed)
    if study.added:
        asked["added"] = [{"variants": list(one.variants), "key": one.key} for one in study.added]
    if study.family.own:
        asked["own"] = list(study.family.own)
    return asked


def options(study: Definition) -> dict[str, Any]:
    """Everything that was asked for but family, grid and data; keyword arguments of a twin."""
    return {
        "epochs": study.epochs,
        "patience": study.patience,
        "monitor": study.monitor,
        "device": str(study.device),
        "dtype": str(study.dtype).removeprefix("torch."),
        "precision": study.precision,
        "serial": study.serial,
        "across": study.across,
        "capacity": study.capacity,
        "checkpointing": study.checkpointing,
        "compile": study.compile,
        "strategy": None if study.deterministic or study.strategy == "measured" else study.strategy,
        "deterministic": study.deterministic,
        "verify": study.verify,
        "seed": study.seed,
        "name": study.name,
        "validate_every": study.validate_every,
        "steps_per_epoch": study.steps_per_epoch,
        **study.fixed,
    }


def write(study: Study) -> None:
    """Keep what was asked, own data too."""
    study.store.write_study(describe(study))
    if isinstance(study.data, Data) and not datasets.known(study.data.name):
        study.store.write_tensors("data.safetensors", study.data.tensors())


def save(study: Study, target: Path) -> Path:
    """See `Study.save`."""
    if not study.store.exists:
        write(study)
    if target != study.directory:
        study.store.copy_to(target)
    return target


def read(directory: Path, family: str | Family | None, data: Any) -> tuple[Family, Any, AnyData, dict[str, Any]]:
    """The family, grid, data and options of a study that was saved; see `Study.load`."""
    store = Store(directory)
    asked = store.read_study()
    parts = ("family", "grid", "data", "options")
    if not all(part in asked for part in parts):
        where = str(store.directory / "study.json")
        raise StoreError("is not what was saved", where=where, got=sorted(asked), accepted=", ".join(parts))
    try:
        recipe = family_of(asked["family"] if family is None else family)
    except FamilyError as error:
        raise FamilyError(
            error.what, where=str(directory), got=asked["family"], remedy="pass it: Study.load(path, family=...)"
        ) from error
    if family is None and asked.get("own"):
        own = " and ".join(asked["own"])
        remedy = f"give it with them: Study.load(path, family=dataclasses.replace(hfta_nb.family({asked['family']!r}), "
        remedy += ", ".join(f"{name}=..." for name in asked["own"]) + "))"
        raise FamilyError(f"the study had {own} of its own, which are not saved", where=str(directory), remedy=remedy)
    # What was saved before variants of different architecture could share an array keeps them apart.
    options = {"across": "never", **asked["options"], "directory": store.directory}
    if not torch.cuda.is_available() and str(options.get("device", "")).startswith("cuda"):
        options["device"] = "cpu"
    listed = asked.get("variants", ())
    grid = Grid.of(listed) if asked["grid"] is None else Grid(asked["grid"]).plus(listed)
    return recipe, grid, read_data(store, asked["data"], data), options


def read_data(store: Store, asked: Mapping[str, Any], given: Any = None) -> AnyData:
    """The data of a study that was saved.

    Args:
        store: the study's.
        asked: what study.json says of the data.
        given: the data itself, where nothing of it is kept.

    Raises:
        StoreError: it was read while the study ran, and so is not in the directory; or other data is given.
    """
    if given is not None:
        found = datasets.resolve(given)
        kept = {"task": asked["task"], **asked["facts"]}
        mine = {"task": found.task, **{k: v for k, v in found.facts.items() if k in kept}}
        if kept != mine:
            raise StoreError("not the data of this study", where=str(store.directory), got=mine, accepted=str(kept))
        return found
    if asked.get("streamed"):
        raise StoreError(
            f"{asked['name']} was a stream, of which nothing is kept",
            where=str(store.directory),
            remedy="give it again: Study.load(path, data=...)",
        )
    if datasets.known(asked["name"]):
        return datasets.load(asked["name"])
    tensors = store.read_tensors("data.safetensors")
    return Data.of_tensors(asked["name"], asked["task"], asked["facts"], tensors, asked.get("words", ()))
