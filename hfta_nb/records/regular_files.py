"""Opens files that others may have made: regular ones alone, of a known size, and never with a wait.

A FIFO would be waited for without end, ``/dev/zero`` read without end, and a socket or directory fails in words that
say nothing of it. Whoever reads or writes a file that it has not just made itself opens it here.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from typing import Any

MOST_TEXT_BYTES = 1 << 24
"""Of a text that a person or this package wrote: 16 MiB."""

_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
_DEVICE = "a device"
_FLAGS = {
    "rb": os.O_RDONLY,
    "ab": os.O_RDWR | os.O_CREAT | os.O_APPEND,
    "wb": os.O_WRONLY | os.O_CREAT,
    "r+b": os.O_RDWR | os.O_CREAT,
}
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ALWAYS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def opened(path: str | os.PathLike[str], mode: str = "rb", **options: Any) -> Any:
    """Open a regular file, or a link to one; returns at once.

    Args:
        path: of the file.
        mode: "rb" to read, "ab" to add (read as well), "wb" to write anew, "r+b" to write over what is there; "r", "a"
            and "w" as text. Other than to read, it is made if there is none.
        options: of text, as of `open`: encoding, newline.

    Returns:
        As `open` does.

    Raises:
        OSError: there is none, it can't be opened, or it is a directory, a FIFO, a socket or a device.
    """
    check(path)
    handle = os.open(path, _FLAGS[f"{mode.rstrip('b')}b"] | _ALWAYS, 0o666)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):  # something else came into its place
            raise OSError(errno.EINVAL, "is not a file", os.fspath(path))
        if mode.startswith("w"):
            os.ftruncate(handle, 0)
        return os.fdopen(handle, mode.replace("ab", "a+b"), **options)
    except BaseException:
        os.close(handle)
        raise


def rewrite(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a whole file, over the one that is there; where there is no room, that one stays as it is.

    It is the same file afterwards: a link stays a link, and the directory need not be writable.

    Raises:
        OSError: as for `opened`, or there is no room. One that was not there is then not left behind.
    """
    there = os.path.lexists(path)
    try:
        with opened(path, "r+b") as file:
            _reserve(file.fileno(), len(data))
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        if not there:
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise


def _reserve(handle: int, size: int) -> None:
    """See that there is room for a file of so many bytes, where the system can tell."""
    before = os.fstat(handle).st_size
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, size)
    except OSError as error:
        if error.errno in _NO_ROOM:
            os.ftruncate(handle, before)
            raise


def irregular(path: str | os.PathLike[str]) -> str:
    """What is at a path where that is neither nothing nor a regular file, in words; else empty."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return ""
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), _DEVICE)


def check(path: str | os.PathLike[str]) -> None:
    """See that another library may open a path.

    Raises:
        OSError: something is there that is no regular file.
    """
    kind = irregular(path)
    if kind:
        raise OSError(errno.EINVAL, f"is {kind}, not a file", os.fspath(path))


def contents(path: str | os.PathLike[str], most_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """The bytes of a regular file.

    Raises:
        OSError: as for `opened`, or it has more than so many.
    """
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size <= most_bytes:  # first: what is too long isn't read at all
            found: bytes = file.read(most_bytes + 1)  # one of the system's own (/proc) has a size of 0
            if len(found) <= most_bytes:
                return found
    raise OSError(errno.EFBIG, f"has more than {most_bytes:,} bytes", os.fspath(path))


def text(path: str | os.PathLike[str], most_bytes: int = MOST_TEXT_BYTES) -> str:
    """The text of a regular file, which is UTF-8.

    Raises:
        OSError: as for `contents`.
        UnicodeDecodeError: it is not UTF-8.
    """
    return contents(path, most_bytes).decode("utf-8")


def parsed(words: str | bytes) -> Any:
    """What JSON says.

    Raises:
        ValueError: it is none, or is nested too deeply.
    """
    try:
        return json.loads(words)
    except RecursionError:
        raise ValueError("nested too deeply") from None
