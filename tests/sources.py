"""Parsed source files, each once however many tests look at it."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


def tree(path: Path) -> ast.Module:
    """The syntax tree of a file. It is shared: it must not be changed."""
    return _parsed(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def _parsed(text: str, name: str) -> ast.Module:
    return ast.parse(text, name)
