"""A grid search with cross-validation: `FusedSearchCV` against `GridSearchCV` over the same module through skorch.

Both train the same candidates on the same folds of digits, from the same weights, in the same order of samples, and
train the best one on all samples at the end. Processor time is a second clock, which other programs change less.

    python benchmarks/grid_search.py [--rounds 3] [--quick]
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import DataLoader, Sampler

from benchmarks.common import options, write
from hfta_nb.data import order
from hfta_nb.sklearn import FusedClassifier, FusedSearchCV

LR, WIDTH = [1e-4, 3e-4, 1e-3, 3e-3], [16, 32, 64]
FOLDS, EPOCHS, BATCH_SIZE = 3, 20, 64
LEAST = 3
"""How many times faster the fused search is to be."""


class Net(nn.Module):
    """Two hidden layers over digits of 8x8 pixels."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


class InOrder(Sampler[int]):
    """The samples in the order of a study, pass by pass."""

    def __init__(self, samples: int) -> None:
        self.samples, self.passes = samples, itertools.count()

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        return iter(order(self.samples, 0, next(self.passes)).tolist())


class Seeded(NeuralNetClassifier):  # type: ignore[misc]
    """Begins from the weights of seed 0."""

    def initialize(self) -> Any:
        torch.manual_seed(0)
        return super().initialize()


def batches(dataset: Any, batch_size: int) -> DataLoader[Any]:
    """The mini-batches of training."""
    return DataLoader(dataset, batch_size, sampler=InOrder(len(dataset)))


def main() -> int:
    """Measure, write, and say whether the search is as fast as it is to be."""
    given = options(__doc__, rounds=3, quick=False).parse_args()
    epochs, widths = (2, WIDTH[:1]) if given.quick else (EPOCHS, WIDTH)
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    fused = FusedSearchCV(
        FusedClassifier(Net, epochs=epochs, batch_size=BATCH_SIZE), {"lr": LR, "width": widths}, cv=FOLDS
    )
    net = Seeded(Net, criterion=nn.CrossEntropyLoss, optimizer=torch.optim.Adam, max_epochs=epochs, verbose=0,
                 batch_size=BATCH_SIZE, train_split=None, iterator_train=batches)  # fmt: skip
    alone = GridSearchCV(net, {"lr": LR, "module__width": widths}, cv=FOLDS)
    searches = {"FusedSearchCV": fused, "GridSearchCV and skorch": alone}
    wall, cpu = ({name: [] for name in searches} for _ in range(2))
    for one in searches.values():  # what is imported and compiled once does not count
        one.fit(x[:300], y[:300])
    for _, (name, one) in itertools.product(range(given.rounds), searches.items()):
        began = time.perf_counter(), time.process_time()
        one.fit(x, y)
        wall[name].append(time.perf_counter() - began[0])
        cpu[name].append(time.process_time() - began[1])
    speedup = {clock: _ratio(times) for clock, times in (("wall", wall), ("processor", cpu))}
    best = [{k.removeprefix("module__"): v for k, v in one.best_params_.items()} for one in searches.values()]
    scores = [one.cv_results_["mean_test_score"] for one in searches.values()]
    found = {
        "wall_s": wall,
        "processor_s": cpu,
        "speedup": speedup,
        "candidates": len(scores[0]),
        "folds": FOLDS,
        "epochs": epochs,
        "best_params": best,
        "best_scores": [float(one.best_score_) for one in searches.values()],
        "largest_difference_of_scores": float(np.abs(scores[0] - scores[1]).max()),
    }
    for name, value in found.items():
        print(f"{name}: {value}")
    if not given.quick:
        write("grid_search", found, ("torch", "numpy", "scikit-learn", "skorch"))
    return 0 if best[0] == best[1] and (given.quick or min(speedup.values()) >= LEAST) else 1


def _ratio(times: dict[str, list[float]]) -> float:
    """How many times as long the second takes, by medians."""
    ours, theirs = (statistics.median(found) for found in times.values())
    return theirs / ours


if __name__ == "__main__":
    sys.exit(main())
