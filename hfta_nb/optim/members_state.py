"""What each kind of optimizer says of its members' state, for saving it and for moving it."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from hfta_nb.engine.array import FusedArray
from hfta_nb.optim.groups import Group
from hfta_nb.optim.hyperparameters import Kind, Reader


class MembersState(abc.ABC):
    """The part of `ArrayOptimizer` that a kind of optimizers makes its own."""

    torch_class: ClassVar[Any]
    torch_state: ClassVar[Sequence[str]] = ()
    """Names of what torch's optimizer keeps of a parameter, beside "step"; none where they are its own affair."""

    kinds: ClassVar[Mapping[str, Kind]]
    array: FusedArray
    defaults: Group
    param_groups: list[Group]
    _names: list[list[str]]
    _readers: list[Reader]

    @abc.abstractmethod
    def _prepare_groups(self, params: Any) -> None:
        """Take groups of parameters, with their hyperparameters."""

    def settings(self) -> dict[str, Any]:
        """Attributes that an optimizer made from this one takes over."""
        return {}

    def torch_values(self, values: dict[str, Any]) -> dict[str, Any]:
        """A member's values as torch's optimizer keeps them."""
        return values

    @abc.abstractmethod
    def rows(self, group: int, name: str) -> list[Any]:
        """The value of every member, of a hyperparameter or anything else in a group."""

    @abc.abstractmethod
    def extras(self, group: int) -> list[str]:
        """What the group holds beside parameters and hyperparameters, such as "initial_lr"."""

    @abc.abstractmethod
    def schedulers(self) -> list[Any]:
        """The lr schedulers of this optimizer."""

    @abc.abstractmethod
    def _state(self) -> dict[str, Any]:
        """The state of all parameters, as tensors, numbers, lists and dicts."""

    @abc.abstractmethod
    def _by_parameter(self) -> dict[str, dict[str, Any]]:
        """The state of all members, as torch's optimizer names it."""

    @abc.abstractmethod
    def _load(self, state: Mapping[str, Any]) -> None:
        """Take what `_state` gave; raise before anything has changed."""

    @abc.abstractmethod
    def _member_state(self, index: int) -> dict[str, dict[str, Any]]:
        """A member's state by parameter, as torch's optimizer names it."""

    @abc.abstractmethod
    def _load_members(self, states: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> None:
        """Take the state of these members; parameters that are not in it begin anew."""

    @abc.abstractmethod
    def _copy_rows(self, src: int, dst: int) -> None:
        """The state of member `dst` becomes that of `src`."""

    @abc.abstractmethod
    def _reset_row(self, index: int) -> None:
        """The member has no state any more."""

    @abc.abstractmethod
    def _take_rows(self, parts: Sequence[tuple[Any, Sequence[int]]]) -> None:
        """State begins as these rows of these optimizers, one after another."""
