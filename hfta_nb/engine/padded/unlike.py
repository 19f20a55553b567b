"""A position in the model where members have different modules, or some have none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.attributes import AttributeKey, tracked_attributes
from hfta_nb.engine.members.tensor_slots import TensorSlots
from hfta_nb.engine.members.tree import flatten
from hfta_nb.engine.members.views import narrowed
from hfta_nb.engine.padded.compare import difference
from hfta_nb.engine.padded.mode import PaddedMode, active
from hfta_nb.engine.padded.size_groups import Part, combined, nested
from hfta_nb.engine.padded.tags import Tag, box, full, rows_of, tag_of, tagged, views
from hfta_nb.engine.rules import Context, Disagreement
from hfta_nb.engine.rules.by_kind import by_kind, name_of


class Holder(nn.Module):
    """Holds parameters and buffers under the names that they have in the members."""


@dataclass(frozen=True)
class Alternative:
    """A module that some architectures have at a position.

    Attributes:
        names: from the module's own names of its parameters and buffers to those at the position.
    """

    module: nn.Module
    slots: TensorSlots
    names: dict[str, str]


class Unlike(Holder):
    """Runs members with the same kind of module together, and returns the input for members without a module.

    A member's numbers never pass through another member's module, so that they cannot affect its gradient.

    Attributes:
        kinds: the modules, each for some of the architectures.
        kind_of: by architecture, the index of its kind; None if it has no such module.
        choice: in a preallocated array, by kind, which architectures have it, bool on the device: all kinds run for all
            members then, and a member takes what its own gives. Which that is may change after a call was recorded.
    """

    UNTRACKED = frozenset({"kinds", "kind_of", "choice", "_kinds", "_own"})
    """Attributes that no model changes; see `eager.attributes`."""

    _kinds: list[Alternative]
    _own: TensorSlots

    def __init__(self, kinds: Sequence[nn.Module], kind_of: dict[int, int | None]) -> None:
        super().__init__()
        self.kinds, self.kind_of = list(kinds), kind_of
        self.training = kinds[0].training
        self.choice: list[Tensor] | None = None

    def index_tensors(self) -> None:
        """Find the slots of the tensors of the kinds, after all kinds have been added."""
        self._own, self._kinds = TensorSlots(self), []
        for module in self.kinds:
            slots = TensorSlots(module)
            self._kinds.append(Alternative(module, slots, {n: n for n in [*slots.parameters, *slots.buffers]}))

    def train(self, mode: bool = True) -> Unlike:
        """See `torch.nn.Module`; the kinds are no submodules, and follow."""
        super().train(mode)
        for kind in self.kinds:
            kind.train(mode)
        return self

    @property
    def bare(self) -> bool:
        """Whether every architecture has a module here, and none of them has tensors."""
        lacking = None in self.kind_of.values() or self._own.parameters or self._own.buffers
        return not lacking and all(not kind.names for kind in self._kinds)

    def kind_like(self, module: nn.Module) -> int | None:
        """Which of the kinds a module is."""
        return next((i for i, kind in enumerate(self.kinds) if difference(kind, module) is None), None)

    def choose(self, architectures: int, device: torch.device) -> None:
        """Let all kinds run for all members, if they are functions of one tensor."""
        if not self.bare:
            return
        self.choice = [torch.zeros(architectures, dtype=torch.bool, device=device) for _ in self.kinds]
        for architecture, number in self.kind_of.items():
            if number is not None:
                self.put(architecture, number)

    def put(self, architecture: int, kind: int) -> None:
        """Let an architecture have this kind."""
        self.kind_of[architecture] = kind
        for number, own in enumerate(self.choice or ()):
            own[architecture] = number == kind

    def _chosen(self, mode: PaddedMode, choice: Sequence[Tensor], x: Tensor) -> Tensor:
        first, last = mode.architectures[0], mode.architectures[-1]
        columns, names = [column[first : last + 1] for column in choice], list(map(name_of, self.kinds))
        if all(names) and x.device.type == "cpu" and mode.context.batched(x):
            stacked = mode.context.stacked(x)
            with mode.context.outside():
                together = by_kind(stacked, columns, ",".join(names))
            return mode.context.wrapped(together)
        own = [mode.context.wrapped(column) for column in columns]
        found: Tensor = self.kinds[-1](x)
        for kind, mine in zip(self.kinds[:-1], own, strict=False):
            found = torch.where(mine, kind(x), found)
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        for kind in self.kinds:
            if kind.training != self.training:
                kind.train(self.training)
        if self.choice is not None:
            if kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
                raise Disagreement("members of one kind run apart, so that none of another kind can come")
            return self._chosen(active(), self.choice, args[0])
        return in_groups(active(), self._kinds, self.kind_of, self._own.current(), args, kwargs)


def in_groups(
    mode: PaddedMode,
    kinds: Sequence[Alternative],
    kind_of: dict[int, int | None],
    state: dict[str, Tensor],
    args: Any,
    kwargs: Any,
) -> Any:
    """Run members with the same kind of module together; members without a module return their first input.

    Args:
        state: the tensors at the position, as one member sees them.
    """
    groups: dict[int | None, list[int]] = {}
    for row, architecture in enumerate(mode.architectures):
        groups.setdefault(kind_of[architecture], []).append(row)
    if None in groups and not args and not kwargs:
        raise Disagreement("a member has no such module, and there is no input to hand through")
    context = mode.context
    with context.outside():
        parts = []
        for kind, rows in groups.items():
            if kind is None:
                parts.append(_handed_through(context, rows, args, kwargs))
            else:
                parts.append(_run(mode, kinds[kind], rows, args, kwargs, state))
        return combined(context, parts)


def _run(
    mode: PaddedMode, kind: Alternative, rows: list[int], args: Any, kwargs: Any, state: dict[str, Tensor]
) -> Part:
    context = mode.context
    leaves, rebuild = flatten((args, kwargs), sizes=True)
    names = list(kind.names)
    tensors = [*leaves, *(state[kind.names[n]] for n in names)]
    batched = [isinstance(v, Tensor) and context.batched(v) for v in tensors]
    own = [_rows(context, v, rows) if b else (v, None) for v, b in zip(tensors, batched, strict=True)]
    found: dict[str, Any] = {}
    changes: dict[AttributeKey, Any] = {}

    def run(sub: Context, given: list[Any]) -> Any:
        for value, (_, tag) in zip(given, own, strict=True):
            if isinstance(value, Tensor) and tag is not None:
                tagged(value, tag)
        positional, named = rebuild(iter(given[: len(leaves)]))
        filled = dict(zip(names, given[len(leaves) :], strict=True))
        # The array sees what its own modules keep; these are not among them.
        watched = context.watching or bool(context.attributes.values)
        tracking = tracked_attributes(kind.module, kind.slots, {}, changes, deep=context.watching)
        with (
            PaddedMode(sub, mode.rules, [mode.architectures[r] for r in rows]),
            tracking if watched else nullcontext(),
        ):
            result, replaced = kind.slots.call(filled, lambda: kind.module(*positional, **named))
        if changes:
            raise Disagreement("the model keeps values on itself, which members of other sizes can't share")
        values, found["rebuild"] = flatten(result, sizes=True)
        found["replaced"] = list(replaced)
        return values, list(replaced.values())

    values = [v for v, _ in own]
    learned = [v for name, v in zip(names, values[len(leaves) :], strict=True) if name in kind.slots.parameters]
    part = nested(context, rows, run, values, batched, () if views(rows) else learned)
    kept = len(part.leaves) - len(found["replaced"])
    changed = dict(zip(found["replaced"], part.leaves[kept:], strict=True))
    buffers = set(kind.slots.buffers)
    for name, (value, _) in zip(names, own[len(leaves) :], strict=True):
        # Adjacent rows are views: values written into them are already in place.
        if name in buffers and name not in changed and not views(rows):
            changed[name] = value
    for name, value in changed.items():
        _keep(context, state[kind.names[name]], value, rows)
    return Part(rows, part.leaves[:kept], part.tags[:kept], found["rebuild"])


def _rows(context: Context, tensor: Tensor, rows: list[int]) -> tuple[Tensor, Tag | None]:
    """Some members' rows without padding that none of them needs, and the tag of the remaining padding."""
    tag = tag_of(tensor)
    own = rows_of(context.stacked(tensor), rows)
    if tag is None:
        return own, None
    sub = tuple(None if c is None else tuple(c[r] for r in rows) for c in tag)
    boxes = [box(tensor.shape, tag, r) for r in rows]
    return narrowed(own, [max(n) for n in zip(*boxes, strict=True)]), sub


def _handed_through(context: Context, rows: list[int], args: Any, kwargs: Any) -> Part:
    leaves, rebuild = flatten(args[0] if args else next(iter(kwargs.values())), sizes=True)
    values, tags = [], []
    for leaf in leaves:
        value, tag = _rows(context, leaf, rows) if isinstance(leaf, Tensor) else (leaf, None)
        values.append(value)
        tags.append(None if tag is None or not any(c and len(set(c)) > 1 for c in tag) else tag)
    return Part(rows, values, tags, rebuild)


@torch.no_grad()
def _keep(context: Context, buffer: Tensor, value: Tensor, rows: list[int]) -> None:
    """Store some members' new values in a buffer; views that were written into already contain them."""
    whole = context.stacked(buffer)
    for i, row in enumerate(rows):
        target = narrowed(whole[row], box(buffer.shape, full(buffer), row), 0)
        target.copy_(narrowed(value[i], target.shape, 0))
