"""What the steps of an epoch gave, and what that makes over all its samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hfta_nb.metrics import Metric
from hfta_nb.step import Scores


class EpochScores:
    """Per metric, the value of every step ``[batches, M]``; of a metric with a `finish` the sums so far ``[M, ...]``.

    Args:
        metrics: the family's, without the loss.
        batches: steps of an epoch.
        members: M.
    """

    def __init__(
        self, metrics: Mapping[str, Metric], batches: int, members: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.metrics, self.dtype, self.device = metrics, dtype, device
        names = ["loss", *(n for n, m in metrics.items() if m.finish is None)]
        self.rows = {n: torch.zeros((batches, members), dtype=dtype, device=device) for n in names}
        self.sums: Scores = {}

    def record(self, batch: int, scores: Scores) -> None:
        """Take the scores of step `batch` of the epoch; step 0 begins a new one."""
        if not batch:
            self.sums = {}
        for name, value in scores.items():
            if name in self.rows:
                self.rows[name][batch].copy_(value)
            else:
                add(self.sums, name, value.double())

    def means(self, batch_size: int, samples: int) -> Scores:
        """Every metric over the epoch, ``[M]``; all batches but the last have `batch_size` samples."""
        batches = len(self.rows["loss"])
        sizes = torch.full((batches,), batch_size, dtype=self.dtype, device=self.device)
        sizes[-1] = samples - (batches - 1) * batch_size
        found = {n: (sizes @ rows) / samples for n, rows in self.rows.items()}
        found |= finished(self.sums, self.metrics)
        return {n: found[n].to(self.dtype) for n in ["loss", *self.metrics]}

    def select(self, keep: Sequence[int]) -> None:
        """Go on with these members."""
        rows = list(keep)
        self.rows = {n: v[:, rows] for n, v in self.rows.items()}
        self.sums = {n: v[rows] for n, v in self.sums.items()}

    def state(self) -> dict[str, Tensor]:
        return {**self.rows, **self.sums}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.rows = {n: state[n].to(self.device, self.dtype) for n in self.rows}
        self.sums = {n: state[n].to(self.device) for n in state if n not in self.rows}


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
