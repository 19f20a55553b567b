"""No function of the package exceeds 60 lines, from ``def`` to the end of the body, without decorators; no file 400."""

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


ROOT = Path(__file__).resolve().parent.parent / "hfta_nb"

MOST, MOST_OF_A_FILE = 60, 400


def test_no_function_is_longer_than_a_screen() -> None:
    lengths = functions(ROOT)
    assert len(lengths) > 1000
    assert [name for name, lines in lengths.items() if lines > MOST] == []


def test_no_file_has_outgrown_its_idea() -> None:
    files = [path for path in ROOT.rglob("*") if path.suffix in (".py", ".js")]
    assert {path.suffix for path in files} == {".py", ".js"}
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_OF_A_FILE} == {}


def test_lines_are_counted_to_the_end_of_the_body(tmp_path: Path) -> None:
    first = "@decorated\ndef f(\n    x,\n):\n    def g():\n        return x\n    return g\n"
    text = f"{first}\n\nclass A:\n    async def f(self): ...\n"
    (tmp_path / "part.py").write_text(text, encoding="utf-8")
    assert functions(tmp_path) == {"part.py: f": 6, "part.py: f.g": 2, "part.py: A.f": 1}
