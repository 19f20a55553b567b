"""What the steps of an epoch gave, and what that makes over all its samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.array import PerMember
from hfta_nb.engine.array.access import flatten, unflatten
from hfta_nb.models.accumulators import Accumulators
from hfta_nb.models.metrics import Metric
from hfta_nb.train.step import Scores


class EpochScores:
    """Per metric, the value of every step ``[steps, M]``; of a metric with a `finish` the sums so far ``[M, ...]``;
    of one with an `accumulator` what each member's holds.

    Args:
        names: of the scores, the loss first.
        metrics: those of them that are the family's metrics.
        steps: of an epoch; more may come.
        members: M.
        counted: which row is next is on the device, so that a step that is captured finds it; on a GPU by default.
    """

    def __init__(
        self,
        names: Sequence[str],
        metrics: Mapping[str, Metric],
        steps: int,
        members: int,
        dtype: torch.dtype,
        device: torch.device,
        counted: bool | None = None,
    ) -> None:
        self.names, self.metrics, self.dtype, self.device = tuple(names), metrics, dtype, device
        self.kept = accumulators([n for n in names if n in metrics], metrics, members, device)
        plain = [n for n in names if n not in metrics or (metrics[n].finish is None and n not in self.kept.factories)]
        self.rows = {n: torch.zeros((steps, members), dtype=dtype, device=device) for n in plain}
        self.sums: Scores = {}
        self.sizes: list[int] = []
        self._step = 0
        # Where steps are captured, the place of the next row is on the device, and what is kept never moves.
        self.counted = device.type == "cuda" if counted is None else counted
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        self._placed = 0  # what `_at` is
        self._guard = object()
        self._hold()

    def _hold(self) -> None:
        if self.counted:
            self.kept.hold()

    def begin(self, step: int) -> None:
        """Make ready for a step of the epoch; step 0 begins a new one."""
        if not step:
            for total in self.sums.values():
                total.zero_()
            self.sizes = []
            self.kept.reset()
        if step == self.rows["loss"].shape[0]:
            self.rows = {n: torch.cat([v, torch.zeros_like(v)]) for n, v in self.rows.items()}
            self._guard = object()
        self._step = step
        if self.counted and self._placed != step:
            self._at.fill_(step)
            self._placed = step

    def take(self, scores: Scores, y: Any) -> None:
        """See `ScoreSink`; the device's part of a step."""
        if self.kept.factories:
            self.kept.record(scores, *_bare(y))
        for name, value in scores.items():
            if name in self.rows:
                if self.counted:
                    self.rows[name].index_copy_(0, self._at, value.to(self.dtype).unsqueeze(0))
                else:
                    self.rows[name][self._step].copy_(value)
            elif name in self.sums:
                self.sums[name].add_(value)
            elif name not in self.kept.factories:
                self.sums[name] = value.double().clone()
                self._guard = object()
        if self.counted:
            self._at.add_(1)

    def end(self, size: int) -> None:
        """The step is done, of so many samples."""
        self.sizes.append(size)
        self._placed += 1

    def guard(self) -> object | None:
        """See `ScoreSink`."""
        return self._guard if self.counted and self.kept.still else None

    def tensors(self) -> list[Tensor]:
        """See `ScoreSink`."""
        return [*self.rows.values(), *self.sums.values(), self._at, *self.kept.tensors()]

    def record(self, step: int, scores: Scores, size: int, y: Any = None) -> None:
        """All of a step of the epoch: its scores over `size` samples with targets `y`."""
        self.begin(step)
        self.take(scores, y)
        self.end(size)

    def means(self) -> Scores:
        """Every metric over the epoch's samples, ``[M]``."""
        sizes = torch.tensor(self.sizes, dtype=self.dtype, device=self.device)
        found = {n: (sizes @ rows[: len(sizes)]) / sum(self.sizes) for n, rows in self.rows.items()}
        found |= finished(self.sums, self.metrics) | self.kept.computed()
        return {n: found[n].to(self.dtype) for n in self.names}

    def select(self, keep: Sequence[int]) -> None:
        """Go on with these members."""
        rows = list(keep)
        self.rows = {n: v[:, rows] for n, v in self.rows.items()}
        self.sums = {n: v[rows] for n, v in self.sums.items()}
        self.kept.select(rows)
        self._guard = object()

    def state(self) -> dict[str, Any]:
        return {"scores": {**self.rows, **self.sums}, "sizes": list(self.sizes), "kept": self.kept.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        scores = state["scores"]
        self.rows = {n: scores[n].to(self.device, self.dtype, copy=True) for n in self.rows}
        self.sums = {n: scores[n].to(self.device, copy=True) for n in scores if n not in self.rows}
        self.sizes = [int(size) for size in state["sizes"]]
        self.kept.load_state(state["kept"])
        self._guard, self._placed = object(), -1
        self._hold()


def accumulators(
    names: Iterable[str], metrics: Mapping[str, Metric], members: int, device: torch.device
) -> Accumulators:
    """Of those of these metrics that have one."""
    made = {name: metrics[name].accumulator for name in names}
    return Accumulators({name: make for name, make in made.items() if make is not None}, members, device)


def _bare(y: Any) -> tuple[Any, bool]:
    """Targets without the mark of members' own, and whether they had it."""
    leaves, rebuild = flatten(y)
    own = any(isinstance(v, PerMember) for v in leaves)
    return unflatten(rebuild, [v.value if isinstance(v, PerMember) else v for v in leaves]), own


def add(totals: Scores, name: str, value: Tensor) -> None:
    totals[name] = totals[name] + value if name in totals else value


def finished(sums: Scores, metrics: Mapping[str, Metric]) -> Scores:
    """From each member's sums to its metrics, ``[M]``."""
    found = {}
    for name, value in sums.items():
        finish = metrics[name].finish
        if finish is not None:
            found[name] = torch.stack([finish(row) for row in value])
    return found
