"""The package has no import cycles, and private names are used in their own folder only.

`circles` reads every import: those at the top, within functions, under ``TYPE_CHECKING`` and by ``importlib``. Python
also imports the packages that contain a module. These imports do not count, as a package's `__init__` imports its
modules.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from torch import nn

from tests.sources import tree as tree_of

_FOREIGN = {*vars(nn.Module()), *dir(nn.Module), "_schema", "_handle", "_computed"}
"""Private names of the classes of torch, Python and torchmetrics that have no public counterpart."""


class Private(NamedTuple):
    """A private name that a file takes from another folder."""

    file: str
    name: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.name}"


def circles(root: Path) -> list[list[str]]:
    """The sets of modules that import each other, largest first; each by names relative to the package at `root`."""
    found = [sorted(c) for c in _components(imports(root)) if len(c) > 1]
    return sorted(found, key=lambda c: (-len(c), c))


def imports(root: Path) -> dict[str, set[str]]:
    """By module of the package at `root`, the modules of it that it imports."""
    trees = {_name(path, root): (tree_of(path), path) for path in root.rglob("*.py")}
    graph: dict[str, set[str]] = {name: set() for name in trees}
    for name, (tree, path) in trees.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call | ast.Import | ast.ImportFrom):
                graph[name].update(_reached(node, root.name, package, trees.keys()))
        graph[name].discard(name)
    return graph


def _name(path: Path, root: Path) -> str:
    """The dotted name of a file below the package, which is itself the empty name."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def _reached(node: ast.AST, top: str, package: str, known: Collection[str]) -> Iterator[str]:
    """The modules that a statement or call imports: of ``from a import b`` the module b, or else a."""
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        first, _, rest = str(node.args[0].value).partition(".")
        if name in ("import_module", "__import__") and first == top and rest in known:
            yield rest
    elif isinstance(node, ast.Import):
        for alias in node.names:
            first, _, rest = alias.name.partition(".")
            if first == top and rest in known:
                yield rest
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            parts = [top, *package.split(".")] if package else [top]
            base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
        else:
            base = node.module or ""
        first, _, source = base.partition(".")
        if first != top:
            return
        for alias in node.names:
            inner = f"{source}.{alias.name}".lstrip(".")
            yield from [inner] if inner in known else [source] if source in known else []


def _components(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Strongly connected components.

    Source: Tarjan, "Depth-first search and linear graph algorithms", SIAM Journal on Computing, 1972.
    """
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            at = stack.index(name)
            found.append(set(stack[at:]))
            del stack[at:]

    for name in graph:
        if name not in number:
            visit(name)
    return found


def privates(root: Path) -> list[Private]:
    """Private names of one folder that files of another use, as attributes or by importing them."""
    files = {path: tree_of(path) for path in sorted(root.rglob("*.py"))}
    homes: dict[str, set[Path]] = {}
    for path, tree in files.items():
        for name in _defined(tree):
            homes.setdefault(name, set()).add(_folder(path, root))
    found = []
    for path, tree in files.items():
        where = path.relative_to(root).as_posix()
        for name, line in _used(tree):
            if name in homes and _folder(path, root) not in homes[name]:
                found.append(Private(where, name, line))
    return found


def _folder(path: Path, root: Path) -> Path:
    """A file's folder; a part that is one file is a folder of its own."""
    return path if path.parent == root else path.parent


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _FOREIGN


def _defined(tree: ast.Module) -> Iterator[str]:
    """Private names that a file defines: functions, methods, classes, variables and attributes."""
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _own(node):
            name = node.attr
        if _private(name):
            yield name


def _used(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _private(node.attr) and not _own(node):
            yield node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield from ((a.name, node.lineno) for a in node.names if _private(a.name))


def _own(node: ast.Attribute) -> bool:
    """Whether it is an attribute of the object itself, its class or its base class, or of a module of torch."""
    value = node.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id == "super"
    while isinstance(value, ast.Attribute):
        value = value.value
    if isinstance(node.value, ast.Name):
        return node.value.id in ("self", "cls", "torch", "_aten")
    return isinstance(value, ast.Name) and value.id == "torch"


ROOT = Path(__file__).resolve().parent.parent / "hfta_nb"

PRIVATE: list[str] = []
"""Where a private name is used outside of its folder, with the reason in a comment; the aim is none."""


def test_there_are_no_circles() -> None:
    assert circles(ROOT) == []


def test_private_names_stay_in_their_folder() -> None:
    assert [f"{found.file}: {found.name}" for found in privates(ROOT)] == PRIVATE


def _plant(tmp_path: Path, files: dict[str, str]) -> Path:
    root = tmp_path / "pkg"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("from pkg.b import y", "from pkg.a import x"),
        ("import pkg.b", "from pkg import a"),
        ("from . import b", "if TYPE_CHECKING:\n    from pkg.a import x"),
        ("from .b import y", "def f():\n    from .a import x"),
        ("from .b import y", "import importlib\nimportlib.import_module('pkg.a')"),
        ("from pkg.b import y", "from pkg.c import z"),
    ],
)
def test_a_planted_circle_is_found(tmp_path: Path, first: str, second: str) -> None:
    root = _plant(tmp_path, {"__init__.py": "", "a.py": first, "b.py": second, "c.py": "from pkg.a import x"})
    assert any({"a", "b"} <= set(circle) for circle in circles(root))


def test_a_package_may_import_what_is_in_it(tmp_path: Path) -> None:
    files = {"__init__.py": "from pkg.part import x", "part/__init__.py": "from .one import x", "part/one.py": "x = 1"}
    root = _plant(tmp_path, files)
    assert circles(root) == []
    assert imports(root) == {"": {"part"}, "part": {"part.one"}, "part.one": set()}


def test_a_private_name_of_another_folder_is_found(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "part/one.py": "class A:\n    def __init__(self):\n        self._x = 1\n    def f(self, other):\n"
        "        return other._x\n_y = 1",
        "part/two.py": "from pkg.part.one import A, _y\nA()._x",
        "third.py": "from pkg.part.one import _y\na._x\nself._x\na._unknown",
    }
    root = _plant(tmp_path, files)
    assert [str(found) for found in privates(root)] == ["third.py:1: _y", "third.py:2: _x"]
