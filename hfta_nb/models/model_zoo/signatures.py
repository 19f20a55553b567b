"""The axes of a constructor: the parameters of its signature."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from hfta_nb.errors import FamilyError
from hfta_nb.models.recipes import FACTS
from hfta_nb.models.training_axes import TRAINING_AXES
from hfta_nb.search.grid import AxisSpec

FACT_NAMES: dict[str, str] = {
    **{name: name for name in FACTS if name != "context"},
    **dict.fromkeys(("num_labels", "n_classes"), "num_classes"),
    **dict.fromkeys(("in_chans", "num_channels"), "in_channels"),
    "img_size": "image_size",
}
"""Parameters that the data fills in, each with its fact."""

WITHOUT: dict[str, Any] = {
    **dict.fromkeys(("weights", "weights_backbone")),
    **dict.fromkeys(("pretrained", "pretrained_backbone", "progress"), False),
}
"""Parameters of a constructor that are never an axis, and their values: nothing is downloaded. Weights of timm and
transformers are an axis of their own (`pretrained.axes`)."""

NO_AXES = frozenset({*WITHOUT, "device", "dtype", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path"})


@dataclass
class Parameters:
    """The usable parameters of a signature."""

    path: str
    of: Any
    leave_out: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.axes: dict[str, AxisSpec] = {}
        self.facts: dict[str, str] = {}
        self.lacking: list[str] = []
        found = _signature(self.of)
        parameters = [] if found is None else list(found.parameters.values())
        self.open = found is None or any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.names = [p.name for p in named]
        for parameter in named:
            if parameter.name not in self.leave_out and parameter.name not in NO_AXES:
                self._take(parameter)
        self.required = tuple(p.name for p in named if p.default is p.empty)

    def _take(self, parameter: inspect.Parameter) -> None:
        name = parameter.name
        needed = parameter.default is parameter.empty
        default = None if needed else parameter.default
        if name in FACT_NAMES:
            self.facts.setdefault(FACT_NAMES[name], name)
            return
        kind = _kind(parameter.annotation, default)
        if kind is not None and name not in TRAINING_AXES and is_plain(default):
            self.axes[name] = AxisSpec(name, kind[0], default, kind[1])
        elif needed:
            self.lacking.append(name)

    def add_hidden(self, more: Parameters) -> None:
        """Add parameters that are passed on through ``**kwargs``; the constructor sets their defaults."""
        self.facts = {**more.facts, **self.facts}
        hidden = {k: v for k, v in more.axes.items() if k not in more.required}
        self.axes = {**{k: AxisSpec(k, v.type, None, v.choices) for k, v in hidden.items()}, **self.axes}

    def check(self) -> None:
        if self.lacking:
            raise FamilyError(
                "takes arguments that can't be axes",
                where=self.path,
                got=", ".join(self.lacking),
                accepted="numbers, booleans, strings and tuples of these",
                remedy="write a function that builds it and make that a family with @hfta_nb.family",
            )


def _signature(of: Any) -> inspect.Signature | None:
    for evaluated in (True, False):
        try:
            return inspect.signature(of, eval_str=evaluated)
        except NameError:
            continue
        except (TypeError, ValueError):
            return None
    return None


def returned(function: Any) -> type[nn.Module] | None:
    """The module class in a function's return annotation."""
    found = _signature(function)
    kind = None if found is None else found.return_annotation
    if isinstance(kind, str):  # the annotation has a name that can't be resolved there
        kind = getattr(inspect.getmodule(function), kind, None)
    return kind if isinstance(kind, type) and issubclass(kind, nn.Module) else None


_TYPES = {int: "int", float: "float", bool: "bool", str: "str"}


def _kind(annotation: Any, default: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Type and choices of an axis; None if its values can't be written."""
    if annotation is inspect.Parameter.empty or isinstance(annotation, str):
        return _TYPES.get(type(default), "any"), ()
    if annotation in _TYPES:
        return _TYPES[annotation], ()
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "any", inner
    if origin in (typing.Union, types.UnionType):
        kinds = [k for k in (_kind(a, default) for a in inner if a is not type(None)) if k is not None]
        if not kinds:
            return None
        if {k[0] for k in kinds} == {"float", "int"}:
            return "float", ()
        none_too = type(None) in inner and default is not None  # which a numeric axis would refuse
        return kinds[0] if len(kinds) == 1 and not none_too else ("any", ())
    plain = annotation in (tuple, list, Any) or origin in (tuple, list, Sequence)
    return ("any", ()) if plain else None


def is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def first_line(of: Any) -> str:
    lines = (inspect.getdoc(of) or "").strip().splitlines()
    return lines[0].strip() if lines else ""
