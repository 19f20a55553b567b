"""Finds saved runs in a folder, labels and deletes them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import StoreError, StudyError
from hfta_nb.errors.border import PATH, TEXT, takes
from hfta_nb.records import events as ev
from hfta_nb.records.store import Store, remove
from hfta_nb.records.summaries import COLUMNS, USUAL_FOLDER, label_of, row_of, rows, set_label, stores
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
        ``monitor``, its ``best`` value, ``started`` (local time), ``took_s`` without pauses, ``axes`` that vary,
        ``tags`` and ``note`` (see `annotate`), and the ``directory``, for `Study.load`, `compare` and the like. A run
        whose events can't be read has the state UNREADABLE.

    Raises:
        StoreError: there is no such folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     len(runs(folder))
        0
    """
    import pandas

    return pandas.DataFrame(list(rows(folder)), columns=COLUMNS).set_index("run")


@takes(StudyError, run=PATH, note=TEXT)
def annotate(run: str | Path, tags: Sequence[str] | None = None, note: str | None = None) -> None:
    """Give a run tags and a note, which `runs` and the Workbench show. The run may be in progress, here or elsewhere.

    Args:
        run: its directory.
        tags: all of its tags, in the place of those that it has; None leaves them.
        note: likewise.

    Raises:
        StudyError: a tag is empty, or has a comma or a line break in it.
        StoreError: there is no run, or it can't be written to.

    Example:
        >>> import tempfile
        >>> import hfta_nb as hfta
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     study = hfta.Study("mlp", {"lr": [1e-3]}, "iris", directory=f"{folder}/first")
        ...     _ = study.save(study.directory)
        ...     hfta.annotate(study.directory, tags=["baseline"], note="before augmentation")
    """
    store = Store(run)
    known_tags, known_note = label_of(store)
    set_label(store, known_tags if tags is None else _tags(tags), known_note if note is None else note)


def _tags(given: Any) -> list[str]:
    """Tags as they are kept: each once.

    Raises:
        StudyError: these are none.
    """
    listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [None]
    tags = [tag.strip() for tag in listed if isinstance(tag, str) and "," not in tag and tag.isprintable()]
    if len(tags) < len(listed) or not all(tags):
        accepted = "a list of words or phrases without commas, such as ['baseline', 'to do']"
        raise StudyError("can't be tags", where="tags", got=given, accepted=accepted)
    return list(dict.fromkeys(tags))


@takes(StudyError, run=PATH)
def delete_run(run: str | Path) -> None:
    """Delete a run from the disk: curves, weights, checkpoints and its directory.

    Args:
        run: its directory.

    Raises:
        StoreError: there is no run, or it is in progress; or its directory has other files in it, which are kept, as is
            the run.
    """
    store = Store(run)
    row = row_of(store) if store.exists and store.running is None else None  # else the lock says who is at it
    if row is not None and row["state"] in (ev.RUNNING, ev.PAUSED):
        raise StoreError("the run may be in progress", where=str(run), remedy="stop or resume it first")
    remove(store.directory)
