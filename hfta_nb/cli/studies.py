"""Makes a study from the options of the command line."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import GridError, StoreError, StudyError
from hfta_nb.models.study_config import FLAGS
from hfta_nb.records import regular_files
from hfta_nb.records.events import Json
from hfta_nb.search.grid import parse_axis

if TYPE_CHECKING:
    from hfta_nb import Family, Study

SHORTCUTS = ("batch_size", "lr", "optimizer", "lr_scheduler")
"""Axes with an option of their own: ``--lr 1e-3`` is ``--set lr=1e-3``."""

LEAST_BYTES = 4096
"""Less room on a disk holds no leaderboard."""


def new(given: argparse.Namespace) -> Study:
    """The study that the options define.

    Raises:
        HftaError: an option can't be used.
    """
    import hfta_nb

    if given.family is None:
        known = ", ".join(hfta_nb.families())
        raise StudyError("no family given", where="--family", accepted=known, remedy="for example --family cnn")
    family = hfta_nb.family(given.family)
    data = given.data or family.data[0]
    grid = _axes("--grid", given.grid or (), family, data)
    fixed = _fixed(given, family, data)
    for name in fixed:
        if name in grid:
            raise GridError("is swept by --grid and fixed as well", where=name, remedy="leave one of the two out")
    options = {name: getattr(given, name, None) for name in FLAGS if name not in SHORTCUTS}
    options |= {"directory": getattr(given, "output", None), **fixed}
    # Omitted options have the study's defaults.
    return hfta_nb.Study(family, grid, given.data, **{k: v for k, v in options.items() if v is not None})


def saved(directory: str, trust: bool = False) -> Study:
    """The study of a saved run; with `trust` also one whose family is imported by the name in the directory.

    Raises:
        HftaError: there is no run, or its family is unknown here.
    """
    import hfta_nb

    return hfta_nb.Study.load(directory, trust=trust)


def where(given: argparse.Namespace) -> dict[str, Any]:
    """Where the arrays train, as arguments of `Study.run`."""
    requested = {name: getattr(given, name) for name in ("executor", "workers", "address")}
    return {name: value for name, value in requested.items() if value is not None}


def set_threads(count: int | None) -> None:
    """Set torch's threads before anything runs, because torch's default stalls a busy machine."""
    import torch

    from hfta_nb.study.executors import threads

    torch.set_num_threads(count or threads())


def check_writable(path: str | None, *own: str | Path | None) -> None:
    """Check before training that the result can be written.

    Args:
        path: of the file.
        own: the file of the study and the directory of its run, which it must not be, nor be among the files there.

    Raises:
        StoreError: the file can't be written.
    """
    if path is None:
        return
    target, accepted = Path(path), "a file in a directory that is there"
    at = Path(os.path.realpath(target))
    for taken in (Path(os.path.realpath(place)) for place in own if place):
        if at == taken or (taken in at.parents and at.suffix != ".csv"):
            raise StoreError("is a file of the study", where=path, remedy="choose another name, which ends in .csv")
    try:
        existed = os.path.lexists(target)
        try:
            _try_to_write(target)
        finally:
            if not existed:
                target.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"can't be written ({error.strerror})", where=path, accepted=accepted) from error


def _try_to_write(target: Path) -> None:
    with regular_files.opened(target, "ab") as file:
        handle = file.fileno()
        if os.fstat(handle).st_size:  # a file that is there has its room
            return
        try:
            if os.write(handle, bytes(LEAST_BYTES)) < LEAST_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)
        finally:
            os.ftruncate(handle, 0)


def _fixed(given: argparse.Namespace, family: Family, data: str) -> dict[str, Json]:
    shortcuts = [f"{name}={getattr(given, name)}" for name in SHORTCUTS if getattr(given, name) is not None]
    axes = _axes("--set", [*(given.set or ()), *shortcuts], family, data)
    for name, values in axes.items():
        if len(values) > 1:
            raise GridError("--set takes one value", where=name, got=values, remedy="sweep it with --grid")
    return {name: values[0] for name, values in axes.items()}


def _axes(option: str, texts: Sequence[str], family: Family, data: str) -> dict[str, Any]:
    names = [text.partition("=")[0].strip() for text in texts]
    specs, found = family.specs_for(data, names), dict[str, Any]()
    for text in texts:
        name, values = parse_axis(text, specs)
        if name not in specs:
            raise family.no_axis(name, data)
        if name in found:
            raise GridError("is given twice", where=name, remedy=f"put all its values into one {option}")
        found[name] = values
    return found
