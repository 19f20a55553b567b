"""Python source of functions, classes and values, with all that they refer to, for a file that stands alone."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import enum
import functools
import inspect
import linecache
import math
import re
import symtable
import sys
import textwrap
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hfta_nb.errors import StudyError
from hfta_nb.errors.user_frames import is_own

_PACKAGE = __name__.partition(".")[0]
_WIDTH = 110
_PLAIN = (int, str, bytes, bool, complex, type(None), type(...))


class Source:
    """The upper part of a script: imports, and definitions in the order in which they need one another.

    Code of the user's own and of this package is copied; other packages are imported.

    Args:
        known: by the object, the source that stands for it: one definition of a function or class.
        reserved: names that the rest of the script defines.
    """

    def __init__(self, known: Mapping[Any, str] = {}, reserved: Sequence[str] = ()) -> None:
        self.definitions: list[str] = []
        self._known = {id(value): text for value, text in known.items()}
        self._bound: dict[str, Any] = dict.fromkeys(reserved, object())
        self._modules: dict[str, str] = {}
        self._imported: dict[str, set[str]] = {}

    @property
    def text(self) -> str:
        """The source."""
        lines = [f"import {m}" + ("" if m == name else f" as {name}") for name, m in self._modules.items()]
        lines += [f"from {module} import {', '.join(sorted(n))}" for module, n in self._imported.items()]
        ordered = sorted(lines, key=lambda line: (line.startswith("from"), line.split()[1]))
        return re.sub(r"\n{4,}", "\n\n\n", "\n".join([*ordered, "", *self.definitions]) + "\n")

    def expression(self, value: Any, where: str) -> str:
        """Source of an expression that has this value.

        Args:
            value: numbers, text, containers, functions, classes, dataclasses, losses of torch.
            where: what has it, for errors.

        Raises:
            StudyError: it can't be written.
        """
        inner = functools.partial(self.expression, where=where)
        if id(value) in self._known:
            return self.reference(value, where)
        if isinstance(value, enum.Enum):
            return f"{self.reference(type(value), where)}.{value.name}"
        if type(value) in _PLAIN:
            return repr(value)
        if type(value) is float:
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        if isinstance(value, torch.dtype | torch.device):
            self.bind("torch", torch, where)
            return f"torch.{value!r}" if isinstance(value, torch.device) else repr(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return _call(self.reference(type(value), where), map(inner, value), {})
        if type(value) in (tuple, list):
            return _listed("[]" if isinstance(value, list) else "()", [inner(v) for v in value])
        if type(value) is dict:
            return _listed("{}", [f"{inner(k)}: {inner(v)}" for k, v in value.items()])
        if type(value) in (set, frozenset):
            return f"{type(value).__name__}({_listed('[]', sorted(map(inner, value)))})"
        if isinstance(value, functools.partial):
            named = {k: inner(v) for k, v in value.keywords.items()}
            return _call(self.reference(functools.partial, where), map(inner, (value.func, *value.args)), named)
        if isinstance(value, types.ModuleType):
            name = value.__name__.rpartition(".")[2]
            self.bind(name, value, where)
            return name
        if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
            return self.reference(value, where)
        if dataclasses.is_dataclass(value):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
            return _call(self.reference(type(value), where), (), {k: inner(v) for k, v in fields.items()})
        if isinstance(value, nn.Module) and _is_plain(value):
            return _call(self.reference(type(value), where), (), {k: inner(v) for k, v in _arguments(value).items()})
        raise _refused(where, value)

    def named(self, value: Any, name: str, taken: Collection[str], where: str) -> str:
        """The name of a value: its own, or else this one; so where its own is one of those that are taken."""
        shown = self.expression(value, where)
        if shown.isidentifier() and shown not in taken:
            return shown
        self.bind(name, value, where)
        return name

    def reference(self, value: Any, where: str) -> str:
        """The name of a function or class, which is defined or imported.

        Raises:
            StudyError: it has no source, or its name stands for something else.
        """
        if id(value) in self._known:
            name = self._name_of(value)
            self.bind(name, value, where)
            return name
        outer, _, name = str(value.__qualname__).replace("<locals>.", "").rpartition(".")
        if name == "<lambda>":
            raise _refused(where, value, "write a function with def")
        if outer and isinstance(value, type) and "<locals>" not in value.__qualname__:
            around = functools.reduce(getattr, outer.split("."), sys.modules[value.__module__])
            return f"{self.reference(around, where)}.{name}"
        if inspect.ismethod(value) or isinstance(getattr(value, "__self__", None), nn.Module):
            raise _refused(where, value, "write a function that stands alone")
        self.bind(name, value, where)
        return name

    def bind(self, name: str, value: Any, where: str) -> None:
        """See that a name has this value.

        Raises:
            StudyError: it has another one, or the value can't be written.
        """
        if name in self._bound:
            plain = type(value) in (*_PLAIN, float) and repr(self._bound[name]) == repr(value)
            if plain or self._bound[name] is value:
                return
            raise StudyError("two things of one name can't be in one script", where=f"{where}, {name}",
                             got=value, remedy="rename one of them")  # fmt: skip
        self._bound[name] = value
        if id(value) in self._known and self._name_of(value) == name:
            self.definitions.append(f"\n{self._known[id(value)].strip()}\n\n")
        elif isinstance(value, types.ModuleType):
            self._take_module(name, value, where)
        elif (home := _importable(name, value)) is not None:
            self._imported.setdefault(home, set()).add(name)
        elif _written(value) and value.__name__ == name:
            self._define(value)
        else:
            text = self.expression(value, f"{where}, {name}")
            if text == name:
                raise _refused(where, value)
            self.definitions.append(f"{name} = {text}\n")

    def _name_of(self, value: Any) -> str:
        return str(ast.parse(self._known[id(value)]).body[0].name)  # type: ignore[attr-defined]

    def _take_module(self, name: str, module: types.ModuleType, where: str) -> None:
        if module.__name__.partition(".")[0] == _PACKAGE:
            raise StudyError(f"needs {_PACKAGE}", where=f"{where}, {name}", got=module.__name__,
                             accepted="a function that needs nothing of it")  # fmt: skip
        outer, _, last = module.__name__.rpartition(".")
        if outer and last == name:
            self._imported.setdefault(outer, set()).add(name)
        else:
            self._modules[name] = module.__name__

    def _define(self, value: Any) -> None:
        """Copy a function or class, after all that it names."""
        text, scope = _source(value), _scope(value)
        tree = ast.parse(text)
        edits = [*_decorators(tree, scope), *self._annotations(tree, scope, value.__name__, text)]
        text = _edited(text, edits)
        for name in _globals(_bare(tree, scope)):
            if name in scope:
                self.bind(name, scope[name], value.__name__)
            elif not hasattr(builtins, name):
                raise StudyError("is named, and not known here", where=f"{value.__name__}, {name}",
                                 remedy="define it where the function is defined")  # fmt: skip
        self.definitions.append(f"\n{text.rstrip()}\n\n")

    def _annotations(self, tree: ast.AST, scope: Mapping[str, Any], where: str, text: str) -> Iterator[_Edit]:
        """Names in annotations are imported; those of this package are replaced, as nothing evaluates them."""
        for node in _annotated(tree):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Subscript) and scope.get(getattr(inner.value, "id", "")) is typing.Annotated:
                    first = inner.slice.elts[0] if isinstance(inner.slice, ast.Tuple) else inner.slice
                    yield _Edit(inner, ast.get_source_segment(text, first) or "Any")
            for inner in (n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in scope):
                value = scope[inner.id]
                if typing.get_origin(value) is typing.Annotated:
                    yield _Edit(inner, getattr(typing.get_args(value)[0], "__name__", "object"))
                elif isinstance(value, types.ModuleType) or _importable(inner.id, value) is not None:
                    if value is not typing.Annotated:
                        self.bind(inner.id, value, where)
                elif str(getattr(value, "__module__", "")).startswith(_PACKAGE) and not _written(value):
                    yield _Edit(inner, "object")


@dataclasses.dataclass(frozen=True)
class _Edit:
    """Other text in the place of a node; of whole lines where there is none."""

    node: ast.AST
    text: str | None = None


def _refused(where: str, value: Any, remedy: str = "") -> StudyError:
    got = value if not callable(value) else getattr(value, "__qualname__", type(value).__name__)
    return StudyError("can't be written as Python source", where=where, got=got, remedy=remedy,
                      accepted="numbers, text, containers, functions and classes with source")  # fmt: skip


def _file(value: Any) -> str:
    """Of a function or class, the file that defines it; empty where there is none."""
    if isinstance(value, type):
        whole = getattr(sys.modules.get(value.__module__), "__file__", None)
        return str(whole or next((code.co_filename for code in _methods(value)), ""))
    code = getattr(inspect.unwrap(value), "__code__", None)
    return code.co_filename if code else ""


def _methods(value: type) -> list[types.CodeType]:
    """The code of its own functions, without that which decorators of classes generate."""
    found = [v.__code__ for v in vars(value).values() if isinstance(v, types.FunctionType)]
    return [code for code in found if code.co_filename != "<string>"]


def _written(value: Any) -> bool:
    """Whether a value is a function or class to be copied: the user's own, or of this package."""
    if not isinstance(value, type | types.FunctionType) and not hasattr(value, "__wrapped__"):
        return False
    if value.__module__ == "__main__" or value.__module__.partition(".")[0] == _PACKAGE:
        return True
    home = getattr(sys.modules.get(value.__module__), "__file__", None)
    return is_own(_file(value)) or (home is not None and is_own(home))


def _importable(name: str, value: Any) -> str | None:
    """The module of another package, the outermost one, that has the value under this name; None if there is none."""
    whole = getattr(value, "__module__", None) or ("torch" if getattr(torch, name, None) is value else "")
    if not isinstance(whole, str) or whole.partition(".")[0] == _PACKAGE or _written(value):
        return None
    parts = whole.split(".")
    for length in range(1, len(parts) + 1):
        home = ".".join(parts[:length])
        module = sys.modules.get(home)
        if home != "__main__" and getattr(module, name, None) is value:
            file = getattr(module, "__file__", None)
            return None if file and is_own(file) else home
    return None


def _source(value: Any) -> str:
    """The source of a function or class, which begins in the first column.

    Raises:
        StudyError: there is none.
    """
    bare: Any = inspect.unwrap(value)
    try:
        if not isinstance(bare, type):
            return textwrap.dedent(inspect.getsource(bare))
        # Before Python 3.13 a class of a notebook's cell is found by its methods alone.
        text = "".join(linecache.getlines(_file(bare))) or inspect.getsource(bare)
        found = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef) and n.name == bare.__name__]
        lines = {code.co_firstlineno for code in _methods(bare)}
        inside = [n for n in found if any(n.lineno <= line <= (n.end_lineno or 0) for line in lines)] or found
        first = min([inside[-1].lineno, *(d.lineno for d in inside[-1].decorator_list)])
        return textwrap.dedent("\n".join(text.splitlines()[first - 1 : inside[-1].end_lineno]) + "\n")
    except (OSError, TypeError, SyntaxError, IndexError) as error:
        raise StudyError("has no source that can be read", where=getattr(value, "__qualname__", ""), got=value,
                         remedy="define it in a file or in a cell of a notebook") from error  # fmt: skip


def _scope(value: Any) -> dict[str, Any]:
    """What the names in a function or class stand for: globals, and variables of functions around it."""
    bare: Any = inspect.unwrap(value)
    functions = [bare]
    scope: dict[str, Any] = {}
    if isinstance(bare, type):
        scope = vars(sys.modules[bare.__module__])
        functions = [f for f in map(_function, vars(bare).values()) if f is not None]
        functions = [f for f in functions if f.__module__ == bare.__module__]
    for function in functions:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        around = {name: cell.cell_contents for name, cell in cells if name != "__class__"}
        scope = {**scope, **function.__globals__, **around}
    return scope


def _function(attribute: Any) -> types.FunctionType | None:
    found = getattr(attribute, "__func__", None) or getattr(attribute, "fget", None) or attribute
    return found if isinstance(found, types.FunctionType) else None


def _decorators(tree: ast.Module, scope: Mapping[str, Any]) -> list[_Edit]:
    """Decorators of this package, to be taken out."""
    defined: Any = tree.body[0]
    return [_Edit(node) for node in defined.decorator_list if _of_package(node, scope)]


def _of_package(node: ast.expr, scope: Mapping[str, Any]) -> bool:
    root: Any = node.func if isinstance(node, ast.Call) else node
    while isinstance(root, ast.Attribute):
        root = root.value
    value = scope.get(getattr(root, "id", ""))
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return str(name).partition(".")[0] == _PACKAGE


def _annotated(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            found = getattr(node, name, None)
            if isinstance(found, ast.expr):
                yield found


def _bare(tree: ast.Module, scope: Mapping[str, Any]) -> str:
    """The source without annotations, and without decorators that are taken out."""
    defined: Any = tree.body[0]
    defined.decorator_list = [node for node in defined.decorator_list if not _of_package(node, scope)]
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(0)
        for name in ("annotation", "returns"):
            if not isinstance(node, ast.AnnAssign) and hasattr(node, name):
                setattr(node, name, None)
    return ast.unparse(tree)


def _globals(text: str) -> list[str]:
    """The names that some source refers to, and does not define itself."""
    found: dict[str, None] = {}

    def look(table: symtable.SymbolTable, top: bool) -> None:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() if not top else not symbol.is_assigned()):
                found[symbol.get_name()] = None
        for child in table.get_children():
            look(child, False)

    table = symtable.symtable(text, "<script>", "exec")
    look(table, True)
    own = {s.get_name() for s in table.get_symbols() if s.is_assigned()}
    return [name for name in found if name not in own]


def _edited(text: str, edits: list[_Edit]) -> str:
    """The text with other text in the place of nodes; those within a replaced node are left alone."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    last = (10**9, 0)
    for edit in sorted(edits, key=lambda e: _span(e.node), reverse=True):
        (first, begin), (end, stop) = _span(edit.node)
        within = any(e is not edit and _span(e.node)[0] <= (first, begin) and (end, stop) <= _span(e.node)[1]
                     for e in edits)  # fmt: skip
        if within or (end, stop) > last:
            continue
        last = first, begin
        if edit.text is None:
            del lines[first - 1 : end]
        else:
            lines[first - 1 : end] = [lines[first - 1][:begin] + edit.text.encode() + lines[end - 1][stop:]]
    return b"".join(lines).decode()


def _span(node: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _is_plain(module: nn.Module) -> bool:
    """Whether it is one of torch's, such as a loss, that holds numbers and words alone."""
    return type(module).__module__.startswith("torch.nn.") and not module.state_dict() and not [*module.children()]


def _arguments(module: nn.Module) -> dict[str, Any]:
    """What a module of torch without parameters was made with, as far as it is not as usual."""
    usual = inspect.signature(type(module)).parameters
    return {k: vars(module)[k] for k, p in usual.items() if k in vars(module) and vars(module)[k] != p.default}


def _call(function: str, given: typing.Iterable[str], named: Mapping[str, str]) -> str:
    return f"{function}({', '.join([*given, *(f'{k}={v}' for k, v in named.items())])})"


def _listed(brackets: str, parts: list[str]) -> str:
    """A container; on lines of their own where they would not fit on one."""
    body = ", ".join(parts) + ("," if brackets == "()" and len(parts) == 1 else "")
    if len(body) < _WIDTH:
        return f"{brackets[0]}{body}{brackets[1]}"
    return f"{brackets[0]}\n    " + ",\n    ".join(part.replace("\n", "\n    ") for part in parts) + f",\n{brackets[1]}"
