"""Values that no argument should be, and how a call with one is judged: a typed error, at once, or it does its work."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import torch

from hfta_nb.errors import HftaError

SECONDS = 20
"""What a call may take at most."""


class Unreadable:
    """Has no ``repr``, as an object that was half made."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Incomparable:
    """Can neither be compared, nor hashed, nor asked for its length or its truth."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise TypeError("no comparison")

    def __bool__(self) -> bool:
        raise TypeError("no truth")

    def __len__(self) -> int:
        raise ValueError("no length")


class Named(str):
    """A text of a class of its own whose ``repr`` raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Whole(int):
    """A whole number of a class of its own that compares with nothing."""

    def _raise(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __lt__ = __le__ = __gt__ = __ge__ = _raise


class Real(float):
    """A number of a class of its own whose ``repr`` raises."""

    def __repr__(self) -> str:
        raise ZeroDivisionError("no repr")


def deep(kind: str = "list", levels: int = 50_000) -> Any:
    """A list in a list in a list, or so dicts."""
    found: Any = 0
    for _ in range(levels):
        found = [found] if kind == "list" else {"a": found}
    return found


NUMBERS: dict[str, Callable[[], Any]] = {
    "0": lambda: 0,
    "-1": lambda: -1,
    "1.5": lambda: 1.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "1e308": lambda: 1e308,
    "10**400": lambda: 10**400,
    "-10**400": lambda: -(10**400),
    "10**5000": lambda: 10**5000,
    "2**63": lambda: 2**63,
    "True": lambda: True,
    "False": lambda: False,
    "complex": lambda: 1 + 2j,
    "Decimal": lambda: Decimal("NaN"),
    "Fraction": lambda: Fraction(10**400, 3),
    "numpy nan": lambda: np.float64("nan"),
    "numpy int": lambda: np.int64(-(2**62)),
    "numpy complex": lambda: np.complex64(1j),
    "own whole number": lambda: Whole(3),
    "own number": lambda: Real(0.5),
    "number on meta": lambda: torch.ones((), device="meta"),
    "numpy masked": lambda: np.ma.masked,
    "numpy date": lambda: np.datetime64("2026-01-01"),
}

TEXTS: dict[str, Callable[[], Any]] = {
    "empty text": lambda: "",
    "foo": lambda: "foo",
    "arabic five": lambda: "\u0665",
    "superscript": lambda: "\u00b2",
    "digits": lambda: "9" * 400,
    "long text": lambda: "x" * 300,
    "nul": lambda: "a\0b",
    "surrogate": lambda: "\ud800",
    "escape": lambda: "\x1b[2J",
    "bytes": lambda: b"\xff\xfe",
    "own text": lambda: Named("auto"),
}

SEVERAL: dict[str, Callable[[], Any]] = {
    "[]": list,
    "()": tuple,
    "{}": dict,
    "set": lambda: {1, "a"},
    "[None]": lambda: [None],
    "[[[1]]]": lambda: [[[1]]],
    "own numbers": lambda: [Whole(3), Real(0.5)],
    "numbers on meta": lambda: [torch.ones((), device="meta")],
    "[[]]": lambda: [[]],
    "[nan, huge]": lambda: [math.nan, 10**400],
    "mixed": lambda: [1, "a", None],
    "three": lambda: (1, 2, 3),
    "{1: 2}": lambda: {1: 2},
    "{'a': 1}": lambda: {"a": 1},
    "{'lr': 5}": lambda: {"lr": 5},
    "{'params': 5}": lambda: {"params": 5},
    "range": lambda: range(3),
    "iterator": lambda: iter([1, 2]),
    "endless": lambda: iter(int, 1),
    "generator": lambda: (n for n in "ab"),
    "deep list": deep,
    "deep dict": lambda: deep("dict"),
    "unreadable list": lambda: [Unreadable(), Unreadable()],
    "incomparable list": lambda: [Incomparable()],
}

THINGS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "object": object,
    "int type": lambda: int,
    "module": lambda: math,
    "Ellipsis": lambda: ...,
    "NotImplemented": lambda: NotImplemented,
    "unreadable": Unreadable,
    "incomparable": Incomparable,
    "path": lambda: Path("/nowhere/at/all"),
    "error": lambda: ValueError("given"),
    "function": lambda: lambda *a, **k: None,
    "linear": lambda: torch.nn.Linear(2, 2),
    "tensor": lambda: torch.tensor([1.0, math.nan]),
    "empty tensor": lambda: torch.empty(0),
    "meta tensor": lambda: torch.empty(2, device="meta"),
    "complex tensor": lambda: torch.tensor([1j, 2j]),
    "bool tensor": lambda: torch.tensor([True, False]),
    "tensor of no axis": lambda: torch.tensor(-3),
    "wide tensor": lambda: torch.zeros(3, 4, 5),
    "sparse tensor": lambda: torch.eye(3).to_sparse(),
    "array": lambda: np.array([1, 2]),
    "array of objects": lambda: np.array([None, "a"], dtype=object),
    "array of texts": lambda: np.array(["a", "b"]),
    "array of structures": lambda: np.zeros(2, dtype=[("a", "f4")]),
    "series": lambda: pd.Series([1, 2]),
    "table": lambda: pd.DataFrame({"a": [1]}),
}

VALUES = {**NUMBERS, **TEXTS, **SEVERAL, **THINGS}


class TooLongError(BaseException):
    """A call is not over in time."""


@contextlib.contextmanager
def alarm(seconds: float = SECONDS) -> Iterator[None]:
    """Within, a `TooLongError` is raised after so long; in the main thread alone, as signals are."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TooLongError("".join(traceback.format_stack(frame)[-6:]))

    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault(error: BaseException, keywords: bool = False) -> str:
    """Why an exception is no answer to a wrong argument; empty where it is one.

    Args:
        keywords: a keyword that the function does not have was given: Python's own TypeError answers that.
    """
    if isinstance(error, HftaError):
        text = error.message
        return "" if text.isprintable() and len(text) < 5000 else f"a message that can't be shown: {text[:300]!r}"
    if isinstance(error, IndexError) and str(error).startswith("member "):  # documented: as of a list
        return ""
    if isinstance(error, RuntimeError) and "Error(s) in loading state_dict" in str(error):  # documented: torch's own
        return ""
    if type(error).__name__ == "TypeCheckError":  # of the checks that tests put before the package's own
        return ""
    if isinstance(error, StopIteration | StopAsyncIteration):
        return "an iterator ended"
    if keywords and isinstance(error, TypeError) and "keyword argument" in str(error):
        return ""
    where = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(where))
    return f"{type(error).__name__}: {str(error)[:200]} ({places})"


def drawn(pick: random.Random) -> tuple[str, Any]:
    """A value and its name."""
    name = pick.choice(list(VALUES))
    return name, VALUES[name]()
