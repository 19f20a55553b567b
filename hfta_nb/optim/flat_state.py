"""The state of members of an optimizer over arenas: out to torch's form and back, and taken together anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hfta_nb.optim.own import Own
from hfta_nb.optim.segments import Entry
from hfta_nb.optim.values import HostColumn

if TYPE_CHECKING:
    from hfta_nb.optim.flat import FlatOptimizer


def member_state(optimizer: FlatOptimizer, index: int) -> dict[str, dict[str, Any]]:
    """See `ArrayOptimizer._member_state`."""
    found = {}
    own = Own(optimizer.array, index)
    group_of = {name: k for k, names in enumerate(optimizer._names) for name in names}
    values = [{k: v[index] for k, v in rows.items()} for rows in optimizer.read()]
    for name, e in optimizer._entries().items():
        if e.steps[index] == 0 or not own.has(name):
            continue
        state: dict[str, Any] = {}
        if optimizer.counts_steps:
            state["step"] = torch.tensor(float(e.steps[index]), dtype=torch.get_default_dtype())
        for key, v in e.scalars.items():
            state[key] = torch.tensor(v[index])
        for key, t in e.state.items():
            if optimizer.state_for(key, values[group_of[name]]):
                state[key] = own.narrow(name, t[index])
        found[name] = optimizer._told(state, e, index)
    return {k: v for k, v in found.items() if v}


def load_member(optimizer: FlatOptimizer, index: int, state: Mapping[str, Mapping[str, Any]]) -> None:
    """See `ArrayOptimizer._load_member`."""
    known = optimizer._entries()
    own = Own(optimizer.array, index)
    values = optimizer.read()
    group_of = {name: k for k, names in enumerate(optimizer._names) for name in names}
    parameters = dict(optimizer.array.named_parameters())
    for name, e in known.items():
        e.steps, e.scalars = e.steps.copy(), {k: v.copy() for k, v in e.scalars.items()}
        e.state = {k: v.clone() for k, v in e.state.items()}
        e.steps[index] = 0
        saved = state.get(name)
        if not saved:
            continue
        e.steps[index] = int(saved.get("step", 1))
        fresh = optimizer.fresh_scalars(values[group_of[name]])
        tensors = {k: v for k, v in saved.items() if k != "step" and k not in fresh}
        for key, value in tensors.items():
            if value is None:
                continue
            if key not in e.state:
                e.state[key] = torch.zeros_like(optimizer._room(key, parameters[name].detach()))
            own.widen(name, value, e.state[key][index])
        for key, first in fresh.items():
            column = e.scalars.setdefault(key, first.copy())
            column[index] = optimizer._heard(key, saved)
    optimizer._lay_out(known)


def of_rows(parts: Sequence[tuple[Mapping[str, Entry], list[int]]]) -> dict[str, Entry]:
    """The state of these rows of the first, those of the second, ..., one after another."""
    known = {}
    for name in parts[0][0]:
        mine = [(e[name], rows) for e, rows in parts]
        steps = np.concatenate([e.steps[rows] for e, rows in mine])
        state: dict[str, Tensor] = {}
        for key in {k for e, _ in mine for k in e.state}:
            like = next(e.state[key] for e, _ in mine if key in e.state)
            state[key] = torch.cat([
                e.state[key][rows].to(like) if key in e.state else like.new_zeros(len(rows), *like.shape[1:])
                for e, rows in mine
            ])  # fmt: skip
        scalars = {
            key: np.concatenate([e.scalars[key][rows] if key in e.scalars else np.zeros(len(rows)) for e, rows in mine])
            for key in {k for e, _ in mine for k in e.scalars}
        }
        known[name] = Entry(steps, state, scalars)
    return known


def fill(tensor: Tensor, rows: slice | list[int], values: HostColumn) -> None:
    """These members' rows of a state become a number each."""
    if (values == values[0]).all():
        filled: Any = float(values[0])
        if tensor.is_complex():
            filled = complex(filled, filled)
        tensor[rows] = filled
        return
    column = torch.tensor(values, dtype=torch.float64, device=tensor.device)
    if tensor.is_complex():
        column = torch.complex(column, column)
    tensor[rows] = column.to(tensor.dtype).view(-1, *[1] * (tensor.ndim - 1)).expand_as(tensor[rows])
