"""Averages of weights that follow the training: what is validated and taken home where `ema_decay` is given."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.access import parameter_arenas
from hfta_nb.train.step.own_rows import own_rows, put_own_rows
from hfta_nb.train.step.step_protocol import Row

AXIS = "ema_decay"


def averages(row: Row) -> bool:
    """Whether a member's weights are averaged."""
    return row.get(AXIS) is not None


class WeightAverages:
    """The averages of an array, as `torch.optim.swa_utils.AveragedModel` has them with `get_ema_multi_avg_fn`.

    The first update takes the weights as they are. Buffers are those of the model.

    Args:
        array: whose weights are averaged.
        decays: per member.
    """

    def __init__(self, array: FusedArray, decays: Sequence[float]) -> None:
        self.array, self.decays = array, [float(d) for d in decays]
        self.begun = [False] * len(self.decays)
        self._arenas, self._all = list(array.arenas), parameter_arenas(array)
        self._rows = [arena.data.clone() for arena in self._arenas]
        self._weights: dict[torch.dtype, Tensor] = {}

    @torch.no_grad()
    def update(self) -> None:
        """After an optimizer step."""
        self._follow_arenas()
        if not all(self.begun):
            self._weights = {}
        for arena, rows in zip(self.array.arenas, self._rows, strict=True):
            real = rows.real.dtype
            if real not in self._weights:
                own = [1 - d if begun else 1.0 for d, begun in zip(self.decays, self.begun, strict=True)]
                self._weights[real] = torch.tensor(own, dtype=torch.float64).to(rows.device, real).unsqueeze(1)
            rows.lerp_(arena.data, self._weights[real].to(rows.dtype))
        if not all(self.begun):
            self.begun, self._weights = [True] * len(self.decays), {}

    def _follow_arenas(self) -> None:
        """Lay the averages out anew if the array has other arenas: it trains what its members held once until now."""
        if len(self._arenas) == len(self.array.arenas) and all(map(operator.is_, self._arenas, self.array.arenas)):
            return
        known = {s.name: arena.view(s.name) for arena in self._all for s in arena.spans} | dict(self.by_name())
        self._arenas, self._all = list(self.array.arenas), parameter_arenas(self.array)
        self._rows = [torch.zeros_like(arena.data) for arena in self._arenas]
        for name, rows in self.by_name():
            rows.copy_(known[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the array compute with the averages."""
        with torch.no_grad():
            kept = [arena.data.clone() for arena in self.array.arenas]
            _copy(self.array, self._rows)
        try:
            yield
        finally:
            with torch.no_grad():
                _copy(self.array, kept)

    def of(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The array's tensors, with the averages in place of parameters."""
        own = dict(self.by_name())
        places = {arena.view(s.name).data_ptr(): own[s.name] for arena in self.array.arenas for s in arena.spans}
        return {
            name: places.get(value.data_ptr(), value) if value.numel() else value for name, value in tensors.items()
        }

    def by_name(self) -> Iterator[tuple[str, Tensor]]:
        """By parameter ``[M, *shape]``, not copied."""
        for arena, rows in zip(self._arenas, self._rows, strict=True):
            for span in arena.spans:
                yield span.name, rows[:, span.start : span.stop].view(len(rows), *span.shape)

    # State and members.

    def state(self) -> dict[str, Any]:
        rows = dict(self.by_name())
        return {"begun": list(self.begun), "rows": [own_rows(self.array, i, rows) for i in range(len(self.begun))]}

    def load_state(self, state: Mapping[str, Any] | None) -> None:
        """Take what `state` gave; without, averages begin with the weights of now."""
        if state is None:
            _fetch(self)
            return
        self.begun, self._weights = list(state["begun"]), {}
        for index, rows in enumerate(state["rows"]):
            put_own_rows(self.array, index, dict(self.by_name()), rows)

    def select(self, indices: Sequence[int], array: FusedArray) -> WeightAverages:
        """Those of ``array``, which is ``self.array.select(indices)``."""
        made = WeightAverages(array, [self.decays[i] for i in indices])
        made.begun = [self.begun[i] for i in indices]
        made._rows = [rows[list(indices)] for rows in self._rows]
        return made

    def take_member(self, place: int, other: WeightAverages, src: int) -> None:
        """A member goes on with the averages of member `src` of another array, and with its decay."""
        put_own_rows(self.array, place, dict(self.by_name()), own_rows(other.array, src, dict(other.by_name())))
        self.begun[place], self.decays[place], self._weights = other.begun[src], other.decays[src], {}


def averages_of(array: FusedArray, rows: Sequence[Row]) -> WeightAverages | None:
    """The averages that the rows ask for; all members have some, or none."""
    return WeightAverages(array, [row[AXIS] for row in rows]) if averages(rows[0]) else None


@torch.no_grad()
def _copy(array: FusedArray, values: Sequence[Tensor]) -> None:
    for arena, value in zip(array.arenas, values, strict=True):
        arena.data.copy_(value)


@torch.no_grad()
def _fetch(found: WeightAverages) -> None:
    for arena, rows in zip(found.array.arenas, found._rows, strict=True):
        rows.copy_(arena.data)
    found.begun = [False] * len(found.begun)
