"""Finds saved runs in a folder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import StoreError
from hfta_nb.records.summaries import COLUMNS, USUAL_FOLDER, stores, summaries
from hfta_nb.study.reading import checked

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class SavedRun:
    """A saved run, described without reading its events.

    Attributes:
        directory: directory of the run.
        family, data: their names.
        variants, epochs: their numbers.
        time_s: when it was last written to, in seconds since the epoch.
        running: whether it is in progress.
    """

    directory: Path
    family: str
    data: str
    variants: int
    epochs: int
    time_s: float
    running: bool = False


def saved_runs(folder: str | Path, most: int = 100) -> Iterator[SavedRun]:
    """The runs of a folder, the latest first.

    Args:
        folder: the folder, which need not exist.
        most: the number of directories to read, the latest first.
    """
    try:
        found = stores(folder)
    except OSError:
        return
    for store in found[:most]:
        try:
            run, begun = _described(store.directory, checked(store), store.written_s), store.has_events
        except (StoreError, TypeError, ValueError):
            continue  # damaged, or of another version
        if begun:
            yield replace(run, running=store.running is True)


def _described(place: Path, saved: Mapping[str, Any], time_s: float) -> SavedRun:
    product = 0 if saved["grid"] is None else math.prod(len(values) for values in saved["grid"].values())
    more = sum(len(one["variants"]) for one in saved.get("added", ()))
    variants = product + len(saved.get("variants", ())) + more
    return SavedRun(place, str(saved["family"]), str(saved["data"]["name"]), variants, int(saved["options"]["epochs"]),
                    time_s)  # fmt: skip


def runs(folder: str | Path = USUAL_FOLDER) -> pandas.DataFrame:
    """The runs of a folder, the latest first.

    Args:
        folder: where studies without a ``directory`` keep theirs, or another one.

    Returns:
        A row per run, by the name of its directory: ``state``, ``family``, ``data``, ``members``, ``epochs`` planned,
        ``monitor``, its ``best`` value, ``started`` (local time), ``took_s`` without pauses, ``axes`` that vary, and
        the ``directory``, for `Study.load`.

    Raises:
        StoreError: there is no such folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     len(runs(folder))
        0
    """
    import pandas

    rows = [one.row for one in summaries(folder)]
    return pandas.DataFrame(rows, columns=COLUMNS).set_index("run")
