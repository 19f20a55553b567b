"""The architecture as a table, and a check of the source tree against it.

A *part* is a module or package directly under hfta_nb; `TABLE` lists the parts that it may import, at the top, inside
functions, for type checking only or through `importlib`. Further tables restrict imports of third-party packages. To
change the architecture, change the table first, in a separate commit.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.sources import tree as tree_of

PACKAGE = "hfta_nb"
FACE = "hfta_nb"
"""The public face: what `hfta_nb/__init__.py` exports."""

_RECIPE = {"errors", "accumulators", "directions", "events", "grid", "data", "augment", "losses", "metrics", "frechet"}
_RECIPE |= {"border", "phases", "training_axes"}
_TRAINING = {*_RECIPE, "array", "memory", "recipes", "optim", "step", "plan"}
_HEADLESS = {
    *_TRAINING,
    "model_zoo",
    "search",
    "store",
    "telemetry",
    "train",
    "distributed",
    "fleet",
    "history",
    "colors",
    "averages",
    "html",
    "own_lines",
    "regular_files",
    "pace",
    "plain_text",
    "tables",
    "border",
}

TABLE: dict[str, set[str]] = {
    "plain_text": set(),
    "errors": {"plain_text"},
    "regular_files": set(),
    "pace": set(),
    "border": {"errors"},
    "memory": {"errors"},
    "events": {"border", "errors"},
    "grid": {"border", "errors", "events", "plain_text"},
    "history": {"errors", "events", "plain_text"},
    "search": {"border", "errors", "events", "grid", "regular_files"},
    "averages": {"border", "errors", "events", "grid", "history"},
    "html": set(),
    "own_lines": set(),
    "broadcasts": {"errors", "members", "own_lines"},
    "tables": {"plain_text"},
    "store": {"errors", "events", "plain_text", "regular_files"},
    "telemetry": {"errors", "events"},
    "colors": {"errors", "events", "grid", "history"},
    "data": {"border", "errors", "members", "own_lines", "regular_files"},
    "augment": {"errors", "events", "grid", "data"},
    "members": {"border", "errors"},
    "kernels": {"errors", "regular_files", "members"},
    "rules": {"errors", "members", "kernels"},
    "eager": {"errors", "broadcasts", "own_lines", "members", "kernels", "rules"},
    "padded": {"errors", "members", "rules", "eager"},
    "replay": {"errors", "members", "kernels", "rules", "eager"},
    "array": {"border", "errors", "broadcasts", "html", "members", "kernels", "rules", "eager", "padded", "replay"},
    "optim": {"border", "errors", "kernels", "array"},
    "targets": set(),
    "losses": {"errors", "array", "targets"},
    "frechet": set(),
    "accumulators": {"errors", "broadcasts", "own_lines"},
    "directions": {"errors"},
    "metrics": {"border", "errors", "accumulators", "array", "directions", "losses", "frechet", "targets"},
    "phases": {"border", "errors", "grid", "losses"},
    "training_axes": {"errors", "events", "grid"},
    "recipes": {*_RECIPE, "html", "members"},
    "model_zoo": {*_RECIPE, "recipes"},
    "step": {"errors", "broadcasts", "kernels", "array", "optim", "losses", "metrics", "phases"},
    "plan": {"errors", "events", "grid", "data", "augment", "recipes", "phases", "array", "step"},
    "train": {*_TRAINING, "own_lines"},
    "fleet": {"errors", "events", "regular_files", "plan", "step", "train", "data", "tables", "distributed"},
    "processes": {"errors", "own_lines"},
    "crews": {"errors", "events", "data", "plan", "step", "train", "fleet", "processes", "distributed"},
    "distributed": {"errors", "members", "array", "metrics", "step", "processes"},
    "study": {*_HEADLESS, "crews", "figures"},
    "executors": {"study", "errors", "events", "history", "processes", "crews"},
    "figures": {"border", "errors", "events", "grid", "history", "colors", "averages"},
    "callbacks": {"errors", "events", "grid"},
    "ui": {
        "errors",
        "events",
        "grid",
        "history",
        "colors",
        "figures",
        "pace",
        "recipes",
        "regular_files",
        "model_zoo",
        "study",
        "executors",
        "own_lines",
        FACE,
    },
    "cli": {
        "errors",
        "events",
        "grid",
        "history",
        "pace",
        "plain_text",
        "regular_files",
        "store",
        "study",
        "executors",
        FACE,
    },
    FACE: {*_HEADLESS, "crews", "study", "executors", "callbacks"},
    "__main__": {"cli"},
}

SINGLE_MODULES = {
    ("optim", "kernels"): {"hfta_nb.engine.kernels.native.adam"},  # a kernel in C that updates flat tensors
    ("data", "members"): {"hfta_nb.engine.members.own_draws", "hfta_nb.engine.members.process_streams"},
    ("recipes", "members"): {"hfta_nb.engine.members.own_draws", "hfta_nb.engine.members.process_streams"},
    ("step", "kernels"): {"hfta_nb.engine.kernels.cuda_graphs"},  # captures whatever runs, an array or a plain module
}
"""(part, other): of these a part may import the named modules only. None of these modules knows of arrays."""

FACE_ONLY = {("ui", "model_zoo"), ("ui", "study"), ("ui", "executors"), ("cli", "study"), ("cli", "executors")}
"""(part, other): of these a part may import public names only, and from the package, not from a module within."""

JUPYTER = {"IPython", "ipywidgets", "anywidget", "traitlets", "ipykernel", "jupyterlab", "jupyter_client", "comm"}

AT_TOP: dict[str, set[str]] = {
    "pandas": {"tables"},
    "optuna": set(),
    "ray": set(),
    "grpc": set(),
    "sklearn": set(),
    "scipy": set(),
    "matplotlib": {"figures"},
}
"""Packages that are slow to import or optional: where each may be imported at the top of a module."""

_STARTING = {"data", "executors", "processes", "crews"}

ANYWHERE: dict[str, set[str]] = {
    **{name: {"ui"} for name in JUPYTER},
    "matplotlib": {"figures", "study", "ui"},
    "matplotlib.pyplot": set(),
    "pylab": set(),
    "rich": {"cli", "study"},  # study: the progress bar of `fit`
    "ray": {"crews"},
    "grpc": {"crews"},
    "pickle": {"processes", "crews"},
    "cloudpickle": {"processes"},
    "threading": {*_STARTING, "members", "kernels"},  # the last two: see docs/decisions/0020 and 0022
    "_thread": {"data", "executors"},
    "multiprocessing": {"data", "executors"},
    "torch.multiprocessing": {"data", "executors"},
    "concurrent.futures": {"data", "executors"},
    # kernels: a C compiler (docs/decisions/0014), trials (0024); distributed: the other devices of an array (0035)
    "subprocess": {*_STARTING, "kernels", "distributed"},
}
"""Packages that belong to some parts alone, however they are imported."""

LOCKS = {"Lock", "RLock"}
"""Locks start nothing: a part that is called from threads may have these of `threading`, and no more, anywhere."""

WITHOUT_TORCH = {
    "errors",
    "events",
    "grid",
    "history",
    "colors",
    "search",
    "averages",
    "html",
    "own_lines",
    "tables",
    "regular_files",
}
MAY_PRINT = {"cli", "ui"}


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
        part = _part(relative)
        where = relative.as_posix()
        if part not in table:
            found.append(f"{where}:1: {part} is not in the table")
            continue
        tree = tree_of(path)
        breaches = [*_layers(part, relative, tree, root, table), *_packages(part, relative, tree), *_prints(part, tree)]
        found += [f"{where}:{line}: {what}" for line, what in breaches]
    return found


def _part(relative: Path) -> str:
    first = relative.parts[0].removesuffix(".py")
    return FACE if first == "__init__" else first


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
    package, *rest = found.module.split(".")
    if package != PACKAGE:
        return
    if rest:
        yield rest[0], len(rest) > 1, found.names
        return
    parts = {*table, *(p.name.removesuffix(".py") for p in root.iterdir())} - exported
    for name in found.names or ("",):
        yield (name if name in parts else FACE), False, ()


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
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            todo += node.orelse
            continue
        todo += ast.iter_child_nodes(node)


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
