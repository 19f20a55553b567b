"""Files of tensors: each is written whole or not at all, and known by its SHA-256."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hfta_nb.errors import StoreError
from hfta_nb.records import regular_files

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What a system says where a file can't grow."""

_ROWS = "rows"  # of the tensors whose rows are the same memory: the first one is in the file

_COMPLEX = "complex128"  # the name in a file's metadata of the tensors that are kept as pairs of float64


@dataclass(frozen=True)
class Entry:
    """A file as the database knows it.

    Attributes:
        path: from the run's directory.
        sha256: of its bytes, in hexadecimal.
        size_bytes: of the file.
    """

    path: str
    sha256: str
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Any) -> Entry:
        """What `told` gave.

        Raises:
            KeyError, TypeError, ValueError: it is not.
        """
        path = str(saved["path"])
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise ValueError(f"{path} is not in the run's directory")
        return cls(path, str(saved["sha256"]), int(saved["size_bytes"]))


def write(directory: Path, name: str, tensors: Mapping[str, Tensor]) -> Entry:
    """Write named tensors to a file, which is on the disk when this returns.

    Raises:
        StoreError: it can't be written; what was there before is still there.
    """
    path = directory / name
    with guarded(path):
        spare = path.with_name(path.name + ".tmp")
        spare.unlink(missing_ok=True)  # a link or a FIFO in its place would be written to
        try:
            # Cloned: the format refuses tensors that share memory, as tied weights and rows of an arena do.
            once = {k: len(v) for k, v in tensors.items() if v.ndim and len(v) > 1 and v.stride(0) == 0}
            rows = {k: v[:1] if k in once else v for k, v in tensors.items()}
            held = {k: v.detach().cpu().clone().contiguous() for k, v in rows.items()}
            wide = {k for k, v in held.items() if v.dtype == torch.complex128}  # which the format does not know
            real = {k: torch.view_as_real(v) if k in wide else v for k, v in held.items()}
            notes = {_COMPLEX: json.dumps(sorted(wide))} if wide else {}
            save_file(real, spare, (notes | {_ROWS: json.dumps(once)} if once else notes) or None)
            entry = entry_of(spare, name)
            sync(spare)
            os.replace(spare, path)
        except BaseException:
            with contextlib.suppress(OSError):
                spare.unlink(missing_ok=True)
            raise
        sync(path.parent)
    return entry


def read(directory: Path, entry: Entry) -> dict[str, Tensor]:
    """The tensors of a file.

    Raises:
        StoreError: it is missing, or not what was written.
    """
    verify(directory, entry)
    path = directory / entry.path
    try:
        with safe_open(path, framework="pt") as file:
            notes = file.metadata() or {}
            wide, once = (
                regular_files.parsed(notes.get(key, empty)) for key, empty in ((_COMPLEX, "[]"), (_ROWS, "{}"))
            )
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it can't be iterated
        found |= {name: found[name].expand(rows, *found[name].shape[1:]) for name, rows in once.items()}
        return {k: torch.view_as_complex(v) if k in wide else v for k, v in found.items()}
    except (OSError, ValueError, SafetensorError) as error:
        raise StoreError(f"can't be read ({error})", where=str(path)) from error


def verify(directory: Path, entry: Entry) -> None:
    """See that a file is what was written.

    Raises:
        StoreError: it is not.
    """
    path = directory / entry.path
    try:
        size_bytes = path.stat().st_size
        found = None
        if size_bytes == entry.size_bytes:  # nothing longer than what was written is read
            found = entry_of(path, entry.path)
    except FileNotFoundError:
        raise StoreError("no such file in the run", where=str(path), remedy="was it moved, or deleted?") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"can't be read ({reason(error)})", where=str(path)) from error
    if size_bytes != entry.size_bytes:
        raise StoreError("is damaged: it has another length than what was written", where=str(path),
                         got=size_bytes, accepted=f"{entry.size_bytes} bytes")  # fmt: skip
    if found != entry:
        raise StoreError("is damaged: its contents are not what was written", where=str(path))


def entry_of(path: Path, name: str) -> Entry:
    """A file as the database is to know it."""
    with regular_files.opened(path) as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        return Entry(name, found, file.tell())


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, on the disk: a power cut takes what is only in memory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno in NO_ROOM or error.errno == errno.EIO:
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def guarded(path: Path) -> Iterator[Path]:
    """Make the directory of a file, and turn a failure to write into a typed error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in NO_ROOM:
            raise full(path) from error
        where, accepted = str(path.parent), "a directory that is there or can be made"
        raise StoreError(f"can't be made ({reason(error)})", where=where, accepted=accepted) from error
    try:
        yield path
    except StoreError:
        raise
    except OSError as error:
        raise unwritten(path, error) from error
    except SafetensorError as error:
        raise unwritten(path, error) from error


def unwritten(path: Path, error: Exception) -> StoreError:
    """The typed error of a failure to write."""
    # safetensors tells of the system's error in words: "... (os error 28)".
    if getattr(error, "errno", None) in NO_ROOM or any(f"os error {n})" in str(error) for n in NO_ROOM):
        return full(path)
    return StoreError(f"can't be written ({reason(error)})", where=str(path))


def full(path: Path) -> StoreError:
    """The typed error of a disk that is full."""
    remedy = "make room, then carry on with run(resume=True): all up to the last checkpoint is kept"
    error = StoreError("no room left on the disk, or in the quota", where=str(path), remedy=remedy)
    error.errno = errno.ENOSPC
    return error


def is_full(error: BaseException) -> bool:
    """Whether this is the error of a disk that is full."""
    return isinstance(error, StoreError) and error.errno == errno.ENOSPC


def reason(error: Exception) -> str:
    """Without the path, which is told beside it."""
    return str(getattr(error, "strerror", None) or error)
