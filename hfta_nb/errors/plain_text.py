"""Text from outside (names, paths, values, messages) where it is shown, or goes to another program.

A terminal obeys escape sequences, a reader is misled by letters that turn the direction of text or have no width, and a
spreadsheet computes what begins as a formula does.
"""

from __future__ import annotations

import os
from typing import Any

_FORMULA = frozenset("=+-@\t\r\n＝＋－＠")
"""What a cell begins with that a spreadsheet computes."""


def visible(text: object) -> str:
    """A text on one line, with control characters and others that can't be seen as Python writes them (``\\\\x1b``)."""
    found = str(text)
    return found if found.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in found)


def visible_lines(text: str) -> str:
    """The same for each line of a text."""
    return text if text.isprintable() else "\n".join(map(visible, text.split("\n")))


def cell(value: Any) -> Any:
    """A value for a table that spreadsheets open: texts visible, and as texts, with an apostrophe where they would be
    computed. Numbers stay numbers, whatever their sign."""
    if not isinstance(value, str):
        return value
    bare = value.lstrip()
    computed = len(value) > 1 and (value[0] in _FORMULA or (bare[:1] in _FORMULA and len(bare) > 1))
    return "'" + visible(value) if computed else visible(value)


def encodes(path: str | os.PathLike[str]) -> bool:
    """Whether a path is UTF-8, as databases, JSON and other programs want it."""
    try:
        os.fspath(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
