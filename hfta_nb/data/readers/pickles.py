"""Reads CIFAR's pickles without running code in them.

A pickle is a program that may call any function. This reader only interprets its opcodes: plain values and NumPy arrays
of bytes are rebuilt, anything else is refused.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hfta_nb.data.readers.files import contents, damaged
from hfta_nb.errors import DataError

_MARK = object()


@dataclass
class _Named:
    """A function or class that the pickle names; never looked up."""

    name: str


@dataclass
class _Array:
    """A NumPy array (or dtype) while it is rebuilt."""

    name: str
    args: Any
    state: Any = None


_VALUES = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    }
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_ARRAYS = frozenset(
    f"{module} {name}"
    for module, name in (
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "dtype"),
    )
)
_BYTES = frozenset({"u1", "|u1", "uint8"})


def read_pickle(path: Path) -> Any:
    """The contents of a pickle: plain values, and tensors of bytes for its arrays.

    Raises:
        DataError: it is cut short or damaged, or holds anything else.
    """
    data = contents(path)
    machine = _Machine(path)
    position = 0
    try:
        for opcode, arg, found in pickletools.genops(io.BytesIO(data)):
            position = found or 0
            if opcode.name == "STOP":
                return _finished(machine.stack[-1])
            machine.step(opcode.name, arg, position)
    except DataError:
        raise
    except Exception as error:  # pickletools and a stack that is too short raise many kinds
        raise damaged(path, position, f"not a whole pickle ({error})") from error
    raise damaged(path, len(data), "not a whole pickle")


class _Machine:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, arg: Any, position: int) -> None:
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _VALUES:
            stack.append(arg)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if name == "MEMOIZE" else arg] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[arg])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self._name(name, arg)
        elif name in ("REDUCE", "BUILD"):
            self._call(name, position)
        else:
            self._collect(name, position)

    def _name(self, name: str, arg: Any) -> None:
        if name == "STACK_GLOBAL":
            second, first = self.stack.pop(), self.stack.pop()
            arg = f"{first} {second}"
        self.stack.append(_Named(arg))

    def _call(self, name: str, position: int) -> None:
        given = self.stack.pop()
        if name == "BUILD":
            if not isinstance(self.stack[-1], _Array):
                raise damaged(self.path, position, "an object that is not an array")
            self.stack[-1].state = given
            return
        function = self.stack.pop()
        if not isinstance(function, _Named):
            raise damaged(self.path, position, "a call of something that is not a function")
        if function.name == "_codecs encode":
            self.stack.append(given[0].encode("latin-1"))
        elif function.name in _ARRAYS:
            self.stack.append(_Array(function.name, given))
        else:
            raise damaged(self.path, position, "a pickle that calls a function, which is not run", function.name)

    def _collect(self, name: str, position: int) -> None:
        stack = self.stack
        if name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "APPEND":
            value = stack.pop()
            stack[-1].append(value)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            stack[-1][key] = value
        elif name in ("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"):
            items = self._marked()
            pairs = zip(items[::2], items[1::2], strict=True) if name in ("DICT", "SETITEMS") else ()
            if name in ("TUPLE", "LIST", "DICT"):
                stack.append(tuple(items) if name == "TUPLE" else items if name == "LIST" else dict(pairs))
            elif name == "APPENDS":
                stack[-1].extend(items)
            else:
                stack[-1].update(pairs)
        else:
            raise damaged(self.path, position, "a pickle of more than plain values", name)

    def _marked(self) -> list[Any]:
        start = len(self.stack) - 1
        while self.stack[start] is not _MARK:
            start -= 1
        items = self.stack[start + 1 :]
        del self.stack[start:]
        return items


def _finished(value: Any) -> Any:
    """With tensors for arrays."""
    if isinstance(value, dict):
        return {_finished(k): _finished(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_finished(v) for v in value)
    return _tensor(value) if isinstance(value, _Array) else value


def _tensor(array: _Array) -> Tensor:
    _, shape, dtype, fortran, content = array.state
    if not isinstance(dtype, _Array) or dtype.args[0] not in _BYTES:
        raise ValueError("an array that is not of bytes")
    raw = content.encode("latin-1") if isinstance(content, str) else content
    whole = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    return whole.view(tuple(reversed(shape))).permute(*reversed(range(len(shape)))) if fortran else whole.view(shape)
