"""Saving optimizers, and moving members' state between them and torch's own."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch

from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.access import own_names
from hfta_nb.errors import OptimError
from hfta_nb.errors.border import ITEMS, STATE, instance, takes, whole
from hfta_nb.optim.hooks import Hooks, with_loading_hooks, with_saving_hooks
from hfta_nb.optim.hyperparameters import plain
from hfta_nb.optim.members_state import MembersState
from hfta_nb.optim.own_entries import OwnEntries
from hfta_nb.optim.shown_state import ShownState
from hfta_nb.optim.torch_states import check_state
from hfta_nb.optim.without_compiler import without_compiler


class Surgery(Hooks, MembersState):
    """The part of `ArrayOptimizer` that is saved, and whose members are taken out, copied and put together."""

    _showing: ShownState | None = None

    @property
    def title(self) -> str:
        """The optimizer in words."""
        return type(self).__name__

    @property
    def state(self) -> dict[Any, dict[str, Any]]:
        """The state by parameter, as that of torch's optimizers: tensors ``[M, *shape]``, and numbers (step) ``[M]``.

        A parameter that no member has updated has none. What is written here (other tensors, entries that are removed,
        another dict) counts in the next step, as with torch.
        """
        if self._showing is None:
            self._showing = ShownState(self)
        return self._showing.show()

    @state.setter
    def state(self, value: Mapping[Any, dict[str, Any]]) -> None:
        own, given = self.state, dict(value)
        own.clear()
        own.update(given)

    def take_written(self) -> None:
        """Take over what the user has written to `state`."""
        if self._showing is not None:
            self._showing.take_written()

    @with_saving_hooks
    def state_dict(self) -> dict[str, Any]:
        """Hyperparameters, step counts and state, by parameter name: tensors, numbers, lists and dicts only.

        It goes through ``torch.load(..., weights_only=True)``.
        """
        self.take_written()
        groups = []
        for names, group in zip(self._names, self.param_groups, strict=True):
            values = {k: plain(v) for k, v in group.items() if k not in ("params", "param_names")}
            groups.append({**values, "params": list(names)})
        return {
            "optimizer": self.title,
            "members": len(self.array),
            "param_groups": groups,
            "state": self._state(),
        }

    @with_loading_hooks
    @takes(OptimError, state_dict=STATE)
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave.

        Raises:
            OptimError: it is of another optimizer, other parameters or groups, or another number of members. Nothing
                has changed then.
        """
        self.take_written()
        where = self.title
        if state_dict.get("optimizer") != where:
            raise OptimError("the state of another optimizer", where=where, got=state_dict.get("optimizer"))
        if state_dict["members"] != len(self.array):
            raise OptimError("another number of members", where=where, got=state_dict["members"],
                             accepted=str(len(self.array)))  # fmt: skip
        names = [list(g["params"]) for g in state_dict["param_groups"]]
        if names != self._names:
            raise OptimError("the state of another array", where=where, got=names, accepted=str(self._names))
        for reader, group in zip(self._readers, state_dict["param_groups"], strict=True):
            reader.read(group)
        self._load(state_dict["state"])
        for group, new in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({k: plain(v) for k, v in new.items() if k != "params"})

    def state_of(self, index: int) -> dict[str, Any]:
        """Member `index` as a `state_dict` of torch's optimizer, for that over the plain module's parameters.

        Raises:
            IndexError: there is no such member.

        Example:
            >>> from hfta_nb import fuse, optim
            >>> array = fuse([torch.nn.Linear(4, 2) for _ in range(3)])
            >>> optimizer, module = optim.SGD(array, lr=[0.1, 0.2, 0.3]), array[1]
            >>> alone = torch.optim.SGD(module.parameters())
            >>> alone.load_state_dict(optimizer.state_of(1))
            >>> alone.param_groups[0]["lr"]
            0.2
        """
        index = checked(self.array, index)
        self.take_written()
        state, own = self._member_state(index), OwnEntries(self.array, index)
        numbered: dict[int, Any] = {}
        groups, count = [], 0
        for k, (every, group) in enumerate(zip(self._names, self.param_groups, strict=True)):
            names = [n for n in every if own.has(n)]
            values = {name: self.rows(k, name)[index] for name in [*self.kinds, *self.extras(k)]}
            saved = self._torch_group(self.torch_values(values))
            saved["params"] = list(range(count, count + len(names)))
            if "param_names" in group:
                saved["param_names"] = [t for t, n in zip(group["param_names"], every, strict=True) if own.has(n)]
            groups.append(saved)
            for name in names:
                if name in state:
                    numbered[count] = state[name]
                count += 1
        return {"state": numbered, "param_groups": groups}

    @takes(OptimError, state_dict=STATE)
    def load_state_of(self, index: int, state_dict: Mapping[str, Any]) -> None:
        """Give member `index` the state and hyperparameters of torch's optimizer of a plain module.

        Raises:
            IndexError: there is no such member.
            OptimError: it is of another optimizer or has other groups. Nothing has changed then.
        """
        index = checked(self.array, index)
        self.take_written()
        where = f"{type(self).__name__}, member {index}"
        own = OwnEntries(self.array, index)
        every = [[n for n in names if own.has(n)] for names in self._names]
        sizes = [len(g["params"]) for g in state_dict["param_groups"]]
        if sizes != [len(n) for n in every]:
            raise OptimError("groups of other sizes", where=where, got=sizes, accepted=str([len(n) for n in every]))
        columns: list[dict[str, list[Any]]] = []
        for k, group in enumerate(state_dict["param_groups"]):
            lacking = [name for name in self.kinds if name not in group]
            if lacking:
                raise OptimError("the state of another optimizer", where=where, got=sorted(group),
                                 accepted=f"with {lacking}")  # fmt: skip
            rows = {name: self.rows(k, name) for name in [*self.kinds, *self.extras(k)]}
            for name in rows:
                if name in group:
                    value = plain(group[name])
                    rows[name][index] = self.kinds[name].one(name, value) if name in self.kinds else value
            columns.append(rows)
        named: dict[str, Mapping[str, Any]] = {}
        for names, group in zip(every, state_dict["param_groups"], strict=True):
            for name, number in zip(names, group["params"], strict=True):
                if number in state_dict["state"]:
                    named[name] = state_dict["state"][number]
        for name, state in named.items():
            check_state(self.torch_state, state, own.shape(name), f"{where}, {name}")
        self._load_members({index: named})
        for group, rows in zip(self.param_groups, columns, strict=True):
            group.update(rows)

    def copy_member(self, src: int, dst: int) -> None:
        """Member `dst` takes state, hyperparameters and lr schedules of member `src`, in place.

        Raises:
            IndexError: there is no such member.
            OptimError: not a member's number.
        """
        src, dst = checked(self.array, src), checked(self.array, dst)
        self.take_written()
        for k, group in enumerate(self.param_groups):
            for name in [*self.kinds, *self.extras(k)]:
                rows = self.rows(k, name)
                if rows[src] != rows[dst]:
                    rows[dst] = rows[src]
                    group[name] = rows
        self._copy_rows(src, dst)
        for scheduler in self.schedulers():
            scheduler.copy_member(src, dst)

    def take_member(self, index: int, other: Surgery, src: int) -> None:
        """Member `index` takes state and hyperparameters of member `src` of another optimizer, in place; lr schedules
        are left alone.

        Raises:
            OptimError: the other one is of another class, or of a member with other parameters.
        """
        if type(other) is not type(self) or other.title != self.title:
            raise OptimError("another optimizer", where=self.title, got=other)
        self.load_members({index: other.member_state(src)})

    def member_state(self, index: int) -> dict[str, Any]:
        """What the optimizer has of a member, by the names of its plain module; it suits any array with such a member.

        Returns:
            "groups": of each group the names of its parameters and its values; "state": by parameter, as torch's
            optimizer names it.
        """
        named = {name: own for own, name in own_names(self.array, index).items()}
        groups = [
            {
                "params": [named[name] for name in names if name in named],
                "values": {name: plain(self.rows(k, name)[index]) for name in [*self.kinds, *self.extras(k)]},
            }
            for k, names in enumerate(self._names)
        ]
        return {"groups": groups, "state": {named[name]: v for name, v in self._member_state(index).items()}}

    def load_members(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """Take in what `member_state` gave of these members.

        Raises:
            OptimError: one is of a member with other parameters, or shared out among other groups. Nothing has changed
                then.
        """
        self.take_written()
        given = {index: self._regrouped(index, state["groups"]) for index, state in states.items()}
        for k, group in enumerate(self.param_groups):
            mine = [*self.kinds, *self.extras(k)]
            for name in dict.fromkeys([*mine, *(n for own in given.values() for n in own.get(k, {}))]):
                rows = self.rows(k, name) if name in group else [None] * len(self.array)
                for index, own in given.items():
                    if k in own:
                        rows[index] = own[k].get(name)
                        if name in self.kinds:
                            rows[index] = self.kinds[name].one(name, rows[index])
                group[name] = rows
        begun: dict[int, dict[str, Any]] = {}
        for index, state in states.items():
            if state["state"]:
                named = own_names(self.array, index)
                begun[index] = {named[own]: value for own, value in state["state"].items()}
            else:
                self._reset_row(index)
        if begun:
            self._load_members(begun)

    def _regrouped(self, index: int, groups: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
        """The values of a member by the number of a group here."""
        known = own_names(self.array, index)
        home = {name: k for k, names in enumerate(self._names) for name in names}
        wanted = {own for own, name in known.items() if name in home}
        given = {own for group in groups for own in group["params"]}
        where = f"{self.title}, member {index}"
        if given != wanted:
            raise OptimError("of a member with other parameters", where=where, got=sorted(given - wanted),
                             accepted=str(sorted(wanted - given)))  # fmt: skip
        found: dict[int, Mapping[str, Any]] = {}
        for group in groups:
            for own in group["params"]:
                if found.setdefault(home[known[own]], group["values"]) != group["values"]:
                    raise OptimError("parameters in other groups", where=f"{where}, {own}", got=group["values"])
        return found

    def reset_member(self, index: int) -> None:
        """The member's state begins anew, and so do its lr schedules; other hyperparameters stay.

        Raises:
            IndexError: there is no such member.
            OptimError: not a member's number.
        """
        index = checked(self.array, index)
        self._reset_row(index)
        for scheduler in self.schedulers():
            scheduler.reset_member(index)

    @takes(OptimError, indices=ITEMS, array=instance(FusedArray, "an array"))
    def select(self, indices: Sequence[int], array: FusedArray) -> Self:
        """The optimizer of ``array``, which is ``self.array.select(indices)``, with these members' state.

        Raises:
            OptimError: the array has another number of members, or other parameters.
        """
        return type(self)._merged([(self, [checked(self.array, i) for i in indices])], array)

    def join(self, other: Surgery, array: FusedArray) -> Self:
        """The optimizer of ``array``, which is ``hfta_nb.join(self.array, other.array)``, with the state of both.

        Raises:
            OptimError: the other one is of another class or has other groups.
        """
        parts = [(o, list(range(len(o.array)))) for o in (self, other)]
        return type(self)._merged(parts, array)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # With its array, whose copy has parameters of its own.
        made = self.select(range(len(self.array)), copy.deepcopy(self.array, memo))
        memo[id(self)] = made
        return made

    def _torch_group(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """A group as torch's optimizer has it: with what only torch knows (foreach, capturable, ...) at its default."""
        likeness = torch.nn.Parameter(torch.zeros(1, 1))
        group = without_compiler(self.torch_class)([likeness]).param_groups[0]
        return {k: values.get(k, v) for k, v in group.items() if k != "params"} | {
            k: v for k, v in values.items() if k not in group and k not in self.kinds and v is not None
        }

    @classmethod
    def _merged(cls, parts: Sequence[tuple[Surgery, list[int]]], array: FusedArray) -> Self:
        """The optimizer of an array made of these members."""
        first = parts[0][0]
        where = first.title
        for other, _ in parts:
            if type(other) is not cls or other.title != where or other._names != first._names:
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
        made = object.__new__(cls)
        made.__dict__.update(first.settings())
        made.defaults = dict(first.defaults)
        made._prepare_groups(groups)
        made._take_rows(parts)
        return made


def _merged_value(parts: Sequence[tuple[Surgery, list[int]]], group: int, name: str) -> Any:
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
    if not whole(index):
        raise OptimError("not a member's number", where="member", got=index, accepted=f"0 to {len(array) - 1}")
    place = operator.index(index)
    if not -len(array) <= place < len(array):
        raise IndexError(f"member {place} of an array of {len(array)}")
    return place % len(array)
