"""What the optimizers of an array share: hyperparameters per member, state over the flat arena, dropping members."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hfta_nb.array import FusedArray
from hfta_nb.array.arena import Arena
from hfta_nb.errors import OptimError
from hfta_nb.optim.values import Values


@dataclass
class Segment:
    """Neighbouring parameters of an arena that have always been updated together.

    Normally there is one per arena. A parameter without gradient is skipped with its state, step count
    included, as in torch; it then becomes a segment of its own.

    Attributes:
        steps: updates so far, per member.
    """

    arena: int
    names: list[str]
    start: int
    stop: int
    steps: list[int]
    state: dict[str, Tensor] = field(default_factory=dict)


class ArrayOptimizer(abc.ABC):
    """Base of the optimizers: one elementwise pass over ``[M, P]``, hyperparameters ``[M, 1]``.

    Args:
        array: the array whose parameters are trained (those that require a gradient).
        hyperparameters: by name.

    Attributes:
        hyper: `Values` by name; lr schedulers replace them.
    """

    state_names: tuple[str, ...] = ()

    def __init__(self, array: FusedArray, hyperparameters: Mapping[str, Any]) -> None:
        if not isinstance(array, FusedArray):
            raise OptimError(
                "not a FusedArray", where=type(self).__name__, got=array, accepted="what hfta_nb.fuse gives"
            )
        self.array = array
        self.hyper = {k: Values.of(k, v, len(array)) for k, v in hyperparameters.items()}
        self.initial = dict(self.hyper)
        self._segments = self._first_segments()
        if not self._segments:
            raise OptimError("no parameter requires a gradient", where=type(self).__name__)

    def _first_segments(self) -> list[Segment]:
        trainable = {k for k, p in self.array.named_parameters() if p.requires_grad}
        found: list[Segment] = []
        for number, arena in enumerate(self.array.arenas):
            for span in arena.spans:
                if span.name not in trainable:
                    continue
                last = found[-1] if found else None
                if last and last.arena == number and self._adjacent(arena, last.names[-1], span.name):
                    last.names.append(span.name)
                    last.stop = span.stop
                else:
                    found.append(Segment(number, [span.name], span.start, span.stop, [0] * len(self.array)))
        return found

    @staticmethod
    def _adjacent(arena: Arena, before: str, after: str) -> bool:
        names = [s.name for s in arena.spans]
        return names.index(after) == names.index(before) + 1

    # Public.

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or set them to zero."""
        for p in self.array.parameters():
            if p.grad is not None:
                if set_to_none:
                    p.grad = None
                else:
                    p.grad.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient, each member with its own hyperparameters."""
        parameters = dict(self.array.named_parameters())
        have = {k for k, p in parameters.items() if p.grad is not None}
        for segment in self._split(have):
            arena = self.array.arenas[segment.arena]
            for name in segment.names:
                p = parameters[name]
                if not arena.holds_grad(p, name):
                    assert p.grad is not None  # it is in `have`
                    arena.grad_view(name).copy_(p.grad)
            missing = self._missing(segment)
            if missing:
                self._update_some(segment, arena, [i for i in range(len(self.array)) if i not in missing])
            else:
                self._update_all(segment, arena)

    def select(self, indices: Sequence[int], array: FusedArray) -> ArrayOptimizer:
        """The optimizer of ``array``, which is ``self.array.select(indices)``, with these members' state."""
        chosen = list(indices)
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.array = array
        other.hyper = {k: v.select(chosen) for k, v in self.hyper.items()}
        other.initial = {k: v.select(chosen) for k, v in self.initial.items()}
        other._segments = [
            Segment(
                s.arena,
                list(s.names),
                s.start,
                s.stop,
                [s.steps[i] for i in chosen],
                {k: t[chosen] for k, t in s.state.items()},
            )
            for s in self._segments
        ]
        return other

    def state_dict(self) -> dict[str, Any]:
        """Hyperparameters, step counts and state: tensors, numbers, lists and dicts only."""
        return {
            "hyper": {k: list(v.per_member) for k, v in self.hyper.items()},
            "initial": {k: list(v.per_member) for k, v in self.initial.items()},
            "segments": [
                {
                    "arena": s.arena,
                    "names": list(s.names),
                    "start": s.start,
                    "stop": s.stop,
                    "steps": list(s.steps),
                    "state": {k: t.clone() for k, t in s.state.items()},
                }
                for s in self._segments
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave.

        Raises:
            OptimError: it is of another optimizer, other parameters or another number of members.
        """
        members = len(self.array)
        if set(state.get("hyper", {})) != set(self.hyper):
            raise OptimError(
                "the state of another optimizer", where=type(self).__name__, got=sorted(state.get("hyper", {}))
            )
        own = [n for s in self._segments for n in s.names]
        names = [n for s in state["segments"] for n in s["names"]]
        lengths = {len(s["steps"]) for s in state["segments"]}
        if sorted(own) != sorted(names) or lengths != {members}:
            raise OptimError("the state of another array", where=type(self).__name__, got=f"{names} x {lengths}")
        self.hyper = {k: Values.of(k, list(v), members) for k, v in state["hyper"].items()}
        self.initial = {k: Values.of(k, list(v), members) for k, v in state["initial"].items()}
        self._segments = []
        for s in state["segments"]:
            like = self.array.arenas[s["arena"]].data
            tensors = {k: t.to(like.device, like.dtype, copy=True) for k, t in s["state"].items()}
            self._segments.append(
                Segment(s["arena"], list(s["names"]), s["start"], s["stop"], list(s["steps"]), tensors)
            )

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v!r}" for k, v in self.hyper.items())
        return f"{type(self).__name__}({shown})"

    # For subclasses.

    @abc.abstractmethod
    def update(
        self,
        p: Float[Tensor, "M P"],
        g: Float[Tensor, "M P"],
        state: dict[str, Tensor],
        hyper: Mapping[str, Values],
        steps: list[int],
    ) -> None:
        """Update in place.

        Args:
            p: parameters of all members, a row each.
            g: gradients; may be overwritten.
            state: by name; empty at the first step, when the optimizer makes what it needs.
            hyper: hyperparameters.
            steps: per member, which step this is, from 1.
        """

    # Within.

    def _split(self, have: set[str]) -> Iterator[Segment]:
        """Segments whose parameters have gradients; a segment that has some and lacks some is split first."""
        segments: list[Segment] = []
        for segment in self._segments:
            segments += self._divided(segment, have)
        self._segments = segments
        return (s for s in segments if s.names[0] in have)

    def _divided(self, segment: Segment, have: set[str]) -> list[Segment]:
        missing = self.array.missing_grads
        keys = [(n in have, tuple(missing.get(n, ()))) for n in segment.names]
        if len(set(keys)) == 1:
            return [segment]
        spans = {s.name: s for s in self.array.arenas[segment.arena].spans}
        parts: list[Segment] = []
        for i, name in enumerate(segment.names):
            if i and keys[i] == keys[i - 1]:
                parts[-1].names.append(name)
                parts[-1].stop = spans[name].stop
            else:
                parts.append(Segment(segment.arena, [name], spans[name].start, spans[name].stop, list(segment.steps)))
        for part in parts:
            columns = slice(part.start - segment.start, part.stop - segment.start)
            part.state = {k: t[:, columns].clone() for k, t in segment.state.items()}
        return parts

    def _missing(self, segment: Segment) -> list[int]:
        return self.array.missing_grads.get(segment.names[0], [])

    def _update_all(self, segment: Segment, arena: Arena) -> None:
        segment.steps = [n + 1 for n in segment.steps]
        columns = slice(segment.start, segment.stop)
        self.update(arena.data[:, columns], arena.grad[:, columns], segment.state, self.hyper, segment.steps)

    def _update_some(self, segment: Segment, arena: Arena, rows: list[int]) -> None:
        """The update of some members only; the others keep values, state and step count."""
        if not rows:
            return
        columns = slice(segment.start, segment.stop)
        p, g = arena.data[rows, columns], arena.grad[rows, columns]
        state = {k: t[rows] for k, t in segment.state.items()}
        steps = [segment.steps[i] + 1 for i in rows]
        self.update(p, g, state, {k: v.select(rows) for k, v in self.hyper.items()}, steps)
        arena.data[rows, columns] = p
        for name, value in state.items():
            if name not in segment.state:
                segment.state[name] = value.new_zeros(len(self.array), value.shape[1])
            segment.state[name][rows] = value
        for i, n in zip(rows, steps, strict=True):
            segment.steps[i] = n
