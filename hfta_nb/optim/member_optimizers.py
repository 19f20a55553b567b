"""Optimizers that run member by member: torch's own, each over views of one member's rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.errors import HftaError, OptimError, out_of_memory
from hfta_nb.optim.hyperparameters import HostColumn
from hfta_nb.optim.optimizer_base import ArrayOptimizer
from hfta_nb.optim.own_entries import OwnEntries
from hfta_nb.optim.resting import EvaluationNeededError
from hfta_nb.optim.surgery import Surgery
from hfta_nb.optim.without_compiler import without_compiler

_TOO_LARGE = "cannot be converted to type"
"""In torch's error of a Python number that is beyond a tensor's dtype."""


class MemberOptimizer(ArrayOptimizer):
    """Base of optimizers that torch's own class computes, one member at a time.

    A member's optimizer has parameters of the plain module's shape. They share the array's memory, except where a
    member's parameter is padded: then they are copies of its own entries, read before a step and written back after.
    State is thus that of the plain module's optimizer.

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
        self._own = [OwnEntries(self.array, i) for i in range(len(self.array))]
        taken = [name for names in self._names for name in names]
        # Sliced from the arena, not from the parameter: autograd has no part in it.
        self._views = {name: self.array.arena_of(name).view(name) for name in taken}
        self._padded = [{n for n in taken if own.pads(n)} for own in self._own]
        self._rows = [{n: nn.Parameter(self._own_row(n, i)) for n in taken} for i in range(len(self.array))]
        values = self.read()
        self.members: list[torch.optim.Optimizer] = [self._constructed(i, values) for i in range(len(self.array))]
        if states is not None:
            for member, state in zip(self.members, states, strict=True):
                member.load_state_dict(_grown(state, member))

    def _constructed(self, index: int, values: Sequence[Mapping[str, HostColumn]]) -> torch.optim.Optimizer:
        """A member's optimizer, without state."""
        groups = [
            {"params": [self._rows[index][n] for n in names], **self._values_of(v, index)}
            for names, v in zip(self._names, values, strict=True)
        ]
        return without_compiler(self.torch_class)(groups)  # type: ignore[no-any-return]

    def _values_of(self, values: Mapping[str, HostColumn], index: int) -> dict[str, Any]:
        found = {}
        for name, column in values.items():
            kind, value = self.kinds[name], column[index]
            if kind.size:  # None is kept as NaN
                found[name] = tuple(None if v != v and None in kind.words else v for v in value.tolist())
            else:
                found[name] = _python(value)
        return found

    def _own_row(self, name: str, index: int) -> Tensor:
        row = self._views[name][index]
        return self._own[index].narrow(name, row) if name in self._padded[index] else row

    def _pull(self, index: int) -> None:
        """Read the values of a member's padded parameters from the array."""
        for name in self._padded[index]:
            self._rows[index][name].copy_(self._own_row(name, index))

    def _push(self, index: int) -> None:
        """Write the values of a member's padded parameters to the array."""
        for name in self._padded[index]:
            self._own[index].widen(name, self._rows[index][name], self._views[name][index])

    def _sync_values(self, values: Sequence[Mapping[str, HostColumn]]) -> None:
        """Bring the members' values up to date."""
        self._follow_arenas()
        for i, member in enumerate(self.members):
            for group, column in zip(member.param_groups, values, strict=True):
                group.update(self._values_of(column, i))

    def _set_grads(self, index: int) -> None:
        """Hand a member its rows of the gradients; None where it has none, or lacks the parameter."""
        missing, own = self.array.missing_grads, self._own[index]
        for names, group in zip(self._names, self.param_groups, strict=True):
            for name, p in zip(names, group["params"], strict=True):
                none = p.grad is None or index in missing.get(name, ()) or not own.has(name)
                self._rows[index][name].grad = None if none else self._gradient(name, p.grad, index)

    def _gradient(self, name: str, grad: Tensor, index: int) -> Tensor:
        """A member's gradient, of its own entries."""
        if grad.is_sparse:
            raise OptimError("a sparse gradient", where=f"{type(self).__name__}, {name}", remedy="use SparseAdam")
        return self._own[index].narrow(name, grad[index]) if name in self._padded[index] else grad[index]

    def _update(self, values: Sequence[Mapping[str, HostColumn]], skip: list[int]) -> None:
        self._sync_values(values)
        for i, member in enumerate(self.members):
            if i not in skip:
                self._run(i, member.step)
        self._clear_grads()

    def _run(self, index: int, call: Callable[[], Any]) -> Any:
        """Call something of a member's optimizer, whose parameters and gradients are there."""
        self._set_grads(index)
        self._pull(index)
        found = None
        with self._diverging(index):
            found = call()
        self._push(index)
        return found

    @contextmanager
    def _diverging(self, index: int) -> Iterator[None]:
        """Set a member's parameters to NaN where a number is beyond their dtype, which torch raises of.

        In array optimizers such a number is an infinite one, and the member diverges alone.

        Raises:
            OptimError: in place of another error of the member's optimizer.
        """
        try:
            yield
        except (HftaError, EvaluationNeededError, StopIteration):  # the last ends a run of L-BFGS
            raise
        except Exception as error:
            if out_of_memory(error):
                raise
            if not isinstance(error, RuntimeError) or _TOO_LARGE not in str(error):
                what = f"its step fails: {type(error).__name__}: {error}"
                where = f"{self.title}, member {index}"
                remedy = (
                    "members before it may have stepped: go back to a state that was saved, or leave it out by skip"
                )
                raise OptimError(what, where=where, remedy=remedy) from error
            self.members[index].state.clear()  # which may be half made
            for p in self._rows[index].values():
                p.data.fill_(math.nan)

    def _clear_grads(self) -> None:
        for rows in self._rows:
            for p in rows.values():
                p.grad = None

    # State.

    def _torch_states(self) -> list[dict[str, Any]]:
        return [copy.deepcopy(m.state_dict()) for m in self.members]

    def _state(self) -> dict[str, Any]:
        return {"members": [{str(k): v for k, v in s["state"].items()} for s in self._torch_states()]}

    def _by_parameter(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        states = [self._member_state(i) for i in range(len(self.members))]
        for name in dict.fromkeys(name for state in states for name in state):
            rows = [state.get(name, {}) for state in states]
            keys = dict.fromkeys(key for row in rows for key in row)
            found[name] = {key: _stacked([row.get(key) for row in rows]) for key in keys}
        return found

    def _load(self, state: Mapping[str, Any]) -> None:
        rows = state.get("members", ())
        if len(rows) != len(self.members):
            raise OptimError("another number of members", where=type(self).__name__, got=len(rows))
        for member, saved in zip(self.members, rows, strict=True):
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
        state, own = copy.deepcopy(self.members[index].state_dict()["state"]), self._own[index]
        return {name: state[k] for name, k in self._numbers() if k in state and own.has(name)}

    def _load_members(self, states: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> None:
        for index, state in states.items():
            self._put(self.members[index], {k: dict(state[name]) for name, k in self._numbers() if name in state})

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


def _stacked(values: list[Any]) -> Any:
    """Tensors of one shape as one, with zeros for members without; others in a list."""
    shapes = {v.shape if isinstance(v, Tensor) else None for v in values if v is not None}
    if len(shapes) == 1 and None not in shapes:
        like = next(v for v in values if v is not None)
        return torch.stack([torch.zeros_like(like) if v is None else v for v in values])
    if all(isinstance(v, bool | int | float) for v in values):
        return torch.tensor(values)
    return values


def _grown(state: Mapping[str, Any], member: torch.optim.Optimizer) -> dict[str, Any]:
    """The state with the groups that the member has now: groups are only ever added at the end."""
    return {"state": state["state"], "param_groups": member.state_dict()["param_groups"]}


def _python(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
