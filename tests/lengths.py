"""The longest functions of a package, in lines from ``def`` to the end of the body, without decorators."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.sources import tree as tree_of


def functions(root: Path) -> dict[str, int]:
    """Lines of each function and method of the package at `root`, by ``file: name``; the longest of one name."""
    found: dict[str, int] = {}
    for path in sorted(root.rglob("*.py")):
        where = path.relative_to(root).as_posix()
        for name, node in _within(tree_of(path), ""):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found[f"{where}: {name}"] = max(lines, found.get(f"{where}: {name}", 0))
    return found


def _within(tree: ast.AST, outer: str) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    found = []
    for node in ast.iter_child_nodes(tree):
        name = outer
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{outer}.{node.name}" if outer else node.name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((name, node))
        found += _within(node, name)
    return found
