"""Copies of modules with other tensors in them, at a fraction of the cost of `copy.deepcopy`."""

from __future__ import annotations

import copy
import copyreg
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from types import BuiltinFunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager import attributes
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.arena import is_held_once
from hfta_nb.engine.members.copying import prepare

_ATOMS = frozenset(
    {
        *(int, float, complex, str, bytes, bool, type(None), type, range, slice),
        *(BuiltinFunctionType, ModuleType),
        *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
    }
)
"""Types whose values `copy.deepcopy` returns unchanged, or which are immutable."""

_EMPTIED = frozenset({dict, OrderedDict, set, list})

_SPECIAL = ("__deepcopy__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")
"""A class with one of these methods defines how it is copied."""


def plain_member(state: ArrayState, member: int, apart: bool = True) -> nn.Module:
    """Like `array[member]`; the tensors are adjacent in memory if members have one architecture.

    Args:
        apart: with a copy of what is held once, too; else it has the array's memory, which is not to be changed.
    """
    architectures = state.engine.architectures
    if architectures is not None:
        named = dict(state.tensors.named_parameters()), dict(state.tensors.named_buffers())
        plain = architectures.member(member, *named)
        attributes.put(plain, state.engine.attributes.of(member))
        return plain
    tensors: dict[str, Tensor] = {}
    for arena in (*state.parameter_arenas, *state.buffer_arenas):
        row = arena.data[member]
        row = row.clone() if apart or not is_held_once(arena.data) else row
        for span in arena.spans:
            # `.data`: writing into one tensor must not count as a change of the others. Empty tensors may grow in
            # place.
            own = row[span.start : span.stop].view(span.shape).data if span.numel else row.new_empty(span.shape)
            tensors[span.name] = own
    tensors |= {name: p.detach()[member].clone() for name, p in state.swapped().items()}
    replaced: dict[int, Any] = {}
    for name, p in state.skeleton.named_parameters():
        if name in tensors:
            replaced[id(p)] = nn.Parameter(tensors[name], requires_grad=p.requires_grad)
    replaced |= {id(b): tensors[name] for name, b in state.skeleton.named_buffers() if name in tensors}
    plain = copied_module(state.skeleton, replaced)
    attributes.put(plain, state.engine.attributes.of(member))
    return plain


def copied_module(root: nn.Module, replaced: Mapping[int, Any]) -> nn.Module:
    """The result of `copy.deepcopy` of a module.

    Args:
        root: the module.
        replaced: replacements of some objects in the copy, by their ids.
    """
    memo = dict(replaced)
    finish = prepare(root, memo)
    ordinary = [module for module in root.modules() if _ordinary(type(module))]  # type: ignore[arg-type]
    for module in ordinary:
        memo[id(module)] = type(module).__new__(type(module))
    for module in ordinary:
        own = memo[id(module)].__dict__
        for name, value in module.__dict__.items():
            kind = type(value)
            if kind in _ATOMS:
                own[name] = value
            elif kind in _EMPTIED and not value and id(value) not in memo:  # 15 of 20 attributes of a module
                own[name] = memo[id(value)] = kind()
            else:
                own[name] = _copied(value, memo)
    found: nn.Module = _copied(root, memo)
    finish()
    return found


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    known = memo.get(id(value))
    if known is not None:
        return known
    if kind is dict or kind is OrderedDict:
        memo[id(value)] = new = kind()
        for key, inner in value.items():
            held = inner if type(inner) in _ATOMS else _copied(inner, memo)
            new[key if type(key) in _ATOMS else copy.deepcopy(key, memo)] = held
        return new
    return copy.deepcopy(value, memo)


@lru_cache(maxsize=256)
def _ordinary(kind: type[nn.Module]) -> bool:
    """True if copying the attributes of such a module copies the module."""
    plain = all(getattr(kind, name, None) is getattr(object, name, None) for name in _SPECIAL)
    kept = getattr(kind, "__getstate__", None) is getattr(nn.Module, "__getstate__", None)
    back = getattr(kind.__setstate__, "__module__", "").startswith("torch.nn.")  # those add attributes only
    return plain and kept and back and not copyreg._slotnames(kind)  # type: ignore[attr-defined]
