"""What an array consists of: the state that all that runs, records or changes an array works on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.eager.engine import Block, Engine
from hfta_nb.eager.execution_settings import ExecutionSettings
from hfta_nb.eager.ownership import Follower
from hfta_nb.eager.padding import Padding
from hfta_nb.members.arena import Arena
from hfta_nb.members.generators import MemberGenerators
from hfta_nb.members.tensor_slots import TensorSlots


class ArrayState:
    """The members' tensors and random streams, the module that they run through, and how they run.

    A `FusedArray` holds one, and so does whatever else runs for each of its members. `storage.take` fills it.

    Args:
        generators: the members' random streams.

    Attributes:
        skeleton: the plain module that stands for all members.
        slots: where the members' tensors are put in it.
        tensors: a module of no class of its own, with the parameters, buffers and submodules of the skeleton; finding
            them by name runs no code of the model's.
        engine: runs blocks of members.
        settings: how the members run.
        arenas, buffer_arenas, missing_grads, owned: see `FusedArray`.
        padding: clears the gradients of what is not owned.
        views: blocks whose parameters are leaves over the arenas' memory, by their members; see `blocks`.
        pending: members whose lazy modules have no shapes yet.
        proven: calls of which it is known that they can be run as the settings say.
        verified: kinds of calls that were compared with the plain module, and 2 where that is over.
        capture: whether calls may be recorded and replayed.
        followers: what keeps state per member beside the array; see `Follower`.
        told: whether there is nothing more to say of inputs that look as if they were per member.
    """

    skeleton: nn.Module
    slots: TensorSlots
    tensors: nn.Module
    engine: Engine
    padding: Padding
    owned: dict[str, Tensor]

    def __init__(self, generators: MemberGenerators) -> None:
        self.generators = generators
        self.settings = ExecutionSettings(len(generators))
        self.arenas: list[Arena] = []
        self.buffer_arenas: list[Arena] = []
        self.missing_grads: dict[str, list[int]] = {}
        self.views: dict[tuple[int, int, bool], Block] = {}
        self.pending: list[nn.Module] = []
        self.proven: set[tuple[Any, ...]] = set()
        self.verified: dict[tuple[Any, ...], int] = {}
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()
        self.capture, self.told = True, False

    def __len__(self) -> int:
        return len(self.generators)

    def arena_of(self, name: str) -> Arena:
        """The arena in which a parameter lies."""
        return next(a for a in self.arenas if any(s.name == name for s in a.spans))

    def clear_padding(self, names: Collection[str]) -> None:
        """Set the gradients of padding to zero, of parameters with these names."""
        if self.owned and self.settings.block_size > 1:
            self.padding.clear(dict(self.tensors.named_parameters()), names)

    def snapshot(self) -> Callable[[], None]:
        """Remember what a call changes beside gradients; the function returned puts it back."""
        saved = [a.data.clone() for a in self.buffer_arenas]
        states = [dict(s) for s in self.generators.states]
        attributes = self.engine.attributes.copy()
        resized_buffers = {name: dict(rows) for name, rows in self.engine.resized_buffers.items()}

        def restore() -> None:
            with torch.no_grad():
                for arena, value in zip(self.buffer_arenas, saved, strict=True):
                    arena.data.copy_(value)
            self.generators.states = [dict(s) for s in states]
            self.engine.attributes = attributes.copy()
            self.engine.reset_member_modules()
            self.engine.resized_buffers = {name: dict(rows) for name, rows in resized_buffers.items()}

        return restore
