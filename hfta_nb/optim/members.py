"""Optimizers that run member by member: torch's own, each over views of one member's rows."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.errors import OptimError
from hfta_nb.optim.base import ArrayOptimizer
from hfta_nb.optim.own import Own
from hfta_nb.optim.surgery import Surgery
from hfta_nb.optim.values import HostColumn


class MemberOptimizer(ArrayOptimizer):
    """Base of optimizers whose step can't be one pass: M of torch's, over parameters that share the array's memory.

    Attributes:
        members: torch's optimizers.
    """

    how = "one member at a time, by torch's own optimizer"

    def _begin(self) -> None:
        self._make(None)

    def _grown(self) -> None:
        self._make(self._torch_states())

    def _make(self, states: Sequence[Mapping[str, Any]] | None) -> None:
        """New optimizers over the arenas as they are now, with these states (torch's, of as many groups or fewer)."""
        self._arenas = list(self.array.arenas)
        # Sliced from the arena, not from the parameter: autograd has no part in it.
        arenas = {s.name: a for a in self.array.arenas for s in a.spans}
        self._rows = [
            {n: nn.Parameter(arenas[n].view(n)[i]) for names in self._names for n in names}
            for i in range(len(self.array))
        ]
        values = self.read()
        self.members: list[torch.optim.Optimizer] = []
        for i, rows in enumerate(self._rows):
            groups = [
                {"params": [rows[n] for n in names], **self._values_of(v, i)}
                for names, v in zip(self._names, values, strict=True)
            ]
            self.members.append(self.torch_class(groups))
        if states is not None:
            for member, state in zip(self.members, states, strict=True):
                member.load_state_dict(_grown(state, member))

    def _values_of(self, values: Mapping[str, HostColumn], index: int) -> dict[str, Any]:
        found = {}
        for name, column in values.items():
            value = column[index]
            found[name] = tuple(value.tolist()) if self.kinds[name].size else _python(value)
        return found

    def _ready(self, values: Sequence[Mapping[str, HostColumn]]) -> None:
        """Bring the members' values up to date."""
        arenas = self.array.arenas
        if len(arenas) != len(self._arenas) or any(a is not b for a, b in zip(arenas, self._arenas, strict=True)):
            self._make(self._torch_states())
        for i, member in enumerate(self.members):
            for group, column in zip(member.param_groups, values, strict=True):
                group.update(self._values_of(column, i))

    def _give(self, index: int, gradient: Any = None) -> None:
        """Hand a member its rows of the gradients; None where it has none."""
        missing = self.array.missing_grads
        for names, group in zip(self._names, self.param_groups, strict=True):
            for name, p in zip(names, group["params"], strict=True):
                none = p.grad is None or index in missing.get(name, ())
                self._rows[index][name].grad = None if none else self._gradient(p.grad, index)

    def _gradient(self, grad: Tensor, index: int) -> Tensor:
        if grad.is_sparse:
            raise OptimError("a sparse gradient", where=type(self).__name__, remedy="use SparseAdam")
        return grad[index]

    def _update(self, values: Sequence[Mapping[str, HostColumn]], skip: list[int]) -> None:
        self._ready(values)
        for i, member in enumerate(self.members):
            if i not in skip:
                self._give(i)
                member.step()
        self._forget()

    def _forget(self) -> None:
        for rows in self._rows:
            for p in rows.values():
                p.grad = None

    # State.

    def _torch_states(self) -> list[dict[str, Any]]:
        return [copy.deepcopy(m.state_dict()) for m in self.members]

    def _state(self) -> dict[str, Any]:
        return {"members": [{str(k): v for k, v in s["state"].items()} for s in self._torch_states()]}

    def _load(self, state: Mapping[str, Any]) -> None:
        if len(state["members"]) != len(self.members):
            raise OptimError("another number of members", where=type(self).__name__, got=len(state["members"]))
        for member, saved in zip(self.members, state["members"], strict=True):
            self._put(member, {int(k): v for k, v in saved.items()})

    @staticmethod
    def _put(member: torch.optim.Optimizer, state: Mapping[int, Any]) -> None:
        groups = member.state_dict()["param_groups"]
        member.load_state_dict({"state": copy.deepcopy(dict(state)), "param_groups": groups})

    def _numbers(self) -> Iterator[tuple[str, int]]:
        count = 0
        for names in self._names:
            for name in names:
                yield name, count
                count += 1

    def _member_state(self, index: int) -> dict[str, dict[str, Any]]:
        state, own = copy.deepcopy(self.members[index].state_dict()["state"]), Own(self.array, index)
        return {
            name: self._narrowed(own, name, state[k]) for name, k in self._numbers() if k in state and own.has(name)
        }

    def _load_member(self, index: int, state: Mapping[str, Mapping[str, Any]]) -> None:
        own = Own(self.array, index)
        wide = {k: self._widened(own, name, state[name]) for name, k in self._numbers() if name in state}
        self._put(self.members[index], wide)

    def _narrowed(self, own: Own, name: str, state: Mapping[str, Any]) -> dict[str, Any]:
        """A parameter's state, padded, as the plain module's."""
        return {k: own.narrow(name, v) if isinstance(v, Tensor) else v for k, v in state.items()}

    def _widened(self, own: Own, name: str, state: Mapping[str, Any]) -> dict[str, Any]:
        """The other way."""
        room = self._rows[0][name].detach()
        found = dict(state)
        for k, v in state.items():
            if isinstance(v, Tensor) and list(v.shape) == own.shape(name):
                found[k] = torch.zeros_like(room)
                own.widen(name, v, found[k])
        return found

    def _copy_rows(self, src: int, dst: int) -> None:
        self._put(self.members[dst], self.members[src].state_dict()["state"])

    def _reset_row(self, index: int) -> None:
        self._put(self.members[index], {})

    def _take_rows(self, parts: Sequence[tuple[Surgery, Sequence[int]]]) -> None:
        self._make(None)
        states = [
            o.members[i].state_dict()["state"] for o, rows in parts if isinstance(o, MemberOptimizer) for i in rows
        ]
        for member, state in zip(self.members, states, strict=True):
            self._put(member, state)


def _grown(state: Mapping[str, Any], member: torch.optim.Optimizer) -> dict[str, Any]:
    """The state with the groups that the member has now: groups are only ever added at the end."""
    return {"state": state["state"], "param_groups": member.state_dict()["param_groups"]}


def _python(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
