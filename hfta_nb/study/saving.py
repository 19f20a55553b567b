"""What of a study is kept beside what happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hfta_nb import data as datasets
from hfta_nb.data import AnyData, Data
from hfta_nb.errors import StoreError
from hfta_nb.store import Store

if TYPE_CHECKING:
    from hfta_nb.study.study import Study


def describe(study: Study) -> dict[str, Any]:
    """What was asked, for study.json."""
    grid = {k: list(v) for k, v in study.grid.axes.items()}
    data: dict[str, Any] = {"name": study.data.name, "task": study.data.task, "facts": dict(study.data.facts)}
    if not isinstance(study.data, Data):
        data["streamed"] = True
    elif study.data.words and not datasets.known(study.data.name):
        data["words"] = list(study.data.words)
    return {"family": study.family.name, "grid": grid, "data": data, "options": study.options}


def write(study: Study) -> None:
    """Keep what was asked, own data too."""
    study.store.write_study(describe(study))
    if isinstance(study.data, Data) and not datasets.known(study.data.name):
        study.store.write_tensors("data.safetensors", study.data.tensors())


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
