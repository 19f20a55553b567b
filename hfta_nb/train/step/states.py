"""What is kept of an array's step: stacked where all members have one architecture, member by member elsewhere.

How members of different architectures are padded, and what their parameters are called in the array, depends on who
else is in it. A member's own tensors and optimizer state, by the names of its plain module, suit any array.
"""

from __future__ import annotations

import base64
import copy
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.access import (
    attributes_of,
    is_padded,
    kept_beside,
    load_tensors,
    own_tensors,
    put_tensors,
    saved_functions,
    set_attributes,
)
from hfta_nb.errors import StoreError, StoreWarning
from hfta_nb.train.step.update import Update

MEMBERS = "members"
"""The entry that a state has whose members are told one by one."""


def state_of(array: FusedArray, updates: Sequence[Update], by_member: bool | None = None) -> dict[str, Any]:
    """Tensors and optimizers of all members.

    Args:
        by_member: whether one by one; where None, if they are padded.
    """
    attributes = [attributes_to_json(attributes_of(array, index)) for index in range(len(array))]
    kept = {"attributes": attributes} if any(attributes) else {}
    if is_padded(array) if by_member is None else by_member:
        return {
            **kept,
            MEMBERS: [
                {
                    "tensors": own_tensors(array, index),
                    "optimizers": [update.optimizer.member_state(index) for update in updates],
                }
                for index in range(len(array))
            ],
        }
    tensors = dict(array.named_parameters()) | dict(array.named_buffers())
    return {
        **kept,
        "array": {k: v.detach() for k, v in tensors.items()},
        "optimizers": [u.optimizer.state_dict() for u in updates],
    }


@torch.no_grad()
def load(array: FusedArray, updates: Sequence[Update], state: Mapping[str, Any]) -> None:
    """Take what `state_of` gave, of an array that may have been padded otherwise.

    Raises:
        StoreError: a member has other tensors.
        OptimError: a member has another optimizer.
    """
    for index, listed in enumerate(state.get("attributes", ())):
        set_attributes(array, index, attributes_from_json(listed))
    if MEMBERS in state:
        members = state[MEMBERS]
        for index, member in enumerate(members):
            tensors = own_tensors(array, index)
            wanted, given = ({k: list(v.shape) for k, v in d.items()} for d in (tensors, member["tensors"]))
            if wanted != given:
                raise StoreError("a member with other tensors", where=f"member {index}", got=given,
                                 accepted=str(wanted), remedy="has the family changed since?")  # fmt: skip
            put_tensors(array, index, member["tensors"])
        for number, update in enumerate(updates):
            update.optimizer.load_members({i: member["optimizers"][number] for i, member in enumerate(members)})
        return
    load_tensors(array, state["array"])
    for update, optimizer in zip(updates, state["optimizers"], strict=True):
        update.optimizer.load_state_dict(optimizer)


def planned_anew(state: Mapping[str, Any], fresh: Mapping[str, Any], renewed: bool) -> dict[str, Any]:
    """A state with the hyperparameters and lr schedules of another one of the same members.

    Args:
        fresh: the other one, told in the same way.
        renewed: take the state of the optimizers as well.
    """
    fresh = copy.deepcopy({"lr_schedulers": fresh["lr_schedulers"], "optimizers": _optimizers(fresh)})
    pairs = zip(_optimizers(state), fresh["optimizers"], strict=True)
    if MEMBERS not in state:
        optimizers = [new if renewed else {**old, **_values(new)} for old, new in pairs]
        return {**state, "lr_schedulers": fresh["lr_schedulers"], "optimizers": optimizers}
    members = [
        {**member, "optimizers": new if renewed else [{**a, **_values(b)} for a, b in zip(old, new, strict=True)]}
        for member, (old, new) in zip(state[MEMBERS], pairs, strict=True)
    ]
    return {**state, "lr_schedulers": fresh["lr_schedulers"], MEMBERS: members}


def _optimizers(state: Mapping[str, Any]) -> list[Any]:
    return [member["optimizers"] for member in state[MEMBERS]] if MEMBERS in state else list(state["optimizers"])


def _values(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Its groups, as each kind of step calls them."""
    return {k: v for k, v in optimizer.items() if k in ("groups", "param_groups")}


# Attributes that a model sets in its forward: a count of calls, a moving average.


def attributes_to_json(values: Mapping[tuple[str, str], Any]) -> list[list[Any]]:
    """Attributes by path and name as a tree of tensors and plain data."""
    found = []
    for (path, name), value in values.items():
        try:
            found.append([path, name, saved_functions.to_json(value)])
        except TypeError:  # most models set such a value anew in each forward; who resumes a run is told
            found.append([path, name, {"lost": type(value).__name__}])
    return found


def packed(values: Sequence[Any], where: str) -> torch.Tensor:
    """Members' extra states beside their weights: uint8 ``[M, bytes]``, JSON that ends with zeros; see `unpacked`."""
    rows = []
    for value in values:
        try:
            tree = saved_functions.to_json(value)
        except TypeError:
            words = f"{where}: a {type(value).__name__} is not saved with the weights, whose module will have a new one"
            warnings.warn(words, StoreWarning, stacklevel=2)
            tree = {"lost": type(value).__name__}
        rows.append(torch.frombuffer(bytearray(json.dumps(tree, default=_text).encode()), dtype=torch.uint8))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def unpacked(row: torch.Tensor, new: Any) -> Any:
    """What `packed` was given for a member; `new` where it couldn't be kept."""
    tree = json.loads(row.cpu().numpy().tobytes().rstrip(b"\0"), object_hook=_tensor)
    return new if _is_lost(tree) else saved_functions.read(tree)


def unpacked_states(weights: Mapping[str, torch.Tensor], module: nn.Module) -> dict[str, Any]:
    """A member's saved weights as a `state_dict` of its plain module."""
    beside = {k: m.get_extra_state() for k, m in kept_beside(module).items()}
    return {**beside, **{k: unpacked(v, beside[k]) if k in beside else v for k, v in weights.items()}}


def _text(tensor: torch.Tensor) -> dict[str, Any]:
    raw = tensor.detach().cpu().contiguous()
    held = base64.b64encode(raw.reshape(-1).view(torch.uint8).numpy().tobytes()).decode()
    return {"tensor": [str(raw.dtype).removeprefix("torch."), list(raw.shape), held]}


def _tensor(found: dict[str, Any]) -> Any:
    if found.keys() != {"tensor"} or not isinstance(found["tensor"], list):
        return found
    dtype, shape, held = found["tensor"]
    return (
        torch.frombuffer(bytearray(base64.b64decode(held)), dtype=torch.uint8).view(getattr(torch, dtype)).view(shape)
    )


def attributes_from_json(saved: Sequence[Sequence[Any]]) -> dict[tuple[str, str], Any]:
    """What `attributes_to_json` was given, but for what can't be kept."""
    lost = {f"{path}.{name}".lstrip("."): value["lost"] for path, name, value in saved if _is_lost(value)}
    for where, kind in lost.items():
        words = f"{where}: a {kind} that the model has set is not in checkpoints; the run goes on with the value that"
        warnings.warn(f"{words} building gives it", StoreWarning, stacklevel=2)
    return {(path, name): saved_functions.read(value) for path, name, value in saved if not _is_lost(value)}


def _is_lost(value: Any) -> bool:
    return isinstance(value, dict) and "lost" in value
