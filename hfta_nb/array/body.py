"""What the engine runs: a plain module, and the tensors to put into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from hfta_nb.array.intercept import Handler
from hfta_nb.array.rules import Context
from hfta_nb.array.slots import Slots


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
