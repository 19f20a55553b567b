"""Messages over a pipe: a JSON object, and bytes that may belong to it.

A frame is the lengths of both (4 and 8 bytes, big-endian), the object, the bytes. Both ends write on a thread of their
own, so that nobody who has something to say waits for the other end: not the training loop for a kernel that is busy
with a cell, not a button for a worker that is busy with a step.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import struct
import threading
from collections.abc import Iterator
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]

_LENGTHS = struct.Struct(">IQ")
_CHUNK_BYTES = 1 << 18


def pack(message: Message, blob: bytes = b"") -> bytes:
    """A message as it goes through the pipe.

    Raises:
        TypeError, ValueError: the message is not JSON.
    """
    text = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    return b"".join((_LENGTHS.pack(len(text), len(blob)), text, blob))


class Unpacker:
    """Takes in what came through the pipe, in pieces of any size, and gives whole messages."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def feed(self, data: bytes) -> list[tuple[Message, bytes]]:
        """Messages that are complete with these bytes, oldest first."""
        self._waiting += data
        found, start = [], 0
        while len(self._waiting) - start >= _LENGTHS.size:
            text, blob = _LENGTHS.unpack_from(self._waiting, start)
            middle = start + _LENGTHS.size + text
            if len(self._waiting) < middle + blob:
                break
            message = json.loads(self._waiting[middle - text : middle])
            found.append((message, bytes(self._waiting[middle : middle + blob])))
            start = middle + blob
        del self._waiting[:start]
        return found


def read(file: int) -> Iterator[tuple[Message, bytes]]:
    """Messages from a pipe until it ends, as they come.

    As much as there is goes into one system call: a reader in a busy kernel gets its turn a few hundred times a second.
    """
    unpacker = Unpacker()
    while data := os.read(file, _CHUNK_BYTES):
        yield from unpacker.feed(data)


class Sender:
    """Writes messages to a pipe, on a thread of its own, in the order in which they were put.

    Args:
        file: descriptor of the pipe; closed at the end.
        name: of the thread.
        limit: how many messages may wait before `put` does; 0 for no limit.
    """

    def __init__(self, file: int, name: str, limit: int = 0) -> None:
        self._file = file
        self._queue: queue.Queue[bytes | None] = queue.Queue(limit)
        threading.Thread(target=self._write_all, name=name, daemon=True).start()

    def put(self, message: Message, blob: bytes = b"") -> None:
        """Send a message. One that the other end is not there to read any more is lost.

        Raises:
            TypeError, ValueError: the message is not JSON.
        """
        self._queue.put(pack(message, blob))

    def close(self) -> None:
        """Close the pipe after what was put so far."""
        self._queue.put(None)

    def _write_all(self) -> None:
        broken = False
        ended = False
        while not ended:
            parts = [self._queue.get()]
            size = len(parts[0] or b"")
            with contextlib.suppress(queue.Empty):
                while parts[-1] is not None and size < _CHUNK_BYTES:
                    parts.append(self._queue.get_nowait())
                    size += len(parts[-1] or b"")
            ended = parts[-1] is None
            if not broken:
                # After the other end has gone the queue is emptied all the same: `put` must not wait for ever.
                broken = not _write(self._file, b"".join(part for part in parts if part))
        with contextlib.suppress(OSError):
            os.close(self._file)


def _write(file: int, data: bytes) -> bool:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
    except OSError:
        return False
    return True
