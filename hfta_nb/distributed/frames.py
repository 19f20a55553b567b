"""What rank 0 and the processes of the other ranks write to each other: pickled objects, each after its length."""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

import cloudpickle

_LENGTH = struct.Struct(">Q")


def pack(thing: Any) -> bytes:
    """An object as a frame. What is defined in a notebook goes along by value."""
    data = bytes(cloudpickle.dumps(thing))
    return _LENGTH.pack(len(data)) + data


def read(file: BinaryIO) -> bytes | None:
    """The next object, pickled; None at the end of the file, and where it ends within a frame."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = file.read(length)
    return data if len(data) == length else None


def unpack(data: bytes) -> Any:
    """The object of a frame; it is from the process that trains with this one."""
    return cloudpickle.loads(data)
