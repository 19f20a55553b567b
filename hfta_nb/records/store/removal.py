"""Deletes a run from the disk: its own files, and its directory."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from hfta_nb.errors import StoreError
from hfta_nb.records.store import checkpoints, database, tensor_files
from hfta_nb.records.store.connections import Access
from hfta_nb.records.store.locks import LOCK, Hold

_DATABASE = re.compile(re.escape(database.NAME) + r"(-wal|-shm|-journal|\.\w+\.tmp(-journal)?)?")
_BESIDE = re.compile(
    r"(data|member_\d+)\.safetensors(\.lock|\.tmp)?|(output|optuna)\.log(\.lock|\.tmp)?|columns\.json"
    r"|leaderboard\.csv|(curves|figure_\w+)\.png"
)
"""What a study, its worker, its search and its exports write beside the database, directly in its directory."""


def remove(directory: Path) -> None:
    """Delete a run. The database goes last: a run that can't be deleted as a whole is still one.

    Raises:
        StoreError: there is no run, or it is in progress; its directory is a link, has other files in it, or can't be
            written to.
    """
    Access(directory).require()
    if directory.is_symlink():
        raise StoreError("is a link", where=str(directory), remedy=f"give its target: {directory.resolve()}")
    with tensor_files.guarded(directory / LOCK), contextlib.closing(Hold(directory)) as hold:
        if not hold.alone():
            raise StoreError("the run is in progress", where=str(directory), remedy="stop it first")
        own, foreign = _files(directory)
        if foreign:
            got, remedy = ", ".join(foreign[:5]) + (", ..." if len(foreign) > 5 else ""), "move them to another place"
            raise StoreError("has other files in it than the run's", where=str(directory), got=got, remedy=remedy)
        for path in sorted(own, key=lambda path: _last(path.name)):
            path.unlink(missing_ok=True)
        for folder in checkpoints.FOLDERS:
            with contextlib.suppress(FileNotFoundError):
                (directory / folder).rmdir()
        directory.rmdir()


def _last(name: str) -> tuple[bool, bool]:
    return name == LOCK, _DATABASE.fullmatch(name) is not None


def _files(directory: Path) -> tuple[list[Path], list[str]]:
    """The run's files, and the names of others."""
    own, foreign = list[Path](), list[str]()
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.name in checkpoints.FOLDERS and entry.is_dir(follow_symlinks=False):
            pattern = checkpoints.FOLDERS[entry.name]
            for path in sorted(Path(entry.path).iterdir()):
                if pattern.fullmatch(path.name.removesuffix(".tmp")):
                    own.append(path)
                else:
                    foreign.append(f"{entry.name}/{path.name}")
        elif entry.name == LOCK or _DATABASE.fullmatch(entry.name) or _BESIDE.fullmatch(entry.name):
            own.append(Path(entry.path))
        else:
            foreign.append(entry.name)
    return own, foreign
