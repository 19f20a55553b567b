"""Which columns of an array's arenas are updated in one pass, with their state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hfta_nb.engine.array import Arena, FusedArray, Span
from hfta_nb.optim.fused_kernels import FusedCalls
from hfta_nb.optim.hyperparameters import Columns, HostColumn
from hfta_nb.optim.one_pass import Numbers, OnePass, settings


@dataclass
class Segment:
    """Neighbouring parameters of an arena that have always been updated together.

    Normally there is one per arena and group. A parameter without gradient is skipped with its state, step count
    included, as in torch; it then becomes a segment of its own.

    Attributes:
        counted: updates so far, per member, as far as they were counted on the host; see `steps`.
        state: by name ``[M, columns]``.
        scalars: state that is one number per member.
        fused: the step by a bound kernel, while it is that which counts.
        begun: whether each member has what its first step needs.
    """

    group: int
    arena: int
    spans: list[Span]
    counted: HostColumn
    state: dict[str, Tensor] = field(default_factory=dict)
    scalars: dict[str, HostColumn] = field(default_factory=dict)
    columns: Columns = field(default_factory=Columns)
    fused: FusedCalls | OnePass | None = None
    begun: bool = False

    @property
    def steps(self) -> HostColumn:
        """Updates so far, per member; a member with none has no state yet, whatever `state` holds."""
        if self.fused is not None:
            self.counted = self.fused.counts.cpu().numpy().astype(np.int64)
        return self.counted

    @steps.setter
    def steps(self, steps: HostColumn) -> None:
        self.counted, self.fused = steps, None

    @property
    def names(self) -> list[str]:
        return [s.name for s in self.spans]

    @property
    def places(self) -> list[slice]:
        """Where each parameter is among the columns."""
        return [slice(s.start - self.start, s.stop - self.start) for s in self.spans]

    @property
    def start(self) -> int:
        return self.spans[0].start

    @property
    def stop(self) -> int:
        return self.spans[-1].stop

    def padding(self, owned: Mapping[str, Tensor], like: Tensor) -> Tensor:
        """``[M, columns]``, True where nothing lies: between two parameters, and where `owned` says so."""
        mask = torch.ones(len(like), self.stop - self.start, dtype=torch.bool, device=like.device)
        for s in self.spans:
            own = owned.get(s.name)
            inner = mask[:, s.start - self.start : s.stop - self.start]
            inner.copy_(torch.zeros_like(inner) if own is None else ~own.reshape(len(like), -1).to(like.device))
        return mask


def pass_of(
    optimizer: Any,
    segment: Segment,
    p: Tensor,
    g: Tensor,
    state: dict[str, Tensor],
    values: Numbers,
    more: Callable[[HostColumn], Numbers] = lambda steps: {},
) -> OnePass:
    """The step of a segment: the one that it has, or another one.

    Args:
        optimizer: a `Rule`.
        segment: as are the others, see `FlatOptimizer.fused_calls`.
        more: from the updates so far, per member, to further values.
    """
    tensors, lrs, old = [p, g, *state.values()], values["lr"].tolist(), segment.fused
    if isinstance(old, OnePass) and old.over(tensors, settings(optimizer, values)):
        old.learn(lrs)
        return old
    return OnePass(optimizer, tensors, {**values, **more(segment.steps)}, segment.steps)


@dataclass
class Entry:
    """The state of one parameter, all members: what a `Segment` holds for one of its parameters."""

    steps: HostColumn
    state: dict[str, Tensor]
    scalars: dict[str, HostColumn]

    def like(self, other: Entry) -> bool:
        """Whether both can stand in one segment."""
        return (
            np.array_equal(self.steps, other.steps)
            and self.state.keys() == other.state.keys()
            and self.scalars.keys() == other.scalars.keys()
            and all(np.array_equal(v, other.scalars[k]) for k, v in self.scalars.items())
        )


def entries(segments: Sequence[Segment], members: int) -> dict[str, Entry]:
    """State by parameter, each tensor ``[M, *shape]``, not copied."""
    found = {}
    for segment in segments:
        for s in segment.spans:
            a, b = s.start - segment.start, s.stop - segment.start
            state = {k: t[:, a:b].view(members, *s.shape) for k, t in segment.state.items()}
            found[s.name] = Entry(segment.steps, state, segment.scalars)
    return found


def laid_out(array: FusedArray, groups: Sequence[Sequence[str]], known: Mapping[str, Entry]) -> list[Segment]:
    """Segments over the array's arenas as they are now.

    Args:
        groups: names of parameters, by group.
        known: their state so far; without, a parameter begins anew.
    """
    group_of = {name: k for k, names in enumerate(groups) for name in names}
    segments: list[Segment] = []
    for number, arena in enumerate(array.arenas):
        run: list[tuple[Span, Entry]] = []
        last = -2
        for place, span in enumerate(arena.spans):
            if span.name not in group_of:
                continue
            entry = known.get(span.name) or Entry(np.zeros(len(array), dtype=np.int64), {}, {})
            joins = run and last == place - 1
            if joins and group_of[run[-1][0].name] == group_of[span.name] and run[-1][1].like(entry):
                run.append((span, entry))
            else:
                if run:
                    segments.append(_segment(group_of[run[0][0].name], number, arena, run))
                run = [(span, entry)]
            last = place
        if run:
            segments.append(_segment(group_of[run[0][0].name], number, arena, run))
    return segments


def _segment(group: int, number: int, arena: Arena, run: Sequence[tuple[Span, Entry]]) -> Segment:
    first = run[0][1]
    scalars = {k: v.copy() for k, v in first.scalars.items()}
    segment = Segment(group, number, [s for s, _ in run], first.steps.copy(), {}, scalars)
    data = arena.data
    for key in first.state:
        flat = data.new_zeros(data.shape[0], segment.stop - segment.start)
        for s, entry in run:
            a = s.start - segment.start
            flat[:, a : a + s.numel].copy_(entry.state[key].reshape(data.shape[0], s.numel))
        segment.state[key] = flat
    return segment


def divided(segment: Segment, keys: Sequence[object]) -> list[Segment]:
    """The segment in parts whose parameters have one key each."""
    if all(k == keys[0] for k in keys[1:]):
        return [segment]
    parts: list[list[Span]] = []
    for i, span in enumerate(segment.spans):
        if i and keys[i] == keys[i - 1]:
            parts[-1].append(span)
        else:
            parts.append([span])
    found = []
    for spans in parts:
        columns = slice(spans[0].start - segment.start, spans[-1].stop - segment.start)
        state = {k: t[:, columns].clone() for k, t in segment.state.items()}
        scalars = {k: v.copy() for k, v in segment.scalars.items()}
        found.append(Segment(segment.group, segment.arena, spans, segment.steps.copy(), state, scalars))
    return found
