"""The end of a worker's output."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path
from threading import Lock

KEPT_BYTES = 64 * 1024
_LINE_BYTES = 1024


class Log:
    """The last 64 kB of an output. May be used from any thread.

    Args:
        file: where the output is written from some time on; it comes after what was added here.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._lock = Lock()
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._cut = False

    def add(self, data: bytes) -> None:
        with self._lock:
            self._pieces.append(data)
            self._size += len(data)
            while self._size > KEPT_BYTES and len(self._pieces) > 1:
                self._size -= len(self._pieces.popleft())
                self._cut = True

    @property
    def text(self) -> str:
        """The output; if its beginning was dropped, it starts at the beginning of a line where possible."""
        with self._lock:
            data, cut = b"".join(self._pieces), self._cut
        if self._file is not None:
            with contextlib.suppress(OSError), self._file.open("rb") as file:
                file.seek(-min(KEPT_BYTES + 1, os.fstat(file.fileno()).st_size), os.SEEK_END)
                data += file.read()
        if len(data) > KEPT_BYTES:
            data, cut = data[-KEPT_BYTES:], True
        if cut:
            data = data[data.find(b"\n", 0, _LINE_BYTES) + 1 :]
        return data.decode("utf-8", "replace")
