"""The inputs of a call: tensors that members share, and those of which each has its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hfta_nb.engine.eager.given_objects import GivenObjects, with_copies
from hfta_nb.engine.equality import same_bits
from hfta_nb.engine.members.per_member import PerMember
from hfta_nb.engine.members.tree import Rebuild, flatten, unflatten
from hfta_nb.errors import FusionError


class _Copy(NamedTuple):
    """What some members were given in place of a tensor.

    Attributes:
        leaf: the number of the tensor among the leaves.
        members: who.
        rows: the copy, with a leading axis of these members.
        version: of it, before they ran.
    """

    leaf: int
    members: Sequence[int]
    rows: Tensor
    version: int


@dataclass(slots=True)  # not frozen: that would make construction four times slower
class Inputs:
    """The flattened inputs of a call.

    Attributes:
        leaves: tensors and other values.
        per_member: for each leaf, whether it has a member axis.
        rebuild: puts the leaves together again.
        copies: members get copies, as the model writes into what it is given. Each with its leaf, its members and the
            version that it had; None where members get the tensors themselves.
        objects: what members get in place of objects that a call may change, as random streams.
    """

    leaves: tuple[Any, ...]
    per_member: tuple[bool, ...]
    rebuild: Rebuild
    copies: list[_Copy] | None = None
    objects: GivenObjects | None = None

    @classmethod
    def of(cls, tree: Any, members: int) -> Inputs:
        leaves, rebuild = flatten(tree)
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
        return cls(tuple(v.value if m else v for v, m in zip(leaves, marked, strict=True)), marked, rebuild)

    @classmethod
    def positional(cls, tensors: tuple[Tensor, ...]) -> Inputs:
        """The inputs of a call with shared tensors only, and no keywords."""
        return cls(tensors, (False,) * len(tensors), positional)

    def check_values(self, device: torch.device) -> None:
        """Check that inputs are on the device "meta" only if the members are: torch's kernels for both don't always.

        Raises:
            FusionError: one is there alone, or not there.
        """
        for k, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor) and leaf.is_meta != (device.type == "meta") and (leaf.is_meta or leaf.ndim):
                what = (
                    "without values, where members have some"
                    if leaf.is_meta
                    else "with values, where members have none"
                )
                remedy = f"make the tensor on the members' device, {device}"
                raise FusionError(what, where=f"input {k}", got=f"{list(leaf.shape)} on {leaf.device}",
                                  accepted=f"tensors on {device}", remedy=remedy)  # fmt: skip

    def structure(self, leaves: list[Any]) -> Any:
        tree = unflatten(self.rebuild, leaves)
        if self.objects is not None:
            self.objects.note(tree, leaves)
        return tree

    def member(self, index: int) -> list[Any]:
        given = self._given()
        if self.copies is None:
            return [v[index] if m else v for v, m in zip(given, self.per_member, strict=True)]
        return [v[0] if isinstance(v, Tensor) else v for v in self._copied(given, [index])]

    def block(self, members: Sequence[int]) -> tuple[list[Any], list[bool]]:
        """The leaves for some members, and which of them have a member axis."""
        given = self._given()
        if self.copies is None:
            pairs = list(zip(given, self.per_member, strict=True))
            return [_rows(v, members) if m else v for v, m in pairs], list(self.per_member)
        return self._copied(given, members), [isinstance(v, Tensor) for v in given]

    def _given(self) -> Sequence[Any]:
        """The leaves, with copies of the objects that a call may change."""
        return self.leaves if self.objects is None else self.objects.copied(self.leaves)

    def _copied(self, given: Sequence[Any], members: Sequence[int]) -> list[Any]:
        """Copies of the tensors, with a member axis; a tensor that occurs twice is copied once."""
        leaves: list[Any] = []
        known: dict[tuple[int, bool], Tensor] = {}
        assert self.copies is not None
        for k, (v, m) in enumerate(zip(given, self.per_member, strict=True)):
            own = v
            if isinstance(v, Tensor):
                own = known.get((id(v), m))
                if own is None:
                    own = _rows(v, members).clone() if m else v.unsqueeze(0).repeat(len(members), *[1] * v.ndim)
                    known[id(v), m] = own
                    self.copies.append(_Copy(k, members, own, own._version))
            leaves.append(own)
        return leaves

    @torch.no_grad()
    def give_back(self) -> bool:
        """Write into the tensors what members have written into their copies, which they no longer use then.

        A tensor that all members share gets what each of them has written, if that is the same.

        Returns:
            False if members have written unlike values into a tensor that they share, or have replaced its memory:
            it is left as it was.
        """
        written: dict[int, list[_Copy]] = {}
        for copy in self.copies or ():
            written.setdefault(copy.leaf, []).append(copy)
        agreed = True
        for k, copies in written.items():
            value = self.leaves[k]
            # What is part of a graph could not be given to another call.
            graph = value.requires_grad or any(copy.rows.requires_grad for copy in copies)
            rows = [row for copy in copies for row in copy.rows]
            if graph or not self._changed(k, copies, rows):
                continue
            if any(row.shape != value[0 if self.per_member[k] else ...].shape for row in rows):
                agreed = False  # as by `squeeze_`; the caller's tensor keeps its shape
                continue
            with torch.inference_mode(value.is_inference()):
                if self.per_member[k]:
                    for member, row in zip((i for copy in copies for i in copy.members), rows, strict=True):
                        value[member].copy_(row)
                elif all(same_bits(row, rows[0]) for row in rows[1:]):
                    value.copy_(rows[0])
                else:
                    agreed = False
        self.copies = None
        return agreed

    def _changed(self, leaf: int, copies: Sequence[_Copy], rows: Sequence[Tensor]) -> bool:
        """Whether members have written into their copies; versions don't tell of ``.data`` and NumPy's views."""
        if any(copy.rows._version != copy.version for copy in copies):
            return True
        value, members = self.leaves[leaf], [i for copy in copies for i in copy.members]
        own = self.per_member[leaf]
        return not value.is_meta and any(
            not same_bits(row, value[i] if own else value) for i, row in zip(members, rows, strict=True)
        )

    def apart(self) -> Inputs:
        """Copies of the inputs, except those that require a gradient: what is written into either does not show in the
        other. What occurs twice is copied once."""
        made = {id(v): v.clone() for v in self.leaves if isinstance(v, Tensor) and not v.requires_grad}
        return replace(self, leaves=tuple(made.get(id(v), v) for v in with_copies(self.leaves)), copies=None)

    def written(self, apart: Inputs) -> bool:
        """Whether a call has written into what `apart` gave, replaced its memory, or let it require a gradient."""
        return any(
            own is not given and (own._version or own.requires_grad or not same_bits(own, given))
            for own, given in zip(apart.leaves, self.leaves, strict=True)
            if isinstance(given, Tensor)
        )

    def grad_leaves(self) -> list[Tensor]:
        """Inputs that require a gradient, each once."""
        return list({id(v): v for v in self.leaves if isinstance(v, Tensor) and v.requires_grad}.values())

    def of_member(self, grads: Sequence[Tensor | None], member: int) -> list[Tensor | None]:
        """One member's part of the gradients of `grad_leaves`; for shared inputs, the whole gradient."""
        pairs = zip(self.leaves, self.per_member, strict=True)
        marks = {id(v): m for v, m in pairs if isinstance(v, Tensor) and v.requires_grad}
        return [g[member] if m and g is not None else g for g, m in zip(grads, marks.values(), strict=True)]


def positional(leaves: Iterator[Any]) -> Any:
    """The arguments of a call with tensors only."""
    return tuple(leaves), {}


def _rows(value: Any, members: Sequence[int]) -> Any:
    """The rows of adjacent members as a view; those of others are copied."""
    start, stop = members[0], members[-1] + 1
    return value[start:stop] if stop - start == len(members) else value[list(members)]
