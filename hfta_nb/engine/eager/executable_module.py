"""A plain module with the tensors of some members: what the engine runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.intercept import Handler
from hfta_nb.engine.members.tensor_slots import TensorSlots
from hfta_nb.engine.rules import Context


@dataclass(frozen=True)
class BlockTensors:
    """The members of a block and their tensors ``[k, *shape]``; in a `single` block, ``[*shape]``."""

    members: Sequence[int]
    single: bool
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


def _nothing(context: Context, state: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class ExecutableModule:
    """One module through which some members of a block run.

    Attributes:
        root: the module.
        parameters, buffers: the members' tensors, by the names in the module.
        rows: positions of these members in the block.
        finish: stores buffers that the module has replaced.
        within: creates a context for the call, given the members' context and the tensors as one member sees them.
        check: is called with every tensor of the result, as one member sees it.
        handlers: replacements of submodules, by path.
        padded: members of different sizes run together.
        copies: names of the parameters that are copies of the members' own.
        single: one member, whose tensors have no member axis.
    """

    root: nn.Module
    slots: TensorSlots
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    rows: Sequence[int]
    finish: Callable[[Mapping[str, Tensor]], None]
    within: Callable[[Context, Mapping[str, Tensor]], AbstractContextManager[Any]] = _nothing
    check: Callable[[Tensor], None] = lambda value: None
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    padded: bool = False
    copies: Collection[str] = ()
    single: bool = False


class Site(Protocol):
    """An attribute of the skeleton whose value depends on the architecture.

    Attributes:
        module, name: the module and the name of the attribute.
        values: by architecture.
    """

    module: nn.Module
    name: str
    values: dict[int, Any]


class Architectures(Protocol):
    """Creates the executable modules for members of different architectures; see `PaddedArchitectures`."""

    preallocated: bool
    separate_reason: str

    def set_preallocated(self, device: torch.device | None) -> None:
        """Let members run at the full sizes, or no longer; see `PaddedArchitectures`."""

    @property
    def templates(self) -> Sequence[nn.Module]:
        """A plain module of each architecture."""

    @property
    def sites(self) -> Sequence[Site]:
        """Attributes that are set for the members that run, or for which a replay reads tensors instead."""

    def template(self, member: int) -> nn.Module:
        """The plain module of a member."""

    def executables(self, run: BlockTensors) -> list[ExecutableModule]:
        """The executable modules for members with tensors ``[k, *shape]``, or ``[*shape]`` for a single one."""

    def boxes(self, member: int) -> dict[str, tuple[int, ...]]:
        """The shapes of a member's own tensors, by name in the skeleton."""

    def groups(self) -> Sequence[Sequence[int]]:
        """Members, of each group of which one is compared with its plain module."""

    def member(self, index: int, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> nn.Module:
        """A member as its own plain module, with copies of its tensors."""

    def slots_of(self, member: int) -> TensorSlots:
        """The slots of a member's plain module."""

    def own(self, member: int, tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        """A member's tensors without padding, by its own names."""

    def names(self, member: int) -> Mapping[str, str]:
        """From the names of a member's own tensors to those of the skeleton."""

    def paths(self, member: int) -> Mapping[str, str]:
        """From the paths of a member's own submodules to those of the skeleton."""

    def rows(self, member: int) -> Callable[[list[Tensor]], list[Tensor]]:
        """A function that selects a member's tensors, without padding, from those of a block."""

    def lacking(self, name: str) -> list[int]:
        """The members without a tensor of this name."""

    def set_fallbacks(self, paths: Collection[str], separate_reason: str) -> None:
        """Set which submodules run each architecture separately; with a `separate_reason`, the whole model does."""
