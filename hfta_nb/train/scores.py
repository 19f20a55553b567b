"""What the steps of an epoch gave, and what that makes over all its samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.accumulators import Accumulators
from hfta_nb.metrics import Metric
from hfta_nb.step import Scores


class EpochScores:
    """Per metric, the value of every step ``[steps, M]``; of a metric with a `finish` the sums so far ``[M, ...]``;
    of one with an `accumulator` what each member's holds.

    Args:
        names: of the scores, the loss first.
        metrics: those of them that are the family's metrics.
        steps: of an epoch; more may come.
        members: M.
    """

    def __init__(
        self,
        names: Sequence[str],
        metrics: Mapping[str, Metric],
        steps: int,
        members: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.names, self.metrics, self.dtype, self.device = tuple(names), metrics, dtype, device
        self.kept = accumulators([n for n in names if n in metrics], metrics, members, device)
        plain = [n for n in names if n not in metrics or (metrics[n].finish is None and n not in self.kept.factories)]
        self.rows = {n: torch.zeros((steps, members), dtype=dtype, device=device) for n in plain}
        self.sums: Scores = {}
        self.sizes: list[int] = []

    def record(self, step: int, scores: Scores, size: int, y: Any = None, own: bool = False) -> None:
        """Take the scores of a step of the epoch, over `size` samples with targets `y`; step 0 begins a new one."""
        if not step:
            self.sums, self.sizes = {}, []
            self.kept.reset()
        self.sizes.append(size)
        self.kept.record(scores, y, own)
        if step == len(self.rows["loss"]):
            self.rows = {n: torch.cat([v, torch.zeros_like(v)]) for n, v in self.rows.items()}
        for name, value in scores.items():
            if name in self.rows:
                self.rows[name][step].copy_(value)
            elif name not in self.kept.factories:
                add(self.sums, name, value.double())

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

    def state(self) -> dict[str, Any]:
        return {"scores": {**self.rows, **self.sums}, "sizes": list(self.sizes), "kept": self.kept.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        scores = state["scores"]
        self.rows = {n: scores[n].to(self.device, self.dtype) for n in self.rows}
        self.sums = {n: scores[n].to(self.device) for n in scores if n not in self.rows}
        self.sizes = [int(size) for size in state["sizes"]]
        self.kept.load_state(state["kept"])


def accumulators(
    names: Iterable[str], metrics: Mapping[str, Metric], members: int, device: torch.device
) -> Accumulators:
    """Of those of these metrics that have one."""
    made = {name: metrics[name].accumulator for name in names}
    return Accumulators({name: make for name, make in made.items() if make is not None}, members, device)


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
