"""Warnings to whoever calls an array."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hfta_nb.errors import ArrayWarning

_INSIDE = ("hfta_nb", "torch", "contextlib")
"""What calls on behalf of the user; the last one as a decorator."""

_SILENCED = ContextVar("_UNTOLD", default=False)


def warn(text: str, kind: type[Warning] = ArrayWarning) -> None:
    """Warn, in the name of the first frame outside of the package and torch."""
    if not _SILENCED.get():
        warnings.warn(text, kind, stacklevel=_outside())


@contextmanager
def silenced() -> Iterator[None]:
    """The context of calls that nobody has made: the caller's own call tells. Other threads are told as ever."""
    token = _SILENCED.set(True)
    try:
        yield
    finally:
        _SILENCED.reset(token)


def _outside() -> int:
    """The `stacklevel` of that frame, for a warning of this function's caller."""
    frame: Any = sys._getframe(1).f_back  # None in a thread of autograd, where the backward of a GPU runs
    level = 2
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    return level
