"""Saved runs for tests: modified, damaged, or in the first layout."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from hfta_nb.records.store import Store, checkpoints
from hfta_nb.records.store.database import sum_of
from hfta_nb.records.store.trees import take_tensors


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[sqlite3.Connection]:
    """The database of a run."""
    with contextlib.closing(sqlite3.connect(directory / "study.sqlite", isolation_level=None)) as connection:
        yield connection


def last_checkpoint(store: Store) -> Any:
    """The state of the last checkpoint that is whole, from which `Store.go_back` would carry on."""
    return checkpoints.tree(store.directory, store._best_of())


def change_events(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what the events say, as if it had been written so."""
    with opened(directory) as connection:
        for number, body in connection.execute("SELECT number, body FROM events").fetchall():
            event = json.loads(body)
            change(event)
            words = json.dumps(event)
            row = (words, sum_of("events", number, words), number)
            connection.execute("UPDATE events SET body = ?, sum = ? WHERE number = ?", row)


def damage_event(directory: Path, number: int) -> None:
    """Change an event, but not its sum."""
    with opened(directory) as connection:
        connection.execute("UPDATE events SET body = replace(body, '1', '2') || ' ' WHERE number = ?", (number,))


def in_layout1(directory: Path, target: Path) -> Path:
    """The run as a program before the database would have written it."""
    store = Store(directory)
    target.mkdir(parents=True)
    (target / "study.json").write_text(json.dumps({"format": 1, **store.read_study()}, indent=1))
    lines = [json.dumps(row.body) for row in store.rows()]
    (target / "events.jsonl").write_text("".join(line + "\n" for line in lines))
    if (directory / "data.safetensors").exists():
        shutil.copy(directory / "data.safetensors", target)
    if not store.has_checkpoint:
        return target
    state = last_checkpoint(store)
    for folder in ("weights", "ends"):
        (target / folder).mkdir()
    ids = [variant for variant in range(100) if store.weights_path(variant).is_file()]
    for variant in ids:
        save_file(store.read_weights(variant), target / f"weights/{variant}.safetensors")
    for told in state.get("ends", ()):
        tensors: dict[str, Any] = {}
        plain = take_tensors(store.read_end(told["file"]), tensors)
        told["file"] = f"ends/{told['array']}.safetensors"
        save_file(tensors, target / told["file"], {"state": json.dumps(plain)})
    tensors = {}
    plain = take_tensors(state, tensors)
    save_file(tensors, target / "checkpoint-a.safetensors")
    checkpoint = {"format": 1, "tensors": "checkpoint-a.safetensors", "state": plain}
    (target / "checkpoint.json").write_text(json.dumps(checkpoint, indent=1))
    return target
