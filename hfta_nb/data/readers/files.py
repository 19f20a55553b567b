"""Finds and reads the files of data sets, with errors for damaged ones."""

from __future__ import annotations

import gzip
import importlib
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hfta_nb.errors import DataError
from hfta_nb.records import regular_files

HOME = "HFTA_NB_DATA"
"""The environment variable with the directory of all data sets; the default is ``data`` in the current directory."""


def directory_of(name: str, given: str | Path | None) -> Path:
    """The directory of a data set: as given, else ``$HFTA_NB_DATA/<name>``."""
    return Path(given) if given is not None else Path(os.environ.get(HOME, "data")) / name


def present(directory: Path, wanted: str, choices: Sequence[str]) -> Path:
    """The first of these files (or directories) that exists.

    Args:
        directory: directory of the data set; the files may also be in a subdirectory.
        wanted: the expected files, for the error.
        choices: paths within the directory.

    Raises:
        DataError: none of them exists.
    """
    inner = [p for p in sorted(directory.iterdir()) if p.is_dir()] if directory.is_dir() else []
    for place in (directory, *inner):
        for choice in choices:
            if (place / choice).exists():
                return place / choice
    raise DataError(
        "not there" if directory.is_dir() else "no such directory",
        where=str(directory / choices[0] if directory.is_dir() else directory),
        remedy=f"put {wanted} into {directory}, or set {HOME} to the directory that holds it",
    )


def damaged(path: Path | str, offset: int, what: str, got: object = None) -> DataError:
    """The error for a damaged file."""
    more = {} if got is None else {"got": got}
    return DataError(what, where=f"{path}, byte {offset}", remedy="fetch the file again", **more)  # type: ignore[arg-type]


def optional(package: str, extra: str, what: str) -> Any:
    """An optional package.

    Raises:
        DataError: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise DataError(
            f"{package} is needed to {what}", where=package, remedy=f'pip install "hfta_nb[{extra}]", or {package}'
        ) from error


def contents(path: Path) -> bytes:
    """The contents of a file, unpacked if its name ends in .gz.

    Raises:
        DataError: it can't be read, or is cut short.
    """
    try:
        with regular_files.opened(path) as file:
            packed: bytes = file.read()
    except OSError as error:
        raise DataError(f"can't be read ({error.strerror})", where=str(path)) from error
    if path.suffix != ".gz":
        return packed
    try:
        return gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, len(packed), f"not a whole gzip file ({error})") from error


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The non-empty lines of a text, each with its byte offset.

    Raises:
        DataError: the file can't be read, or a line is not UTF-8.
    """
    offset = 0
    for line in contents(path).split(b"\n"):
        try:
            text = line.decode("utf-8").rstrip("\r")
        except UnicodeDecodeError as error:
            raise damaged(path, offset + error.start, "not UTF-8") from error
        if text.strip():
            yield offset, text
        offset += len(line) + 1
