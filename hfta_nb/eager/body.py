"""What the engine runs: a plain module, and the tensors to put into it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hfta_nb.eager.intercept import Handler
from hfta_nb.members.slots import Slots
from hfta_nb.rules import Context


@dataclass(frozen=True)
class Run:
    """The members of a block and their tensors ``[k, *shape]``; those of a `single` one lack the first axis."""

    members: Sequence[int]
    single: bool
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


def _nothing(context: Context, state: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Body:
    """One module through which some members of a block run.

    Attributes:
        root: the module.
        parameters, buffers: the members' tensors, by the names that the module has for them.
        rows: places of these members in the block.
        finish: puts buffers that the module has replaced where they belong.
        within: a context around the call, from the members' context and the tensors as one member sees them.
        check: looks at every tensor of the result, as one member sees it.
        handlers: what runs in place of submodules, by path.
        padded: whether members of different sizes run together.
        single: there is but one member, whose tensors have no member axis.
    """

    root: nn.Module
    slots: Slots
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    rows: Sequence[int]
    finish: Callable[[Mapping[str, Tensor]], None]
    within: Callable[[Context, Mapping[str, Tensor]], AbstractContextManager[Any]] = _nothing
    check: Callable[[Tensor], None] = lambda value: None
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    padded: bool = False
    single: bool = False


class Site(Protocol):
    """An attribute of the skeleton that has another value in each architecture.

    Attributes:
        module, name: whose attribute, and which.
        values: by architecture.
    """

    module: nn.Module
    name: str
    values: dict[int, Any]


class Architectures(Protocol):
    """What makes the bodies to run, where members are of different architecture; see `Across`."""

    roomy: bool

    def set_roomy(self, device: torch.device | None) -> None:
        """Let members run at the full sizes, or no longer; see `Across`."""

    @property
    def templates(self) -> Sequence[nn.Module]:
        """A plain module of each architecture."""

    @property
    def sites(self) -> Sequence[Site]:
        """What is set anew for the members that run."""

    def template(self, member: int) -> nn.Module:
        """The plain module that a member runs alone through."""

    def bodies(self, run: Run) -> list[Body]:
        """The bodies for some members with their tensors ``[k, *shape]``, or ``[*shape]`` of a single one."""

    def boxes(self, member: int) -> dict[str, tuple[int, ...]]:
        """A member's shapes, by name in the skeleton, of the tensors that it has."""

    def lacking(self, name: str) -> list[int]:
        """The members that have no such tensor."""

    def settle(self, paths: Collection[str], apart: str) -> None:
        """Say which submodules run each architecture by itself, and whether all of the model does."""
