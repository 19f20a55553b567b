"""Compares the source tree with the tables of `tests/layering.py`."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.layering import (
    ANYWHERE,
    AT_TOP,
    FACE,
    FACE_ONLY,
    LOCKS,
    MAY_PRINT,
    PACKAGE,
    SINGLE_MODULES,
    TABLE,
    WITHOUT_TORCH,
)
from tests.sources import tree as tree_of


@dataclass(frozen=True)
class Import:
    """One imported module: its dotted name, what is taken from it, where, and whether importing the file runs it."""

    module: str
    names: tuple[str, ...]
    line: int
    at_top: bool


def violations(root: Path, table: dict[str, set[str]] | None = None) -> list[str]:
    """All breaches in the package at `root`, each as ``file:line: what``."""
    table = TABLE if table is None else table
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        part = _part(".".join(relative.with_suffix("").parts), table)
        where = relative.as_posix()
        if part not in table:
            found.append(f"{where}:1: {part} is not in the table")
            continue
        tree = tree_of(path)
        breaches = [*_layers(part, relative, tree, root, table), *_packages(part, relative, tree), *_prints(part, tree)]
        found += [f"{where}:{line}: {what}" for line, what in dict.fromkeys(breaches)]
    return found


def _part(name: str, table: Collection[str]) -> str:
    """The part that a module belongs to, the innermost; its room if none is in the table."""
    if name == "__init__":
        return FACE
    parts = name.split(".")
    inner = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((part for part in inner if part in table), parts[0])


def _layers(
    part: str, relative: Path, tree: ast.Module, root: Path, table: dict[str, set[str]]
) -> Iterator[tuple[int, str]]:
    exported = _exported(root / "__init__.py")
    for found in _imports(tree, relative):
        for target, inner, names in _targets(found, root, exported if FACE in table[part] else set(), table):
            if target == part:
                continue
            if target not in table[part]:
                yield found.line, f"{part} may not import {target}"
            elif not _single_modules(part, target, found):
                yield found.line, f"{part} may not import all of {target}"
            elif (part, target) in FACE_ONLY and (inner or any(n.startswith("_") for n in names)):
                yield found.line, f"{part} may import the public face of {target} only"


def _single_modules(part: str, target: str, found: Import) -> bool:
    """False if a part imports more of another than `SINGLE_MODULES` allows."""
    allowed = SINGLE_MODULES.get((part, target))
    reached = {f"{found.module}.{name}" for name in found.names} or {found.module}
    return allowed is None or found.module in allowed or reached <= allowed


def _targets(
    found: Import, root: Path, exported: set[str], table: dict[str, set[str]]
) -> Iterator[tuple[str, bool, tuple[str, ...]]]:
    """The parts that an import reaches: (part, whether a module within it, names taken)."""
    package, _, module = found.module.partition(".")
    if package != PACKAGE:
        return
    rooms = {*(part.partition(".")[0] for part in table), *(p.name.removesuffix(".py") for p in root.iterdir())}
    for name in found.names or ("",):
        whole = ".".join(filter(None, [module, name]))
        if not module and (name not in rooms or name in exported):
            yield FACE, False, ()
            continue
        part = _part(whole, table)
        yield part, len(module) > len(part), (name,) if part != whole else ()


def _exported(face: Path) -> set[str]:
    """What `__all__` lists; some of it has the name of a part (`data`)."""
    for node in tree_of(face).body if face.exists() else ():
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return set(ast.literal_eval(node.value))
    return set()


def _packages(part: str, relative: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    for found in _imports(tree, relative):
        reached = {found.module, *(f"{found.module}.{name}" for name in found.names)}
        if found.module == "threading" and (set(found.names) or _used_of("threading", tree)) <= LOCKS:
            continue
        for package, parts in ANYWHERE.items():
            if part not in parts and any(_within(module, package) for module in reached):
                yield found.line, f"{part} may not import {package}"
        for package, parts in AT_TOP.items():
            if found.at_top and part not in parts and _within(found.module, package):
                yield found.line, f"{part} may not import {package} at the top"
        if part in WITHOUT_TORCH and _within(found.module, "torch"):
            yield found.line, f"{part} does without torch"
        if part == "cli" and found.at_top and _within(found.module, "torch"):
            yield found.line, "cli may not import torch at the top"


def _used_of(module: str, tree: ast.Module) -> set[str]:
    """Names that a file takes from a module as attributes; "*" where it has the module under another name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(a.name == module and a.asname for a in node.names):
            found.add("*")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == module:
            found.add(node.attr)
    return found


def floors(root: Path, room: str) -> int:
    """The longest chain of imports between the files of a room, without those of the folders in it."""
    prefix = f"{PACKAGE}.{room}."
    below: dict[str, set[str]] = {}
    for path in (root / room).glob("*.py"):
        found = list(_imports(tree_of(path), path.relative_to(root)))
        names = {prefix + name for one in found if one.module + "." == prefix for name in one.names}
        below[prefix + path.stem] = {one.module for one in found} | names
    height: dict[str, int] = {}
    for file in graphlib.TopologicalSorter(below).static_order():
        height[file] = 1 + max((height[other] for other in below[file]), default=0) if file in below else 0
    return max(height.values())


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _prints(part: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree) if part not in MAY_PRINT else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield node.lineno, f"{part} may not print"


def _imports(tree: ast.Module, relative: Path) -> Iterator[Import]:
    at_top = set(_run_on_import(tree))
    for node in ast.walk(tree):
        top = node in at_top
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), node.lineno, top)
        elif isinstance(node, ast.ImportFrom):
            yield Import(_absolute(node, relative), tuple(a.name for a in node.names), node.lineno, top)
        elif isinstance(node, ast.Call) and _is_import_function(node.func) and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield Import(name.value, (), node.lineno, False)


def _run_on_import(tree: ast.Module) -> Iterator[ast.AST]:
    """The statements that importing the file runs: not those of functions, nor those for type checkers alone."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)


def _is_import_function(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in {"import_module", "__import__"}


def _absolute(node: ast.ImportFrom, relative: Path) -> str:
    """The dotted name of what a ``from`` statement names, dots at the front resolved."""
    if not node.level:
        return node.module or ""
    here = [PACKAGE, *relative.parts[:-1]]
    base = here[: len(here) - (node.level - 1)]
    return ".".join([*base, *filter(None, [node.module])])
