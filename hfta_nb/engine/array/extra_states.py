"""What the members' modules save beside tensors: torch's `get_extra_state` and `set_extra_state`, member by member.

In an array's `state_dict`, such an entry is a list with one value per member, so that a row of it is a plain module's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hfta_nb.engine.array.tensor_storage import own_tensors
from hfta_nb.engine.eager import attributes
from hfta_nb.engine.eager.plain_copies import plain_member
from hfta_nb.engine.eager.state import ArrayState

KEY = "_extra_state"
"""Torch's name for a module's state beside parameters and buffers."""


def kept_beside(root: nn.Module) -> dict[str, nn.Module]:
    """By their keys in a `state_dict`, the modules that save more than tensors."""
    return {
        f"{path}.{KEY}" if path else KEY: module
        for path, module in root.named_modules(remove_duplicate=False)
        if type(module).get_extra_state is not nn.Module.get_extra_state
    }


def extra_states(state: ArrayState) -> dict[str, list[Any]]:
    """By key, the members' values; None for a member that has no such module."""
    if not any(kept_beside(module) for module in state.models):
        return {}
    with state.own_attributes():
        of = [kept_beside(plain_member(state, index)) for index in range(len(state))]
    keys = dict.fromkeys(key for own in of for key in own)
    return {key: [own[key].get_extra_state() if key in own else None for own in of] for key in keys}


@torch.no_grad()
def put_extra_states(state: ArrayState, given: Mapping[int, Mapping[str, Any]]) -> None:
    """Load values, by member and key, into members' modules, and keep what these change: attributes and tensors."""
    changes = dict[int, dict[attributes.AttributeKey, Any]]()
    with state.own_attributes():
        modules = {index: plain_member(state, index) for index in range(len(state))}
    for index, values in given.items():
        module, own = modules[index], own_tensors(state, index)
        before = attributes.AttributesBefore(module, state.slots_of(index))
        beside = kept_beside(module)
        for key, value in values.items():
            if key in beside:
                beside[key].set_extra_state(value)
        changes[index] = before.changes()
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if name in own and not torch.equal(own[name], tensor):
                own[name].copy_(tensor)
    places = dict.fromkeys(place for found in changes.values() for place in found)
    for index, module in modules.items():  # the others too: members agree in which attributes they have
        own_changes = changes.get(index, {})
        held = attributes.values_of(module, state.slots_of(index), [p for p in places if p not in own_changes])
        with state.own_attributes():
            state.engine.attributes.keep(index, {**held, **own_changes})
    state.engine.reset_member_modules()
