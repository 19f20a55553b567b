"""What a function can change beside its result: attributes of objects, cells of closures, globals, containers.

A *holder* is one object with named values. All holders that a function reaches are found by a search through closures,
defaults, attributes and the globals that its code names (`reach`).
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

from torch import nn

GONE = type("GONE", (), {})
"""In place of a value that a member has deleted; a class, which copies as itself."""

_OWN = frozenset(nn.Module().__dict__)
_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "hfta_nb", "jaxtyping", "beartype"}) - {"__main__"}
"""Packages whose objects and functions keep nothing for a loss; torch's modules and the containers apart."""


class Holder:
    """One object with named values.

    Attributes:
        owner: the object.
        label: how a person reaches it.
        shown: who shows a member's values in it; see `FunctionStates`.
    """

    def __init__(self, owner: Any, label: str) -> None:
        self.owner, self.label = owner, label
        self.shown: Any = None

    def values(self) -> dict[Any, Any]:
        """The values by name."""
        return dict(self.owner.__dict__)

    def put(self, name: Any, value: Any) -> None:
        """Set a value, or remove it (`GONE`)."""
        if value is GONE:
            self.owner.__dict__.pop(name, None)
        else:
            self.owner.__dict__[name] = value

    def path(self, name: Any) -> str:
        """How a person reaches a value."""
        return f"{self.label}.{name}" if self.label else str(name)


class Slotted(Holder):
    """An object with slots."""

    def values(self) -> dict[Any, Any]:
        names = [name for kind in type(self.owner).__mro__ for name in slots(kind)]
        found = {name: getattr(self.owner, name) for name in names if hasattr(self.owner, name)}
        return found | dict(getattr(self.owner, "__dict__", {}))

    def put(self, name: Any, value: Any) -> None:
        if value is GONE:
            object.__delattr__(self.owner, name)
        else:
            object.__setattr__(self.owner, name, value)


class ModuleHolder(Holder):
    """A module: its attributes, buffers and parameters."""

    def values(self) -> dict[Any, Any]:
        own = {name: value for name, value in self.owner.__dict__.items() if name not in _OWN}
        return {**self.owner._buffers, **self.owner._parameters, **own}

    def put(self, name: Any, value: Any) -> None:
        module = self.owner
        homes = (module._buffers, module._parameters, module.__dict__)
        home = next((held for held in homes if name in held), module.__dict__)
        if value is GONE:
            home.pop(name, None)
        else:  # a member's row of a frozen parameter is a plain tensor, which `forward` reads all the same
            home[name] = value


class Entries(Holder):
    """A dict."""

    def values(self) -> dict[Any, Any]:
        return dict(self.owner)

    def put(self, name: Any, value: Any) -> None:
        if value is GONE:
            self.owner.pop(name, None)
        else:
            self.owner[name] = value

    def path(self, name: Any) -> str:
        return f"{self.label}[{name!r}]"


class FunctionAttributes(Entries):
    """The attributes of a function."""

    path = Holder.path


class Items(Holder):
    """The entries of a list, set or deque."""

    def values(self) -> dict[Any, Any]:
        return {"": list(self.owner)}

    def put(self, name: Any, value: Any) -> None:
        self.owner.clear()
        (self.owner.update if isinstance(self.owner, set) else self.owner.extend)(value)

    def path(self, name: Any) -> str:
        return self.label


class Cell(Holder):
    """A variable of a closure."""

    def values(self) -> dict[Any, Any]:
        try:
            return {"": self.owner.cell_contents}
        except ValueError:  # empty
            return {}

    def put(self, name: Any, value: Any) -> None:
        if value is GONE:
            del self.owner.cell_contents
        else:
            self.owner.cell_contents = value

    def path(self, name: Any) -> str:
        return self.label


class Context(Cell):
    """A context variable."""

    def values(self) -> dict[Any, Any]:
        try:
            return {"": self.owner.get()}
        except LookupError:
            return {}

    def put(self, name: Any, value: Any) -> None:
        self.owner.set(value)


class Scope(Entries):
    """Global variables, those that some code names."""

    path = Holder.path

    def __init__(self, owner: Any, label: str) -> None:
        super().__init__(owner, label)
        self.names: set[str] = set()

    def values(self) -> dict[Any, Any]:
        return {name: self.owner[name] for name in self.names if name in self.owner}


class ClassData(Holder):
    """The data of a class."""

    def values(self) -> dict[Any, Any]:
        return {k: v for k, v in vars(self.owner).items() if not k.startswith("__") and not is_code(v)}

    def put(self, name: Any, value: Any) -> None:
        if value is GONE:
            delattr(self.owner, name)
        else:
            setattr(self.owner, name, value)


class Arguments(Holder):
    """What a function or a partial holds as arguments."""

    def values(self) -> dict[Any, Any]:
        if isinstance(self.owner, functools.partial):
            return {**dict(enumerate(self.owner.args)), **self.owner.keywords}
        return {**dict(enumerate(self.owner.__defaults__ or ())), **(self.owner.__kwdefaults__ or {})}

    def put(self, name: Any, value: Any) -> None:
        partial = isinstance(self.owner, functools.partial)
        if not isinstance(name, int):
            (self.owner.keywords if partial else self.owner.__kwdefaults__)[name] = value
            return
        own = list(self.owner.args if partial else self.owner.__defaults__)
        own[name] = value
        if partial:
            held = self.owner.func, tuple(own), self.owner.keywords, self.owner.__dict__ or None
            self.owner.__setstate__(held)
        else:
            self.owner.__defaults__ = tuple(own)

    def path(self, name: Any) -> str:
        return f"argument {name} of {self.label}"


KNOWN: weakref.WeakValueDictionary[int, Holder] = weakref.WeakValueDictionary()
"""All holders by the ids of their owners, which they keep alive: each owner has one."""


class Owners(dict[int, Any]):
    """A memo for copying, in which the owners of all holders are their own copies."""

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self, key) or key in KNOWN

    def __getitem__(self, key: int) -> Any:
        return dict.__getitem__(self, key) if dict.__contains__(self, key) else KNOWN[key].owner

    def get(self, key: int, default: Any = None) -> Any:
        known = KNOWN.get(key)
        return dict.get(self, key, default if known is None else known.owner)


def slots(kind: type) -> list[str]:
    own = vars(kind).get("__slots__", ())
    return [n for n in ((own,) if isinstance(own, str) else own) if n not in ("__dict__", "__weakref__")]


def is_code(value: Any) -> bool:
    """True for what a class has in its dict beside data: functions, properties, other classes."""
    return callable(value) or isinstance(value, staticmethod | classmethod | property) or hasattr(value, "__get__")


def of_library(value: Any) -> bool:
    """True for what torch, Python and this package define."""
    return str(getattr(value, "__module__", None) or "").partition(".")[0] in _LIBRARIES
