"""The state of members of an optimizer over arenas: out to torch's form and back, and taken together anew."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hfta_nb.errors import OptimError
from hfta_nb.optim.hyperparameters import HostColumn
from hfta_nb.optim.optimizer_base import ArrayOptimizer
from hfta_nb.optim.own_entries import OwnEntries
from hfta_nb.optim.segments import Entry

Numbers: TypeAlias = Mapping[str, HostColumn]


class FlatState(ArrayOptimizer):
    """The part of `FlatOptimizer` that has the state of members.

    Attributes:
        counts_steps: whether torch's optimizer keeps the number of steps.
    """

    counts_steps: ClassVar[bool] = True

    def fresh_scalars(self, values: Numbers) -> dict[str, HostColumn]:
        """State that is one number per member, at first."""
        return {}

    def state_for(self, name: str, values: Mapping[str, Any]) -> bool:
        """Whether torch's optimizer of a member with these values keeps this state."""
        return True

    @abc.abstractmethod
    def _entries(self) -> dict[str, Entry]:
        """State by parameter."""

    @abc.abstractmethod
    def _lay_out(self, known: Mapping[str, Entry]) -> None:
        """Lay segments over the arenas as they are now, with this state."""

    def _member_state(self, index: int) -> dict[str, dict[str, Any]]:
        found = {}
        own = OwnEntries(self.array, index)
        group_of = {name: k for k, names in enumerate(self._names) for name in names}
        values = [{k: v[index] for k, v in rows.items()} for rows in self.read()]
        for name, e in self._entries().items():
            if e.steps[index] == 0 or not own.has(name):
                continue
            state: dict[str, Any] = {}
            if self.counts_steps:
                state["step"] = torch.tensor(float(e.steps[index]), dtype=torch.get_default_dtype())
            for key, v in e.scalars.items():
                state[key] = torch.tensor(v[index])
            for key, t in e.state.items():
                if self.state_for(key, values[group_of[name]]):
                    state[key] = own.narrow(name, t[index])
            found[name] = self._to_torch(state, e, index)
        return {k: v for k, v in found.items() if v}

    def _by_parameter(self) -> dict[str, dict[str, Any]]:
        found = {}
        names = {k for i in range(len(self.array)) for state in self._member_state(i).values() for k in state}
        for name, e in self._entries().items():
            if (e.steps > 0).any():
                numbers = {"step": e.steps, **e.scalars} if self.counts_steps else dict(e.scalars)
                state: dict[str, Any] = {
                    k: torch.tensor(v, dtype=torch.get_default_dtype()) for k, v in numbers.items()
                }
                found[name] = {k: v for k, v in {**state, **e.state}.items() if k in names}
        return {name: state for name, state in found.items() if state}

    def _load_members(self, states: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> None:
        for index, state in states.items():
            for name, own in state.items():
                _check_begun(own, f"{self.title}, member {index}, {name}")
        known = self._entries()
        values = self.read()
        group_of = {name: k for k, names in enumerate(self._names) for name in names}
        parameters = dict(self.array.named_parameters())
        owns = {index: OwnEntries(self.array, index) for index in states}
        for name, e in known.items():
            e.steps, e.scalars = e.steps.copy(), {k: v.copy() for k, v in e.scalars.items()}
            e.state = {k: v.clone() for k, v in e.state.items()}
            fresh = self.fresh_scalars(values[group_of[name]])
            for index, state in states.items():
                saved = state.get(name)
                if not saved and not owns[index].has(name):  # padding counts along, so that steps stay in one piece
                    like = next(iter(state.values()), {})
                    saved = {k: v for k, v in like.items() if k == "step" or k in fresh}
                e.steps[index] = int(saved.get("step", 1)) if saved else 0
                for value in e.state.values():
                    value[index] = 0
                if saved:
                    self._load_entry(name, e, index, saved, owns[index], fresh, parameters[name])
        self._lay_out(known)

    def _load_entry(
        self,
        name: str,
        entry: Entry,
        index: int,
        saved: Mapping[str, Any],
        own: OwnEntries,
        fresh: Mapping[str, HostColumn],
        parameter: Tensor,
    ) -> None:
        """A member's state of one parameter, from torch's form."""
        for key, value in saved.items():
            if key == "step" or key in fresh or value is None:
                continue
            if key not in entry.state:
                entry.state[key] = torch.zeros_like(parameter.detach(), memory_format=torch.contiguous_format)
            own.widen(name, value, entry.state[key][index])
        for key, first in fresh.items():
            column = entry.scalars.setdefault(key, first.copy())
            column[index] = self._from_torch(key, saved)

    def _to_torch(self, state: dict[str, Any], entry: Entry, index: int) -> dict[str, Any]:
        """A member's state of one parameter, as torch tells it."""
        return state

    def _from_torch(self, name: str, saved: Mapping[str, Any]) -> Any:
        """A member's number from torch's state."""
        return float(saved[name])


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


def _check_begun(saved: Mapping[str, Any], where: str) -> None:
    """A member that has made no steps begins anew, so that it has nothing else."""
    others = (v for k, v in saved.items() if k != "step" and isinstance(v, Tensor))
    if int(saved.get("step", 1)) == 0 and any(bool(v.any()) for v in others):
        raise OptimError(
            "a step count of 0 beside other state",
            where=where,
            accepted="no state of the parameter, to begin anew; or a count from 1",
            remedy="del optimizer.state[parameter]; hfta_nb.optim.ByMember runs torch's own optimizer, which takes it",
        )
