"""Running a block of an array's members at once through `vmap`, or a single member as the plain module it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hfta_nb.array.generators import MemberGenerators
from hfta_nb.array.per_member import PerMember
from hfta_nb.array.rules import RULES, Context, RuleMode
from hfta_nb.array.rules.base import vmap_level
from hfta_nb.array.slots import Slots
from hfta_nb.errors import FusionError

Call = Callable[[list[Any]], Any]
"""What to compute for one member, from the leaves of its inputs, while its tensors are in the module."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of a call taken apart: leaves, which of them are per member, and how to put them together."""

    leaves: tuple[Any, ...]
    per_member: tuple[bool, ...]
    spec: Any

    @classmethod
    def of(cls, tree: Any, members: int) -> Inputs:
        leaves, spec = pytree.tree_flatten(tree)
        marked = tuple(isinstance(v, PerMember) for v in leaves)
        for leaf, mark in zip(leaves, marked, strict=True):
            if mark and not isinstance(leaf.value, Tensor):
                raise FusionError("an input that is per member must be a tensor", where="per_member", got=leaf.value)
            if mark and len(leaf) != members:
                raise FusionError(
                    "another number of members",
                    where="per_member input",
                    got=list(leaf.value.shape),
                    accepted=f"a first axis of {members}, the array's members",
                )
        return cls(tuple(v.value if m else v for v, m in zip(leaves, marked, strict=True)), marked, spec)

    def structure(self, leaves: list[Any]) -> Any:
        return pytree.tree_unflatten(leaves, self.spec)

    def member(self, index: int) -> list[Any]:
        return [v[index] if m else v for v, m in zip(self.leaves, self.per_member, strict=True)]

    def block(self, start: int, stop: int) -> list[Any]:
        return [v[start:stop] if m else v for v, m in zip(self.leaves, self.per_member, strict=True)]

    def grad_leaves(self) -> list[Tensor]:
        """Inputs through which a gradient is wanted."""
        return [v for v in self.leaves if isinstance(v, Tensor) and v.requires_grad]


@dataclass(frozen=True)
class Block:
    """Members ``start .. stop`` with their tensors.

    The tensors have a leading axis of the block's members, or none where `single`: then they are those of one
    plain module. `grad_rows` is where the gradients of leaf parameters go.
    """

    start: int
    stop: int
    single: bool
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    grad_rows: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass
class Engine:
    """What a call needs of its array.

    Attributes:
        used: per function that the model called while `recording`, how it was fused.
    """

    slots: Slots
    generators: MemberGenerators
    used: dict[str, str]
    recording: bool = False

    def run(self, block: Block, call: Call, inputs: Inputs) -> Any:
        """Every member's result, each tensor with a leading axis of the block's members."""
        return self._one(block, call, inputs) if block.single else self._many(block, call, inputs)

    def _one(self, block: Block, call: Call, inputs: Inputs) -> Any:
        leaves = inputs.member(block.start)
        with self.generators.member(block.start):
            result, replaced = self.slots.call({**block.parameters, **block.buffers}, lambda: call(leaves))
        self._keep(block, replaced)
        return pytree.tree_map_only(Tensor, lambda t: t.unsqueeze(0), result)

    def _many(self, block: Block, call: Call, inputs: Inputs) -> Any:
        given = inputs.block(block.start, block.stop)
        tensors = [v for v in given if isinstance(v, Tensor)]
        dims = [0 if m else None for v, m in zip(given, inputs.per_member, strict=True) if isinstance(v, Tensor)]
        names_p, names_b = list(block.parameters), list(block.buffers)
        static: dict[str, Any] = {}

        def one(parameters: list[Tensor], buffers: list[Tensor], batched: list[Tensor]) -> Any:
            state = {**dict(zip(names_p, parameters, strict=True)), **dict(zip(names_b, buffers, strict=True))}
            left = iter(batched)
            leaves = [next(left) if isinstance(v, Tensor) else v for v in given]
            context = Context(
                block.stop - block.start, block.start, self.generators, vmap_level(), self.used, self.recording
            )
            with RuleMode(context, RULES):
                result, replaced = self.slots.call(state, lambda: call(leaves))
            values, static["spec"] = pytree.tree_flatten(result)
            static["leaves"], static["replaced"] = values, list(replaced)
            return [v for v in values if isinstance(v, Tensor)], list(replaced.values())

        state = list(block.parameters.values()), list(block.buffers.values())
        in_dims = (0, 0, dims) if tensors else (0, 0, None)
        # "error": whatever draws random numbers has a rule, so a draw that reaches vmap has slipped through.
        results, replaced = torch.func.vmap(one, in_dims=in_dims, randomness="error")(*state, tensors)
        self._keep(block, dict(zip(static["replaced"], replaced, strict=True)))
        left = iter(results)
        values = [next(left) if isinstance(v, Tensor) else v for v in static["leaves"]]
        return pytree.tree_unflatten(values, static["spec"])

    def _keep(self, block: Block, replaced: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in replaced.items():
                block.buffers[name].copy_(value)


def snapshot(buffers: Mapping[str, Tensor], generators: MemberGenerators) -> Callable[[], None]:
    """Remember what a forward changes; the function returned puts it back."""
    saved = {name: value.detach().clone() for name, value in buffers.items()}
    states = [dict(s) for s in generators.states]

    def restore() -> None:
        with torch.no_grad():
            for name, value in saved.items():
                buffers[name].copy_(value)
        generators.states = states

    return restore


def concatenate(results: list[Any]) -> Any:
    """The results of successive blocks as one, tensors joined along the member axis."""
    if len(results) == 1:
        return results[0]
    return pytree.tree_map(lambda *v: torch.cat(v) if isinstance(v[0], Tensor) else v[0], *results)
