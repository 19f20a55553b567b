"""Muon."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hfta_nb.errors import OptimError
from hfta_nb.optim.elementwise_passes import choose, lerp_
from hfta_nb.optim.flat import FlatOptimizer
from hfta_nb.optim.flat_state import Numbers
from hfta_nb.optim.groups import BY_SHAPE
from hfta_nb.optim.hyperparameters import DECAY, FLAG, LR, Columns, HostColumn, Kind, at_least
from hfta_nb.optim.own_entries import OwnEntries
from hfta_nb.optim.segments import Entry, Segment
from hfta_nb.optim.torch_arguments import TorchOptimizer

Iteration: TypeAlias = tuple[tuple[float, float, float], int, float]
"""Of Newton and Schulz: coefficients, steps, the smallest norm."""

_SMALL = 16
"""On a CPU torch multiplies matrices of up to 16 * 16 * 16 numbers by another kernel than batches of them."""

_ELEMENTWISE = ("rest", "momentum", "nesterov", "shrink")
"""Numbers of the passes over ``[M, P]``."""


class Muon(TorchOptimizer, FlatOptimizer):
    """Muon, each hyperparameter with one value, or one per member.

    The Newton-Schulz iteration runs on all members' matrices of one shape at once.

    Args:
        params: an array, its parameters, or groups of them; matrices all (of one member).
        lr: learning rate, at least 0.
        weight_decay: apart from the gradient, at least 0.
        momentum: at least 0.
        nesterov: look ahead.
        ns_coefficients: of the Newton-Schulz polynomial: a triple, or a list of triples, one per member.
        eps: the smallest norm divided by.
        ns_steps: of the Newton-Schulz iteration, below 100.
        adjust_lr_fn: None, "original" or "match_rms_adamw".

    Raises:
        OptimError: a value is out of bounds, a list has not one value per member, or a parameter is no matrix.

    Source: Jordan et al., 2024; `torch.optim.Muon`, member for member.
    """

    how = "all members' matrices of one shape at once"
    counts_steps = False
    torch_class = torch.optim.Muon
    torch_state = ("momentum_buffer",)
    kinds: ClassVar[Mapping[str, Kind]] = {
        "lr": LR,
        "weight_decay": DECAY,
        "momentum": at_least(0.0),
        "nesterov": FLAG,
        "ns_coefficients": Kind("three numbers", size=3),
        "eps": Kind("a number"),
        "ns_steps": Kind("a whole number below 100", lambda v: 0 <= v < 100 and v == int(v), convert=int),
        "adjust_lr_fn": Kind(
            'None, "original" or "match_rms_adamw"', words=(None, "original", "match_rms_adamw"), convert=str
        ),
    }

    def check(self, values: Mapping[str, HostColumn], parameters: Mapping[str, Tensor], where: str) -> None:
        for name, p in parameters.items():
            if p.ndim != 3 or p.is_complex():
                raise OptimError(
                    "not a matrix of real numbers",
                    where=f"{where}, {name}",
                    got=list(p.shape[1:]),
                    accepted="parameters of two axes (of one member)",
                    remedy=f"give the others to another optimizer; {BY_SHAPE}",
                )

    def states(self, values: Numbers) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def numbers(self, values: Numbers, steps: HostColumn, scalars: dict[str, HostColumn]) -> dict[str, HostColumn]:
        given = {k: values[k] for k in ("lr", "momentum", "nesterov", "adjust_lr_fn")}
        iterations = zip(values["ns_coefficients"].tolist(), values["ns_steps"], values["eps"], strict=True)
        keys = np.empty(len(steps), dtype=object)
        keys[:] = [(tuple(c), int(n), float(e)) for c, n, e in iterations]
        shrink = 1 - values["lr"] * values["weight_decay"]
        return {**given, "rest": 1 - values["momentum"], "shrink": shrink, "iteration": keys}

    def _lay_out(self, known: Mapping[str, Entry]) -> None:
        super()._lay_out(known)
        self._owns: list[OwnEntries] | None = None
        self._placed: dict[str, list[_Place]] = {}
        self._batched: dict[torch.Size, bool] = {}

    def _apply_in_pieces(
        self, p: Tensor, g: Tensor, state: dict[str, Tensor], numbers: Numbers, columns: Columns
    ) -> None:
        """A matrix can't be divided into pieces."""
        c = columns.on({name: numbers[name] for name in _ELEMENTWISE}, p)
        buffer = lerp_(state["momentum_buffer"], g, c["rest"])
        update = (
            buffer if c["nesterov"] is False else choose(c["nesterov"], lerp_(g.clone(), buffer, c["momentum"]), buffer)
        )
        change = torch.zeros_like(p)
        for (iteration, shape), places in self._batches(self.segment, numbers).items():
            parts = [place.taken(update).view(-1, *shape) for place in places]
            found = self._orthogonal(torch.cat(parts) if len(parts) > 1 else parts[0], iteration)
            for place, part in zip(places, torch.split(found, [len(own) for own in parts]), strict=True):
                rates = [_adjusted(numbers, i, shape) for i in place.members]
                place.put(
                    change, part.flatten(1).to(p.dtype) * torch.tensor(rates, dtype=p.dtype).to(p.device).unsqueeze(1)
                )
        p.mul_(c["shrink"]).sub_(change)

    def _orthogonal(self, matrices: Float[Tensor, "K r c"], iteration: Iteration) -> Float[Tensor, "K r c"]:
        """All at once, where that has the bits of one by one: a bit of bfloat16 is a 256th."""
        shape = matrices.shape[1:]
        if matrices.device.type == "cpu" and not self._batched.get(shape, False):
            each = torch.stack([orthogonal(matrix, *iteration) for matrix in matrices])
            if shape not in self._batched:
                same = min(shape) > _SMALL and torch.equal(orthogonal(matrices, *iteration), each)
                self._batched[shape] = same
            return each
        return orthogonal(matrices, *iteration)

    def apply(self, p: Tensor, g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any]) -> None:
        raise NotImplementedError  # `_apply_in_pieces` computes the whole update

    def _batches(self, segment: Segment, numbers: Numbers) -> dict[tuple[Iteration, tuple[int, int]], list[_Place]]:
        """Where matrices lie, by what they are computed with and by their shape."""
        found: dict[tuple[Iteration, tuple[int, int]], list[_Place]] = {}
        for span, columns in zip(segment.spans, segment.places, strict=True):
            if span.name not in self._placed:
                self._placed[span.name] = list(self._places(span.name, columns))
            for place in self._placed[span.name]:
                for iteration in dict.fromkeys(numbers["iteration"][i] for i in place.members):
                    own = [k for k, i in enumerate(place.members) if numbers["iteration"][i] == iteration]
                    found.setdefault((iteration, place.shape), []).append(place.of(own))
        return found

    def _places(self, name: str, columns: slice) -> Iterator[_Place]:
        """Where a matrix lies among the columns, by its shape: members of unlike width have their own."""
        members = range(len(self.array))
        if self._owns is None:
            self._owns = [OwnEntries(self.array, i) for i in members]
        shapes: dict[tuple[tuple[int, int], bool], list[int]] = {}
        for i, own in enumerate(self._owns):
            if own.has(name):
                rows, width = own.shape(name)
                shapes.setdefault(((rows, width), own.pads(name)), []).append(i)
        for (shape, pads), some in shapes.items():
            index = None
            if pads:
                masks = torch.stack([self._owns[i].masks[name].flatten() for i in some])
                index = masks.nonzero()[:, 1].view(len(some), -1) + columns.start
            yield _Place(some, shape, columns, index)


class _Place(NamedTuple):
    """Where a matrix of some members lies in ``[M, columns]``.

    Attributes:
        members: their numbers.
        shape: of the matrix.
        columns: of the parameter.
        own: ``[members, entries]``, each member's columns; None if they are all of them.
    """

    members: list[int]
    shape: tuple[int, int]
    columns: slice
    own: Tensor | None

    def of(self, some: list[int]) -> _Place:
        """Of some of the members."""
        if len(some) == len(self.members):
            return self
        own = None if self.own is None else self.own[some]
        return self._replace(members=[self.members[k] for k in some], own=own)

    def taken(self, values: Tensor) -> Tensor:
        """These entries ``[members, entries]`` of ``[M, columns]``."""
        rows = values if len(self.members) == len(values) else values[self.members]
        return rows[:, self.columns] if self.own is None else rows.gather(1, self.own.to(values.device))

    def put(self, values: Tensor, entries: Tensor) -> None:
        """Write these entries."""
        if self.own is None:
            values[self.members, self.columns] = entries
        else:
            at = torch.tensor(self.members, device=values.device).unsqueeze(1)
            values[at, self.own.to(values.device)] = entries


def orthogonal(
    matrices: Float[Tensor, "*K r c"], coefficients: tuple[float, float, float], steps: int, eps: float
) -> Float[Tensor, "*K r c"]:
    """The orthogonal matrix next to each matrix, about, by the Newton-Schulz iteration in bfloat16.

    Source: `torch.optim.Muon`; a single matrix has its bits.
    """
    a, b, c = coefficients
    product = torch.addmm if matrices.ndim == 2 else torch.baddbmm
    found, tall = matrices.bfloat16(), matrices.shape[-2] > matrices.shape[-1]
    if tall:
        found = found.mT
    found = found / found.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = found @ found.mT
        found = product(found, product(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.mT if tall else found


def _adjusted(numbers: Numbers, member: int, shape: tuple[int, int]) -> float:
    """A member's learning rate for matrices of a shape, as torch adjusts it."""
    rows, columns = shape
    if numbers["adjust_lr_fn"][member] == "match_rms_adamw":
        factor = 0.2 * math.sqrt(max(rows, columns))
    else:
        factor = math.sqrt(max(1, rows / columns))
    return float(numbers["lr"][member]) * factor
