"""Which code is the user's own, and the line of it that an exception came from."""

from __future__ import annotations

import functools
import linecache
import os
import site
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
_INSTALLED_IN = frozenset({"site-packages", "dist-packages"})
_LONGEST = 120


@dataclass(frozen=True)
class OwnLine:
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


def own_line(error: BaseException) -> OwnLine | None:
    """The innermost line of the user's own code in an exception's traceback, or in that of its cause.

    Returns:
        None where there is none.
    """
    seen: BaseException | None = error
    found = None
    while seen is not None:
        for frame in traceback.extract_tb(seen.__traceback__):
            if is_own(frame.filename):
                found = OwnLine(frame.filename, frame.lineno or 0, frame.name, frame.line or "")
        seen = seen.__cause__
    return found


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
