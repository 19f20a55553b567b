"""A study beside the run in its directory: what is asked otherwise now, and what is left to do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hfta_nb.models.study_config import FREE
from hfta_nb.records import events as ev
from hfta_nb.study import definition_files, searching
from hfta_nb.study.study_state import StudyState


@dataclass(frozen=True)
class Change:
    """An argument that was otherwise when the run began.

    Attributes:
        argument: its name; an axis of the space as ``space.lr``.
        now, before: its values.
    """

    argument: str
    now: Any
    before: Any


@dataclass(frozen=True)
class Kept:
    """What there is of a study on disk.

    Attributes:
        changes: what was otherwise.
        epochs: of the run.
        wanted: epochs that are asked for now.
        done: whether it is complete, and nothing more is asked of it now.
    """

    changes: tuple[Change, ...]
    epochs: int
    wanted: int
    done: bool


def kept(study: StudyState) -> Kept:
    """What there is on disk of a study that was defined anew.

    Raises:
        StoreError: it can't be read.
    """
    before, now = study.store.read_study(), json.loads(json.dumps(definition_files.describe(study)))
    epochs, wanted = int(before["options"]["epochs"]), study.epochs  # of which reading the history makes the run's
    searching.look(study)
    left = 0 if study.searcher is None else study.searcher.wanted
    done = study.history.state == ev.COMPLETE and wanted <= epochs and not left
    return Kept(tuple(_changes(now, before)), epochs, wanted, done)


def _changes(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Change]:
    if now["family"] != before["family"]:
        yield Change("family", now["family"], before["family"])
    if now["data"].get("name") != before["data"].get("name"):
        yield Change("data", now["data"].get("name"), before["data"].get("name"))
    mine, theirs = now.get("search") or {}, before.get("search") or {}
    spaces = [one.get("space", {}) for one in (mine, theirs)] if mine or theirs else [now["grid"], before["grid"]]
    yield from (Change(f"space.{name}", *pair) for name, *pair in _unlike(*(space or {} for space in spaces)))
    for name, *pair in _unlike(mine, theirs):
        if name not in ("space", *FREE) or (name == "trials" and None not in pair and pair[0] < pair[1]):
            yield Change(name, *pair)
    yield from (Change(name, *pair) for name, *pair in _unlike(now["options"], before["options"]) if name not in FREE)


def _unlike(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in [*now, *(name for name in before if name not in now)]:
        if now.get(name) != before.get(name):
            yield name, now.get(name), before.get(name)
