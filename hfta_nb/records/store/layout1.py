"""Directories of the first layout: ``study.json``, ``events.jsonl``, ``checkpoint.json`` and safetensors.

They are converted when they are first read or gone on with: the database is made beside the old files, which stay as
they are. Files of tensors are taken where they lie.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import warnings
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hfta_nb.errors import StoreError, StoreWarning
from hfta_nb.records import regular_files
from hfta_nb.records.store import checkpoints, database, facts, journal, tensor_files
from hfta_nb.records.store.checkpoints import Checkpoint
from hfta_nb.records.store.tensor_files import Entry

FORMAT = 1

_MOST_BYTES = 1 << 32
"""Of a file that is read as a whole: a million events have a tenth of it."""

_STUDY, _CHECKPOINT, EVENTS = "study.json", "checkpoint.json", "events.jsonl"


def is_there(directory: Path) -> bool:
    """Whether a run of this layout is in the directory."""
    try:
        return (directory / _STUDY).is_file()
    except OSError:
        return False


def has_events(directory: Path) -> bool:
    """Whether anything has happened in a run of this layout."""
    path = directory / EVENTS
    try:
        return is_there(directory) and path.is_file() and path.stat().st_size > 0
    except OSError:
        return False


def read_study(directory: Path) -> dict[str, Any]:
    """What was asked.

    Raises:
        StoreError: there is no run here, or it is of another version or damaged.
    """
    path = directory / _STUDY
    if not is_there(directory):
        where, remedy = str(directory), f"there is no {database.NAME} in it"
        raise StoreError("no saved run here", where=where, remedy=remedy)
    found = _json(path)
    if found.get("format") != FORMAT:
        raise StoreError(
            "a run of another version", where=str(directory), got=found.get("format"), accepted=f"{FORMAT}, in {_STUDY}"
        )
    return found


def convert(directory: Path) -> None:
    """Make the database of a run of this layout.

    Raises:
        StoreError: it is damaged, or the directory can't be written to.
    """
    with database.making(directory / database.NAME) as connection:
        _fill(connection, directory)


def in_memory(directory: Path) -> sqlite3.Connection:
    """The same where the directory can't be written to."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.text_factory = bytes
    database.create(connection)
    _fill(connection, directory)
    return connection


def _fill(connection: sqlite3.Connection, directory: Path) -> None:
    study = read_study(directory)
    with database.transaction(connection):
        facts.put(connection, "study", "", study)
        _events(connection, directory / EVENTS)
        if (directory / "data.safetensors").is_file():
            facts.put(connection, "file", "data.safetensors", _entry(directory, "data.safetensors").told())
        _checkpoint(connection, directory)


def _events(connection: sqlite3.Connection, path: Path) -> None:
    try:
        lines = regular_files.contents(path, _MOST_BYTES).split(b"\n")[:-1]  # a last line cut short is none
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"can't be read ({tensor_files.reason(error)})", where=str(path)) from error
    lost = []
    for number, line in enumerate(lines, start=1):
        try:
            body = line.decode()
            if not isinstance(regular_files.parsed(body), dict):
                raise ValueError
        except ValueError:
            lost.append(number)
            continue
        journal.append_body(connection, body)
    if lost:
        words = ", ".join(map(str, lost[:5])) + (", ..." if len(lost) > 5 else "")
        what = f"{len(lost)} of {len(lines)} events can't be read and are left out: line {words}"
        warnings.warn(StoreWarning(f"{path}: {what}"), stacklevel=2)


def _checkpoint(connection: sqlite3.Connection, directory: Path) -> None:
    path = directory / _CHECKPOINT
    weights = {file.stem: _entry(directory, f"weights/{file.name}") for file in _listed(directory / "weights")}
    if not path.exists():
        return
    found = _json(path)
    if found.get("format") != FORMAT:
        raise StoreError(
            "a checkpoint of another version", where=str(path), got=found.get("format"), accepted=str(FORMAT)
        )
    if not {"tensors", "state"} <= found.keys() or not isinstance(found["state"], dict):
        raise StoreError("is not what was saved", where=str(path), got=sorted(found), accepted="format, tensors, state")
    name = str(found["tensors"])
    if Path(name).name != name:
        raise StoreError("names a file that is not beside it", where=str(path), got=name)
    tensors = _entry(directory, name) if (directory / name).is_file() else None
    if tensors is None and "__tensor__" in json.dumps(found["state"]):
        raise StoreError("no such file in the run", where=str(directory / name))
    ends, trees = {}, {}
    for told in found["state"].get("ends", ()):
        end = f"ends/{Path(str(told['file'])).name}"
        ends[end], trees[end] = _entry(directory, end), _plain(directory / end)
    # Nothing says which events came before it: whoever goes on from here repeats some of them.
    event = journal.last(connection)
    checkpoints.insert(connection, Checkpoint(1, event, found["state"], tensors, weights, ends, trees))


def _plain(path: Path) -> Any:
    """What an array's end has beside tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            return regular_files.parsed(file.metadata()["state"])
    except (OSError, TypeError, KeyError, ValueError, SafetensorError) as error:
        raise StoreError(f"is not what was saved ({error})", where=str(path)) from error


def _entry(directory: Path, name: str) -> Entry:
    path = directory / name
    try:
        regular_files.check(path)
        with safe_open(path, framework="pt"):  # its header fits its length: only then all of it is read
            return tensor_files.entry_of(path, name)
    except SafetensorError:
        return Entry(name, tensor_files.NO_SUM, path.stat().st_size)  # damaged, which is told to whoever asks for it
    except OSError as error:
        raise StoreError(f"can't be read ({tensor_files.reason(error)})", where=str(path)) from error


def _listed(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(path for path in folder.iterdir() if path.suffix == ".safetensors")
    return []


def _json(path: Path) -> dict[str, Any]:
    try:
        data = regular_files.parsed(regular_files.text(path, _MOST_BYTES))
    except (OSError, ValueError) as error:
        raise StoreError(f"can't be read ({tensor_files.reason(error)})", where=str(path)) from error
    if not isinstance(data, dict):
        raise StoreError("is not what was saved", where=str(path))
    return data
