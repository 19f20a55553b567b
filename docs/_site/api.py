"""Entries of the reference for public names, as directives of Sphinx's autodoc.

``<!-- generated: api hfta_nb.optim -->`` stands for all of that module's ``__all__`` that no page of the reference
names itself. What a page names is in an ``eval-rst`` block: ``.. autofunction:: hfta_nb.fuse``.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import re
import types

from docs._site.layout import ROOT

MODULES = (
    *("hfta_nb", "hfta_nb.optim", "hfta_nb.optim.lr_scheduler", "hfta_nb.data", "hfta_nb.figures", "hfta_nb.ui"),
    *(
        "hfta_nb.study.callbacks",
        "hfta_nb.sklearn",
        "hfta_nb.errors",
        "hfta_nb.records.events",
        "hfta_nb.models.losses",
        "hfta_nb.models.member_losses",
        "hfta_nb.models.metrics",
        "hfta_nb.study.executors",
        "hfta_nb.workers.pools",
        "hfta_nb.workers.fleet",
        "hfta_nb.workers.distributed",
    ),
)
"""Modules that are documented; those that define no ``__all__`` by their public functions and classes."""

REFERENCE = ROOT / "docs" / "reference"
_ENTRY = re.compile(r"^ *\.\. auto(?:class|function|exception|data)::\s+([\w.]+)$", re.M)
_WITHOUT_MEMBERS = ("hfta_nb.optim.", "hfta_nb.records.events.", "hfta_nb.errors.")
"""Where classes have the members of their base, which has an entry of its own."""


def public(module: str) -> list[str]:
    """The public names of a module."""
    found = importlib.import_module(module)
    listed = getattr(found, "__all__", None)
    if listed is None:
        own = [n for n, v in vars(found).items() if getattr(v, "__module__", "").startswith(module)]
        listed = [n for n in own if not n.startswith("_")]
    return [n for n in listed if not isinstance(getattr(found, n), types.ModuleType)]


@functools.cache
def named() -> frozenset[str]:
    """What the pages of the reference name themselves."""
    texts = (path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md"))
    return frozenset(name for text in texts for name in _ENTRY.findall(text))


@functools.cache
def named_objects() -> tuple[object, ...]:
    """The objects of those names."""
    return tuple(resolve(name) for name in sorted(named()))


def resolve(name: str) -> object:
    """The object of a dotted name."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[length:], found)
    raise ModuleNotFoundError(name)


def rest(module: str) -> list[str]:
    """Public names of a module that no page names itself, under this or another module's name."""
    found = importlib.import_module(module)
    objects = named_objects()
    return [n for n in public(module) if not any(getattr(found, n) is o for o in objects)]


def entries(module: str) -> str:
    """The directives of `rest`."""
    found = importlib.import_module(module)
    names = sorted(rest(module), key=lambda name: not callable(getattr(found, name)))  # constants last
    lines = [entry(f"{module}.{name}", getattr(found, name)) for name in names]
    return "```{eval-rst}\n" + "\n".join(lines) + "\n```\n"


def entry(name: str, thing: object) -> str:
    """The directive of one name."""
    if inspect.isclass(thing):
        kind = "exception" if issubclass(thing, Exception) else "class"
        members = "" if name.startswith(_WITHOUT_MEMBERS) else "   :members:\n"
        return f".. auto{kind}:: {name}\n{members}"
    if callable(thing) and hasattr(thing, "__name__"):
        return f".. autofunction:: {name}\n"
    # Not autodata, which would show the docstring of the value's type.
    shown = f"{{{', '.join(map(repr, sorted(thing)))}}}" if isinstance(thing, frozenset) else repr(thing)
    value = "" if " at 0x" in shown else f"   :value: {shown}\n"
    return f".. py:data:: {name}\n{value}\n   {comment(name)}\n"


def comment(name: str) -> str:
    """The string below the assignment of a constant, on one line; empty where there is none."""
    module, _, last = name.rpartition(".")
    for path in sorted((ROOT / module.replace(".", "/")).parent.rglob("*.py")):
        if f".{path.relative_to(ROOT).with_suffix('').as_posix().replace('/', '.')}".startswith(f".{module}"):
            body = ast.parse(path.read_text(encoding="utf-8")).body
            for above, below in itertools.pairwise(body):
                targets = getattr(above, "targets", [getattr(above, "target", None)])
                if any(isinstance(t, ast.Name) and t.id == last for t in targets) and isinstance(below, ast.Expr):
                    return " ".join(str(ast.literal_eval(below.value)).split())
    return ""
