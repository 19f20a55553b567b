"""Which code is the user's own, and the line of it that an exception came from."""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import re
import site
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_INSTALLED_IN = frozenset({"site-packages", "dist-packages"})
_LONGEST = 120
_CHAIN = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_UNKNOWN = object()
_MODULES = os.path.join(os.sep, "torch", "nn", "")
_ENTRY = "run_with_retry"
"""The function of the engine that calls the model: what called it is the caller's, not the model's."""


@dataclass(frozen=True)
class UserFrame:
    """A line of the user's own code.

    Attributes:
        file: as Python names it; of a notebook's cell a name that its kernel alone knows.
        line: from 1.
        function: that it is in.
        source: the line itself; empty where it can't be read, as in a process other than the cell's.
    """

    file: str
    line: int
    function: str
    source: str = ""

    @property
    def place(self) -> str:
        """For people: ``model.py:12``, or ``cell In[3], line 12`` in the notebook that it is in."""
        cell = _cell(self.file)
        return f"cell {cell}, line {self.line}" if cell else f"{_near(self.file)}:{self.line}"

    @property
    def code(self) -> str:
        """The source of the line, looked for again where it is not known; empty where it can't be read."""
        found = self.source or linecache.getline(self.file, self.line).strip()
        return found if len(found) <= _LONGEST else found[: _LONGEST - 1] + "…"

    def __str__(self) -> str:
        return f"{self.place}: {self.code}" if self.code else f"{self.place}, in {self.function}"


def user_frame(error: BaseException) -> UserFrame | None:
    """The innermost line of the user's own code in an exception's traceback, or in that of its cause.

    Returns:
        None where there is none.
    """
    seen: BaseException | None = error
    found = None
    while seen is not None:
        for frame in traceback.extract_tb(seen.__traceback__):
            if is_own(frame.filename):
                found = UserFrame(frame.filename, frame.lineno or 0, frame.name, frame.line or "")
        seen = seen.__cause__
    return found


def described(error: BaseException, here: types.FrameType | None = None) -> str:
    """Where an exception came from, for its message: the user's own line, and what the names in it stand for.

    Where no line is the user's, as in a model of torch's modules alone, only what the innermost of them was given.

    Args:
        error: the exception.
        here: where it was caught, if the user's forward may have called that.

    Returns:
        ``model.py:12: return self.out(h), where h [12, 8], self.out.weight [1, 6]``; empty where nothing is known.
    """
    traces: list[tuple[types.FrameType, int, int]] = []
    seen: BaseException | None = error
    while seen is not None:
        trace = seen.__traceback__
        while trace is not None:
            traces.append((trace.tb_frame, trace.tb_lineno, trace.tb_lasti))
            trace = trace.tb_next
        seen = seen.__cause__
    own = [one for one in traces if is_own(one[0].f_code.co_filename)]
    while not own and here is not None and here.f_code.co_name != _ENTRY:
        if is_own(here.f_code.co_filename):
            own = [(here, here.f_lineno, here.f_lasti)]
        here = here.f_back
    found = own or [one for one in traces if _MODULES in one[0].f_code.co_filename]
    if not found:
        return ""
    frame, number, last = found[-1]
    values = ", ".join(_described(_names(frame, number, last), isinstance(error, IndexError)))
    code = frame.f_code
    line = str(UserFrame(code.co_filename, number, code.co_name)) if own else ""
    return ", ".join(filter(None, [line, f"where {values}" if values else ""]))


def _names(frame: types.FrameType, number: int, last: int) -> dict[str, Any]:
    """The names in the expression that raised, and what they stand for."""
    line = linecache.getline(frame.f_code.co_filename, number)
    begins, ends, begin, end = list(frame.f_code.co_positions())[last // 2]
    if begins == ends == number and begin is not None and end is not None:
        line = line.encode()[begin:end].decode(errors="ignore")
    found: dict[str, Any] = {}
    for name in dict.fromkeys(_CHAIN.findall(line)):
        head, *rest = name.split(".")
        value = frame.f_locals.get(head, frame.f_globals.get(head, _UNKNOWN))
        for number, attribute in enumerate(rest):
            inner = _attribute(value, attribute)
            if inner is _UNKNOWN:  # a method's name, say: what it is called on is meant
                name, rest = ".".join([head, *rest[:number]]), []
                break
            value = inner
        found.setdefault(name, value)
    return found


def _attribute(value: Any, name: str) -> Any:
    """An attribute that is read without running code of the object's."""
    for held in ("__dict__", "_parameters", "_buffers", "_modules"):
        inner = getattr(value, held, None)
        if isinstance(inner, dict) and name in inner:
            return inner[name]
    return _UNKNOWN


def _described(names: Mapping[str, Any], ranges: bool) -> Iterator[str]:
    modules_last = sorted(names.items(), key=lambda pair: hasattr(pair[1], "_parameters"))
    for name, value in modules_last:
        parameters = getattr(value, "_parameters", None)
        if isinstance(parameters, dict):
            yield from _described({f"{name}.{k}": v for k, v in parameters.items() if v is not None}, False)
        elif isinstance(getattr(value, "shape", None), tuple) and hasattr(value, "dtype"):
            yield f"{name} {_shape(value, ranges)}"
        elif value is None:
            yield f"{name} None"
        elif isinstance(value, Mapping):
            yield f"{name} a dict of {', '.join(map(str, value))}"
        elif isinstance(value, tuple | list) and value and all(hasattr(one, "shape") for one in value):
            yield f"{name} a {type(value).__name__} of {', '.join(_shape(one, ranges) for one in value)}"


def _shape(value: Any, ranges: bool) -> str:
    dtype = str(value.dtype).removeprefix("torch.")
    text = f"{list(value.shape)}" + (f" {dtype}" if dtype != "float32" else "")
    if ranges and "int" in dtype:
        with contextlib.suppress(Exception):  # within a transform of torch.func there are no values
            text += f" from {int(value.min())} to {int(value.max())}"
    return text


def is_installed(path: str) -> bool:
    """True if a file belongs to Python or to an installed package; those installed in editable mode don't count."""
    return path.startswith(installed()) or not _INSTALLED_IN.isdisjoint(path.split(os.sep))


def is_own(file: str) -> bool:
    path = os.path.abspath(file)
    if file.startswith("<") and not file.startswith("<ipython-input"):
        return False
    return not path.startswith(_PACKAGE) and not is_installed(path)


@functools.cache
def installed() -> tuple[str, ...]:
    """The folders of Python's own modules and of installed packages, each with a separator at its end."""
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(os.path.join(os.path.abspath(place), "") for place in places if place)


def _cell(file: str) -> str:
    """The name of the notebook's cell that has this file name; empty where it is no cell of this process."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    compiler: Any = getattr(None if get_shell is None else get_shell(), "compile", None)
    named = getattr(compiler, "format_code_name", lambda _: None)(file)
    return "" if named is None else str(named[1])


def _near(file: str) -> str:
    """The path, relative if it is below the current directory."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
