"""Saving optimizers, and moving members' state between them and torch's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hfta_nb.array import FusedArray
from hfta_nb.errors import OptimError
from hfta_nb.optim.own import Own
from hfta_nb.optim.values import plain

if TYPE_CHECKING:
    from hfta_nb.optim.base import ArrayOptimizer


def state_dict(optimizer: ArrayOptimizer) -> dict[str, Any]:
    """See `ArrayOptimizer.state_dict`."""
    groups = []
    for names, group in zip(optimizer._names, optimizer.param_groups, strict=True):
        values = {k: plain(v) for k, v in group.items() if k not in ("params", "param_names")}
        groups.append({**values, "params": list(names)})
    return {
        "optimizer": type(optimizer).__name__,
        "members": len(optimizer.array),
        "param_groups": groups,
        "state": optimizer._state(),
    }


def load_state_dict(optimizer: ArrayOptimizer, saved: Mapping[str, Any]) -> None:
    """See `ArrayOptimizer.load_state_dict`."""
    where = type(optimizer).__name__
    if saved.get("optimizer") != where:
        raise OptimError("the state of another optimizer", where=where, got=saved.get("optimizer"))
    if saved["members"] != len(optimizer.array):
        raise OptimError("another number of members", where=where, got=saved["members"],
                         accepted=str(len(optimizer.array)))  # fmt: skip
    names = [list(g["params"]) for g in saved["param_groups"]]
    if names != optimizer._names:
        raise OptimError("the state of another array", where=where, got=names, accepted=str(optimizer._names))
    for reader, group in zip(optimizer._readers, saved["param_groups"], strict=True):
        reader.read(group)
    optimizer._load(saved["state"])
    for group, new in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        group.update({k: plain(v) for k, v in new.items() if k != "params"})


def state_of(optimizer: ArrayOptimizer, index: int) -> dict[str, Any]:
    """See `ArrayOptimizer.state_of`."""
    index = checked(optimizer.array, index)
    state, own = optimizer._member_state(index), Own(optimizer.array, index)
    numbered: dict[int, Any] = {}
    groups, count = [], 0
    for k, (every, group) in enumerate(zip(optimizer._names, optimizer.param_groups, strict=True)):
        names = [n for n in every if own.has(n)]
        values = {name: optimizer.rows(k, name)[index] for name in [*optimizer.kinds, *optimizer.extras(k)]}
        told = torch_group(optimizer, optimizer.told(values))
        told["params"] = list(range(count, count + len(names)))
        if "param_names" in group:
            told["param_names"] = [t for t, n in zip(group["param_names"], every, strict=True) if own.has(n)]
        groups.append(told)
        for name in names:
            if name in state:
                numbered[count] = state[name]
            count += 1
    return {"state": numbered, "param_groups": groups}


def torch_group(optimizer: ArrayOptimizer, values: Mapping[str, Any]) -> dict[str, Any]:
    """A group as torch's optimizer has it: with what only torch knows (foreach, capturable, ...) at its default."""
    likeness = torch.nn.Parameter(torch.zeros(1, 1))
    group = optimizer.torch_class([likeness]).param_groups[0]
    return {k: values.get(k, v) for k, v in group.items() if k != "params"} | {
        k: v for k, v in values.items() if k not in group and k not in optimizer.kinds and v is not None
    }


def load_state_of(optimizer: ArrayOptimizer, index: int, saved: Mapping[str, Any]) -> None:
    """See `ArrayOptimizer.load_state_of`."""
    index = checked(optimizer.array, index)
    where = f"{type(optimizer).__name__}, member {index}"
    own = Own(optimizer.array, index)
    every = [[n for n in names if own.has(n)] for names in optimizer._names]
    sizes = [len(g["params"]) for g in saved["param_groups"]]
    if sizes != [len(n) for n in every]:
        raise OptimError("groups of other sizes", where=where, got=sizes, accepted=str([len(n) for n in every]))
    columns: list[dict[str, list[Any]]] = []
    for k, group in enumerate(saved["param_groups"]):
        lacking = [name for name in optimizer.kinds if name not in group]
        if lacking:
            raise OptimError("the state of another optimizer", where=where, got=sorted(group),
                             accepted=f"with {lacking}")  # fmt: skip
        rows = {name: optimizer.rows(k, name) for name in [*optimizer.kinds, *optimizer.extras(k)]}
        for name in rows:
            if name in group:
                value = plain(group[name])
                rows[name][index] = optimizer.kinds[name].one(name, value) if name in optimizer.kinds else value
        columns.append(rows)
    named: dict[str, Mapping[str, Any]] = {}
    for names, group in zip(every, saved["param_groups"], strict=True):
        for name, number in zip(names, group["params"], strict=True):
            if number in saved["state"]:
                named[name] = saved["state"][number]
    known = known_states(optimizer)
    for name, state in named.items():
        for key, value in state.items():
            if known and key not in known:
                raise OptimError("the state of another optimizer", where=f"{where}, {name}", got=key)
            if key in ("exp_avg", "prev", "sum", "square_avg", "ax", "momentum_buffer") and value is not None:
                shape = own.shape(name)
                if list(value.shape) != shape:
                    raise OptimError("another shape", where=f"{where}, {name}, {key}", got=list(value.shape),
                                     accepted=str(shape))  # fmt: skip
    optimizer._load_member(index, named)
    for group, rows in zip(optimizer.param_groups, columns, strict=True):
        group.update(rows)


def known_states(optimizer: ArrayOptimizer) -> set[str]:
    """Names under which torch's optimizer keeps state; empty where they are torch's own affair."""
    words = {
        "SGD": "momentum_buffer",
        "Muon": "momentum_buffer",
        "Adam": "exp_avg exp_avg_sq max_exp_avg_sq",
        "AdamW": "exp_avg exp_avg_sq max_exp_avg_sq",
        "Adamax": "exp_avg exp_inf",
        "NAdam": "exp_avg exp_avg_sq mu_product",
        "RAdam": "exp_avg exp_avg_sq",
        "Adadelta": "square_avg acc_delta",
        "Adagrad": "sum",
        "RMSprop": "square_avg momentum_buffer grad_avg",
        "ASGD": "eta mu ax",
        "Rprop": "prev step_size",
        "Adafactor": "row_var col_var variance",
    }
    found = words.get(type(optimizer).__name__)
    return {"step", *found.split()} if found else set()


def copy_member(optimizer: ArrayOptimizer, src: int, dst: int) -> None:
    """See `ArrayOptimizer.copy_member`."""
    for k, group in enumerate(optimizer.param_groups):
        for name in [*optimizer.kinds, *optimizer.extras(k)]:
            rows = optimizer.rows(k, name)
            if rows[src] != rows[dst]:
                rows[dst] = rows[src]
                group[name] = rows
    optimizer._copy_rows(src, dst)
    for scheduler in optimizer.schedulers():
        scheduler.copy_member(src, dst)


def merged(parts: Sequence[tuple[ArrayOptimizer, list[int]]], array: FusedArray) -> ArrayOptimizer:
    """The optimizer of an array made of these members."""
    first = parts[0][0]
    where = type(first).__name__
    for other, _ in parts:
        if type(other) is not type(first) or other._names != first._names:
            raise OptimError("another optimizer, or one with other groups", where=where, got=other)
    count = sum(len(rows) for _, rows in parts)
    if count != len(array):
        raise OptimError("another number of members", where=where, got=count, accepted=f"the array's {len(array)}")
    parameters = dict(array.named_parameters())
    lacking = [n for names in first._names for n in names if n not in parameters]
    if lacking:
        raise OptimError("the array lacks parameters", where=where, got=lacking)
    groups = []
    for k, names in enumerate(first._names):
        group = {name: _merged_value(parts, k, name) for name in [*first.kinds, *first.extras(k)]}
        group["params"] = [parameters[n] for n in names]
        if "param_names" in first.param_groups[k]:
            group["params"] = list(zip(first.param_groups[k]["param_names"], group["params"], strict=True))
        groups.append(group)
    made = object.__new__(type(first))
    made.__dict__.update(first.settings())
    made.defaults = dict(first.defaults)
    made._prepare_groups(groups)
    made._take_rows(parts)
    return made


def _merged_value(parts: Sequence[tuple[ArrayOptimizer, list[int]]], group: int, name: str) -> Any:
    values = [(o.rows(group, name), rows) for o, rows in parts]
    chosen = [column[i] for column, rows in values for i in rows]
    first = plain(parts[0][0].param_groups[group][name])
    same = all(v == chosen[0] for v in chosen)
    return chosen[0] if same and not isinstance(first, list) else chosen


def checked(array: FusedArray, index: int) -> int:
    """The number of a member, from 0.

    Raises:
        IndexError: there is no such member.
    """
    if not -len(array) <= index < len(array):
        raise IndexError(f"member {index} of an array of {len(array)}")
    return index % len(array)
