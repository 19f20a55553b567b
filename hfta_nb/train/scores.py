"""What the steps of an epoch gave, and what that makes over all its samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.metrics import Metric
from hfta_nb.step import Scores


class EpochScores:
    """Per metric, the value of every step ``[steps, M]``; of a metric with a `finish` the sums so far ``[M, ...]``.

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
        plain = [n for n in names if n not in metrics or metrics[n].finish is None]
        self.rows = {n: torch.zeros((steps, members), dtype=dtype, device=device) for n in plain}
        self.sums: Scores = {}
        self.sizes: list[int] = []

    def record(self, step: int, scores: Scores, size: int) -> None:
        """Take the scores of a step of the epoch, over `size` samples; step 0 begins a new one."""
        if not step:
            self.sums, self.sizes = {}, []
        self.sizes.append(size)
        if step == len(self.rows["loss"]):
            self.rows = {n: torch.cat([v, torch.zeros_like(v)]) for n, v in self.rows.items()}
        for name, value in scores.items():
            if name in self.rows:
                self.rows[name][step].copy_(value)
            else:
                add(self.sums, name, value.double())

    def means(self) -> Scores:
        """Every metric over the epoch's samples, ``[M]``."""
        sizes = torch.tensor(self.sizes, dtype=self.dtype, device=self.device)
        found = {n: (sizes @ rows[: len(sizes)]) / sum(self.sizes) for n, rows in self.rows.items()}
        found |= finished(self.sums, self.metrics)
        return {n: found[n].to(self.dtype) for n in self.names}

    def select(self, keep: Sequence[int]) -> None:
        """Go on with these members."""
        rows = list(keep)
        self.rows = {n: v[:, rows] for n, v in self.rows.items()}
        self.sums = {n: v[rows] for n, v in self.sums.items()}

    def state(self) -> dict[str, Any]:
        return {"scores": {**self.rows, **self.sums}, "sizes": list(self.sizes)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        scores = state["scores"]
        self.rows = {n: scores[n].to(self.device, self.dtype) for n in self.rows}
        self.sums = {n: scores[n].to(self.device) for n in scores if n not in self.rows}
        self.sizes = [int(size) for size in state["sizes"]]


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
