"""Messages over a pipe: a JSON object with optional bytes.

A frame consists of both lengths (4 and 8 bytes, big-endian), the object and the bytes. Neither end waits for the other
to read: the training loop does not wait for a busy kernel, nor a button for a busy worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]

_LENGTHS = struct.Struct(">IQ")
_CHUNK_BYTES = 1 << 18
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode  # json.dumps would make one each time


def pack(message: Message, blob: bytes = b"") -> bytes:
    """A message as bytes.

    Raises:
        TypeError, ValueError: the message is not JSON.
    """
    text = _encode(message).encode()
    return b"".join((_LENGTHS.pack(len(text), len(blob)), text, blob))


class Unpacker:
    """Collects bytes of any size and returns whole messages."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def feed(self, data: bytes) -> list[tuple[Message, bytes]]:
        """Add bytes; returns the messages that are now complete, oldest first."""
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
    """Yield messages from a pipe until it ends.

    Reads as much as possible per system call, because a reader in a busy kernel runs only a few hundred times a second.
    """
    unpacker = Unpacker()
    while data := os.read(file, _CHUNK_BYTES):
        yield from unpacker.feed(data)


class Sender:
    """Writes messages to a pipe in order.

    A message is in the pipe when `put` returns, so that the last messages before a crash arrive. A thread writes what
    does not fit into the pipe when there is room.

    Args:
        file: descriptor of the pipe; closed at the end.
        name: name of the thread.
        limit: how many messages may wait before `put` blocks; 0 for no limit.
    """

    def __init__(self, file: int, name: str, limit: int = 0) -> None:
        self._file, self._limit = file, limit
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._broken = False
        os.set_blocking(file, False)
        threading.Thread(target=self._write_rest, name=name, daemon=True).start()

    def put(self, message: Message, blob: bytes = b"") -> None:
        """Send a message. It is lost if the other end is gone.

        Raises:
            TypeError, ValueError: the message is not JSON.
        """
        data = pack(message, blob)
        with self._changed:
            while self._limit and len(self._waiting) >= self._limit and not self._closing:
                self._changed.wait()
            if self._closing:
                return
            if not self._waiting:
                data = self._write(data)
            if data:
                self._waiting.append(data)
                self._changed.notify_all()

    def close(self) -> None:
        """Close the pipe after writing all messages."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _write_rest(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    break
            select.select([], [self._file], [])
            with self._changed:
                rest = self._write(self._some())
                if rest:
                    self._waiting.appendleft(rest)
                self._changed.notify_all()
        with contextlib.suppress(OSError):
            os.close(self._file)

    def _some(self) -> bytes:
        """Waiting messages, up to about the size of a pipe."""
        parts = [self._waiting.popleft()]
        size = len(parts[0])
        while self._waiting and size < _CHUNK_BYTES:
            parts.append(self._waiting.popleft())
            size += len(parts[-1])
        return b"".join(parts)

    def _write(self, data: bytes) -> bytes:
        """Write as much as fits; returns the rest."""
        rest = memoryview(data)
        try:
            while rest and not self._broken:
                rest = rest[os.write(self._file, rest) :]
        except BlockingIOError:
            return bytes(rest)
        except OSError:
            self._broken = True  # the reader is gone
        return b""
