"""The protocol between kernel and worker: frames of a kind, a job's number and a payload.

Into the worker go jobs (cloudpickle) and requests (JSON); out come events (JSON) and, per job, one end. Pickles travel
between a kernel and the process that it started, over their pipe, and nowhere else.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, NamedTuple

JOB = b"J"
REQUEST = b"R"
READY = b"Y"
EVENT = b"E"
END = b"X"

_HEAD = struct.Struct("!cII")


class Frame(NamedTuple):
    """One message."""

    kind: bytes
    job: int
    payload: bytes = b""


def write(stream: BinaryIO, frame: Frame) -> None:
    """Write a frame whole and flush it."""
    data = memoryview(_HEAD.pack(frame.kind, frame.job, len(frame.payload)) + frame.payload)
    while data:  # an unbuffered stream may take a part
        data = data[stream.write(data) or 0 :]
    stream.flush()


def read(stream: BinaryIO) -> Frame | None:
    """The next frame; None at the end of the stream, also where that cuts a frame short."""
    head = _exactly(stream, _HEAD.size)
    if head is None:
        return None
    kind, job, size = _HEAD.unpack(head)
    payload = _exactly(stream, size)
    return None if payload is None else Frame(kind, job, payload)


def _exactly(stream: BinaryIO, count: int) -> bytes | None:
    parts, left = [], count
    while left:
        part = stream.read(left)
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
