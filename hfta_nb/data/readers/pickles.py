"""Reads CIFAR's pickles without running code in them.

A pickle is a program that may call any function. Here no name in it is looked up: NumPy arrays of bytes are rebuilt,
and a call of anything else is refused.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from hfta_nb.data.readers.files import contents, damaged

_ARRAYS = frozenset({"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct", "numpy dtype"})
_BYTES = frozenset({"u1", "|u1", "uint8"})


class _Array:
    """A NumPy array (or dtype) while it is rebuilt."""

    state: tuple[Any, ...]

    def __init__(self, *args: Any) -> None:
        self.args, self.state = args, ()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def tensor(self) -> Tensor:
        _, shape, dtype, fortran, content = self.state
        if not isinstance(dtype, _Array) or dtype.args[0] not in _BYTES:
            raise ValueError("an array that is not of bytes")
        raw = content.encode("latin-1") if isinstance(content, str) else content
        whole = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        if fortran:
            return whole.view(tuple(reversed(shape))).permute(*reversed(range(len(shape))))
        return whole.view(shape)


class _ForbiddenError(Exception):
    """A pickle calls this."""


@dataclass(frozen=True)
class _Named:
    """A function or class that the pickle names."""

    name: str

    def __call__(self, *args: Any) -> Any:
        if self.name == "_codecs encode":
            return args[0].encode("latin-1")
        if self.name in _ARRAYS:
            return _Array(*args)
        raise _ForbiddenError(self.name)

    def __setstate__(self, state: Any) -> NoReturn:
        raise ValueError("an object that is not an array")


class _Reader(pickle._Unpickler):
    """The one in Python: that in C makes room for as many values as the file says that it has."""

    def find_class(self, module: str, name: str) -> _Named:
        return _Named(f"{module} {name}")

    def get_extension(self, code: int) -> NoReturn:
        """These are objects of this process, by number."""
        raise ValueError(f"extension {code}")


def read_pickle(path: Path) -> Any:
    """The contents of a pickle: plain values; of a dict that it is, arrays of bytes as tensors.

    Raises:
        DataError: it is cut short or damaged, or calls anything else.
    """
    file = io.BytesIO(contents(path))
    try:
        found = _Reader(file, fix_imports=False, encoding="latin-1").load()
        if isinstance(found, dict):
            return {k: v.tensor() if isinstance(v, _Array) else v for k, v in found.items()}
        return found
    except _ForbiddenError as error:
        what = "a pickle that calls a function, which is not run"
        raise damaged(path, file.tell(), what, str(error)) from None
    except Exception as error:  # a stack that is too short raises many kinds
        raise damaged(path, file.tell(), f"not a whole pickle ({error})") from error
