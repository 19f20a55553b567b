"""Optimizers that update the flat arena in one elementwise pass."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from hfta_nb.engine.array import Arena
from hfta_nb.engine.array.access import clear_padded, keep_bits
from hfta_nb.errors import OptimError
from hfta_nb.optim.bound_step import BoundStep
from hfta_nb.optim.flat_state import FlatState, Numbers, of_rows
from hfta_nb.optim.flat_state import fill as fill_rows
from hfta_nb.optim.fused_kernels import FusedCalls
from hfta_nb.optim.hyperparameters import Columns, HostColumn
from hfta_nb.optim.one_pass import OnePass
from hfta_nb.optim.segments import Entry, Segment, divided, entries, laid_out
from hfta_nb.optim.surgery import Surgery

PIECE = 262144
"""Entries that an elementwise update takes at once on a CPU; measured: fewer cost calls, more leave the cache."""


class FlatOptimizer(FlatState):
    """Base of optimizers over the arenas.

    A subclass says which state it needs (`states`), computes the numbers of a step on the host (`numbers`) and applies
    them to all members at once (`apply`).

    Padding: entries that belong to no member (``array.owned``, by parameter name a mask ``[M, *shape]`` that is True
    where an entry is the member's; absent where nothing is padded) have value and gradient zero and stay zero.
    """

    how = "one pass over [M, P]"
    fused = False
    """Whether torch's fused kernels are asked for."""

    def settings(self) -> dict[str, Any]:
        return {"fused": self.fused}

    def torch_values(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "fused": True} if self.fused else values

    # For subclasses.

    def states(self, values: Numbers) -> tuple[str, ...]:
        """Names of the state that is needed."""
        return ()

    def fresh(self, name: str, values: Numbers) -> HostColumn | float:
        """What a state is filled with at first."""
        return 0.0

    @abc.abstractmethod
    def numbers(self, values: Numbers, steps: HostColumn, scalars: dict[str, HostColumn]) -> dict[str, HostColumn]:
        """What `apply` needs, per member.

        Args:
            values: hyperparameters.
            steps: which step this is, from 1.
            scalars: of this optimizer; replace what changes.
        """

    @abc.abstractmethod
    def apply(
        self, p: Float[Tensor, "M P"], g: Float[Tensor, "M P"], state: dict[str, Tensor], c: Mapping[str, Any]
    ) -> None:
        """Update in place.

        Args:
            p: parameters ``[M, P]``.
            g: gradients, not to be written to.
            state: by name.
            c: the `numbers`, each one number, or ``[M, 1]`` where members differ.
        """

    def room(self, like: Tensor) -> Tensor:
        """Memory for a passing result, the same at every step: fresh memory costs as much as the arithmetic."""
        key = like.shape, like.dtype, like.device
        if key not in self._rooms:
            self._rooms[key] = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        return self._rooms[key]

    def fused_calls(
        self, segment: Segment, p: Tensor, g: Tensor, state: dict[str, Tensor], values: Numbers
    ) -> FusedCalls | OnePass | None:
        """The step by a kernel that is bound to its tensors, instead of `apply`; None where there is none.

        Args:
            segment: whose step it is; `p`, `g` and `state` are as for `apply`.
            values: hyperparameters.
        """
        return None

    # The step.

    def _begin(self) -> None:
        self._lay_out({})

    def _grown(self) -> None:
        self._lay_out(self._entries())

    segment: Segment
    """The segment whose step is being computed."""

    def _lay_out(self, known: Mapping[str, Entry]) -> None:
        self._bound_step = None
        self._segments = laid_out(self.array, self._names, known)
        self._arenas = list(self.array.arenas)
        self._rooms: dict[tuple[Any, ...], Tensor] = {}
        self._padding: dict[tuple[int, int, int], Tensor] = {}

    def _entries(self) -> dict[str, Entry]:
        return entries(self._segments, len(self.array))

    def _update(self, values: Sequence[Numbers], skip: list[int]) -> None:
        self._follow_arenas()
        self._bound_step = None
        stepped = []
        for segment in list(self._ready()):  # all of them, so that what is refused has changed nothing
            left = sorted({*skip, *self.array.missing_grads.get(segment.spans[0].name, ())})
            if len(left) < len(self.array):
                self._advance(segment, values[segment.group], left, None if len(left) > len(skip) else self._marked)
                stepped.append(segment)
        if not self.array.missing_grads:
            self._bound_step = self._prepare_step(stepped, values)

    def _prepare_step(self, segments: Sequence[Segment], values: Sequence[Numbers]) -> BoundStep:
        """The step of these segments, with whatever can be bound bound."""
        gradients: list[tuple[nn.Parameter, Tensor | None]] = []
        ready = {s.name for segment in segments for s in segment.spans}
        for names, group in zip(self._names, self.param_groups, strict=True):
            for name, p in zip(names, group["params"], strict=True):
                gradients.append((p, self.array.arena_of(name).grad_view(name) if name in ready else None))
        calls: list[Callable[[Tensor | None], None]] = []
        skips = True
        for segment in segments:
            if segment.fused is None:
                skips = False
                calls.append(partial(self._advance_without, segment, values[segment.group]))
                continue
            calls.append(segment.fused)
            if self.owned() or self._eps_is_zero(segment):
                calls.append(partial(self._clear, segment, self._views(segment)[0]))
        return BoundStep(self.array, self.param_groups, list(self.kinds), gradients, calls, skips)

    def ready(self) -> tuple[Any, ...] | None:
        prepared = self._bound_step
        if prepared is None or not prepared.skips or not prepared.is_valid():
            return None
        segments = [s for s in self._segments if s.fused in prepared.calls]
        if not prepared.same_values(self.param_groups):
            values = self.read()
            for segment in segments:
                p, g = self._views(segment)
                state = {k: segment.state.get(k, p) for k in self.states(values[segment.group])}
                if self.fused_calls(segment, p, g, state, values[segment.group]) is not segment.fused:
                    return None
            self._bound_step = self._prepare_step(segments, values)
        return tuple(s.fused for s in segments)

    def tensors(self) -> dict[str, Tensor]:
        found = {f"{kind} of {name}": columns[:, place]
                 for s in self._segments for kind, columns in s.state.items()
                 for name, place in zip(s.names, s.places, strict=True)}  # fmt: skip
        counts = {f"steps of {s.names[0]}": s.fused.counts for s in self._segments if s.fused is not None}
        return found | counts

    def _advance_without(self, segment: Segment, values: Numbers, _: Tensor | None) -> None:
        self._advance(segment, values, [])

    def _clear(self, segment: Segment, p: Tensor, _: Tensor | None) -> None:
        self._clear_padding(segment, p)

    def _ready(self) -> Iterator[Segment]:
        """Segments whose parameters have gradients; one that has some and lacks some is divided first."""
        parameters = {name: p for ns, g in zip(self._names, self.param_groups, strict=True)
                      for name, p in zip(ns, g["params"], strict=True)}  # fmt: skip
        missing = self.array.missing_grads
        segments = []
        for segment in self._segments:
            keys = [(parameters[s.name].grad is not None, tuple(missing.get(s.name, ()))) for s in segment.spans]
            segments += divided(segment, keys)
        self._segments = segments
        for segment in segments:
            if parameters[segment.spans[0].name].grad is None:
                continue
            arena = self.array.arenas[segment.arena]
            self._fetch(arena, {s.name: parameters[s.name] for s in segment.spans})
            yield segment

    def _fetch(self, arena: Arena, parameters: Mapping[str, nn.Parameter]) -> None:
        """Copy gradients that lie elsewhere to the arena."""
        apart = {n: p.grad for n, p in parameters.items() if p.grad is not None and not arena.holds_grad(p, n)}
        for name, grad in apart.items():
            if grad.layout is not torch.strided:
                raise OptimError("a sparse gradient", where=f"{type(self).__name__}, {name}", remedy="use SparseAdam")
        if apart:
            torch._foreach_copy_([arena.grad_view(name) for name in apart], list(apart.values()))

    def _views(self, segment: Segment) -> tuple[Tensor, Tensor]:
        arena = self.array.arenas[segment.arena]
        columns = slice(segment.start, segment.stop)
        return arena.data[:, columns], arena.grad[:, columns]

    def _advance(self, segment: Segment, values: Numbers, left: list[int], marked: Tensor | None = None) -> None:
        """One step of a segment; members in `left` are put back afterwards, which costs the others not a bit.

        Args:
            marked: the same members marked on the device, which a bound kernel can leave out.
        """
        self.segment = segment
        p, g = self._views(segment)
        self._prepare(segment, p, values)
        state = {k: segment.state[k] for k in self.states(values)}
        fused = None if p.is_complex() else self.fused_calls(segment, p, g, state, values)
        if isinstance(fused, OnePass) and left:
            marked = fused.mask(left)
        marked, left = (None, left) if fused is None or marked is None else (marked, [])
        kept = None
        if left:
            kept = p[left], {k: v[left] for k, v in state.items()}, segment.steps[left]
            kept_scalars = {k: v[left] for k, v in segment.scalars.items()}
        if fused is not None:
            segment.fused = fused
            fused(marked)
        else:
            segment.steps = segment.steps + 1
            with np.errstate(over="ignore", invalid="ignore"):  # a member's number is infinite: it diverges
                numbers = self.numbers(values, segment.steps, segment.scalars)
            views = {k: _real(v) for k, v in state.items()}
            self._apply_in_pieces(_real(p), _real(g), views, numbers, segment.columns)
        self._clear_padding(segment, p)
        if kept is not None:
            p[left] = kept[0]
            for k, v in kept[1].items():
                state[k][left] = v
            steps = segment.steps.copy()
            steps[left] = kept[2]
            segment.steps, segment.begun = steps, False
            for k, rows in kept_scalars.items():
                segment.scalars[k] = segment.scalars[k].copy()
                segment.scalars[k][left] = rows

    def _apply_in_pieces(
        self, p: Tensor, g: Tensor, state: dict[str, Tensor], numbers: Numbers, columns: Columns
    ) -> None:
        """All at once; on a CPU in pieces that stay in its cache from one pass to the next, of whole rows or of one."""
        members, width = p.shape
        if p.device.type != "cpu" or p.numel() <= 2 * PIECE:
            self.apply(p, g, state, columns.on(numbers, p))
            return
        if width < PIECE // 2:
            c, height = columns.on(numbers, p), PIECE // width
            for top in range(0, members, height):
                rows = slice(top, top + height)
                own = {k: v[rows] if isinstance(v, Tensor) else v for k, v in c.items()}
                self.apply(p[rows], g[rows], {k: v[rows] for k, v in state.items()}, own)
            return
        for row in range(members):
            own = {k: v[row].item() for k, v in numbers.items()}
            for start in range(0, width, PIECE):
                part = slice(row, row + 1), slice(start, start + PIECE)
                self.apply(p[part], g[part], {k: v[part] for k, v in state.items()}, own)

    def _prepare(self, segment: Segment, p: Tensor, values: Numbers) -> None:
        """Make the state that is lacking, and that of members whose first step this is."""
        if all(k in segment.state for k in self.states(values)) and segment.begun:
            return
        new = np.flatnonzero(segment.steps == 0)
        segment.begun = True
        lacking = [k for k in self.states(values) if k not in segment.state]
        for name in lacking:
            segment.state[name] = torch.empty_like(p, memory_format=torch.contiguous_format)
        for name in segment.state:
            rows = slice(None) if name in lacking or len(new) == len(p) else new.tolist()
            if rows != []:
                fill = np.broadcast_to(self.fresh(name, values), (len(p),))[rows]
                fill_rows(segment.state[name], rows, fill)
        scalars = self.fresh_scalars(values) if len(new) else {}
        for name, fill in scalars.items():
            old = segment.scalars.get(name, fill)
            segment.scalars[name] = np.where(segment.steps == 0, fill, old).astype(fill.dtype)

    def _clear_padding(self, segment: Segment, p: Tensor) -> None:
        """An optimizer with ``eps=0`` divides zero by zero where nothing lies."""
        if self.owned() or self._eps_is_zero(segment):
            key = segment.arena, segment.start, segment.stop
            if key not in self._padding:
                self._padding[key] = keep_bits(segment.padding(self.owned(), p), p)
            clear_padded(p, self._padding[key])

    def _eps_is_zero(self, segment: Segment) -> bool:
        group = segment.group
        return "eps" in self.kinds and bool((self._readers[group].read(self.param_groups[group])["eps"] == 0).any())

    def owned(self) -> Mapping[str, Tensor]:
        """Which entries are a member's own; see the class."""
        return getattr(self.array, "owned", None) or {}

    # State.

    def _state(self) -> dict[str, Any]:
        return {
            name: {
                "steps": e.steps.tolist(),
                "tensors": {k: t.clone() for k, t in e.state.items()},
                "numbers": {k: v.tolist() for k, v in e.scalars.items()},
            }
            for name, e in self._entries().items()
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        known = {}
        shapes = dict(self.array.named_parameters())
        for name, saved in state.items():
            steps = np.array(saved["steps"], dtype=np.int64)
            tensors = dict(saved["tensors"])
            for key, value in tensors.items():
                if value.shape != shapes[name].shape:
                    raise OptimError("the state of another array", where=f"{type(self).__name__}, {name}, {key}",
                                     got=list(value.shape), accepted=str(list(shapes[name].shape)))  # fmt: skip
            known[name] = Entry(steps, tensors, {k: self._scalar(k, v) for k, v in saved["numbers"].items()})
        self._lay_out(known)

    def _scalar(self, name: str, values: Any) -> HostColumn:
        return np.array(values, dtype=scalar_dtype())

    def _copy_rows(self, src: int, dst: int) -> None:
        self._bound_step = None
        for segment in self._segments:
            for t in segment.state.values():
                t[dst].copy_(t[src])
            steps = segment.steps.copy()
            steps[dst] = steps[src]
            segment.steps, segment.begun = steps, False
            for v in segment.scalars.values():
                v[dst] = v[src]

    def _reset_row(self, index: int) -> None:
        self._bound_step = None
        self._padding.clear()  # of a member of other sizes, perhaps
        for segment in self._segments:
            steps = segment.steps.copy()
            steps[index] = 0
            segment.steps, segment.begun = steps, False

    def _take_rows(self, parts: Sequence[tuple[Surgery, Sequence[int]]]) -> None:
        found = [(o._entries(), list(rows)) for o, rows in parts if isinstance(o, FlatOptimizer)]
        self._lay_out(of_rows(found))


def scalar_dtype() -> Any:
    """What torch keeps an optimizer's numbers in: float32, or float64 where that is the default dtype."""
    return np.float64 if torch.get_default_dtype() == torch.float64 else np.float32


def _real(x: Tensor) -> Tensor:
    """A complex ``[M, P]`` as ``[M, 2 P]``, the same memory: torch treats the two parts as two parameters."""
    return torch.view_as_real(x).flatten(1) if x.is_complex() else x
