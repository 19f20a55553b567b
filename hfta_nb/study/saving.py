"""What of a study is kept beside what happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hfta_nb import data as datasets
from hfta_nb.data import Data
from hfta_nb.store import Store

if TYPE_CHECKING:
    from hfta_nb.study.study import Study


def describe(study: Study) -> dict[str, Any]:
    """What was asked, for study.json."""
    grid = {k: list(v) for k, v in study.grid.axes.items()}
    data = {"name": study.data.name, "task": study.data.task, "facts": dict(study.data.facts)}
    return {"family": study.family.name, "grid": grid, "data": data, "options": study.options}


def write(study: Study) -> None:
    """Keep what was asked, own data too."""
    study.store.write_study(describe(study))
    if not datasets.known(study.data.name):
        study.store.write_tensors("data.safetensors", study.data.tensors())


def read_data(store: Store, asked: Mapping[str, Any]) -> Data:
    """The data of a study that was saved."""
    if datasets.known(asked["name"]):
        return datasets.load(asked["name"])
    return Data.of_tensors(asked["name"], asked["task"], asked["facts"], store.read_tensors("data.safetensors"))
