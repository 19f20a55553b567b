"""Small real data sets that ship inside scikit-learn: digits and tables of numbers.

They are read and split as scikit-learn does it, without importing it: that takes longer than a short run.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.data.order import SPLIT_SEED
from hfta_nb.data.photographs import pictures_of
from hfta_nb.data.samples import Data
from hfta_nb.data.tensors import facts_of
from hfta_nb.errors import DataError


def digits() -> Data:
    """1,797 handwritten digits, 8x8 pixels."""
    x, y = _rows("digits.csv.gz")
    return _split("digits", (x / 16.0).float().view(-1, 1, 8, 8), y.long())


def digit_images() -> Data:
    """1,797 handwritten digits, enlarged to 16x16 pixels in [-1, 1], for generation."""
    known = digits()
    x, held = (
        F.interpolate(v, scale_factor=2.0, mode="bilinear", align_corners=False) * 2 - 1
        for v in (known.x, known.x_validation)
    )
    return pictures_of("digit_images", x, held)


def breast_cancer() -> Data:
    """569 tumours, 30 features, 2 classes."""
    return _classes("breast_cancer", "breast_cancer.csv")


def wine() -> Data:
    """178 wines, 13 features, 3 classes."""
    return _classes("wine", "wine_data.csv")


def iris() -> Data:
    """150 irises, 4 features, 3 classes."""
    return _classes("iris", "iris.csv")


def diabetes() -> Data:
    """442 patients, 10 features; how far the disease has come a year later."""
    x, y = _table("diabetes_data_raw.csv.gz", None), _table("diabetes_target.csv.gz", None)
    return _standardised(_split("diabetes", x, y.unsqueeze(1)), targets=True)


def _classes(name: str, file: str) -> Data:
    x, y = _rows(file, 1)  # the first line tells of the rows
    return _standardised(_split(name, x, y.long()))


def _rows(file: str, skipped: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs, and the last column: targets."""
    table = _table(file, ",", skipped)
    return table[:, :-1], table[:, -1]


def _table(file: str, delimiter: str | None, skipped: int = 0) -> Tensor:
    found = find_spec("sklearn")  # looked for, not imported
    if found is None or found.origin is None:
        raise DataError("not installed", where="data", got="no scikit-learn, which holds this data set",
                        remedy="pip install scikit-learn")  # fmt: skip
    path = Path(found.origin).parent / "datasets" / "data" / file
    return torch.as_tensor(np.loadtxt(path, delimiter=delimiter, skiprows=skipped))


def _split(name: str, x: Tensor, y: Tensor) -> Data:
    task = "regression" if y.is_floating_point() else "classification"
    random, aside = np.random.RandomState(SPLIT_SEED), -(-len(y) // 5)  # rows for validation
    if task == "regression":
        held, kept = np.split(random.permutation(len(y)), [aside])
    else:
        kept, held = _by_class(y.numpy(), aside, random)
    return Data(name, task, x[kept], y[kept], x[held], y[held], facts_of(task, x, y))


def _by_class(classes: Any, aside: int, random: np.random.RandomState) -> list[Any]:
    """Rows for training and validation that have each class's share, as `StratifiedShuffleSplit` draws them."""
    counts, parts = np.bincount(classes), []
    for number, kept in enumerate(_shares(counts, len(classes) - aside, random)):
        rows = np.flatnonzero(classes == number)
        parts.append(np.split(rows[random.permutation(len(rows))], [kept]))
    return [random.permutation(np.concatenate(part)) for part in zip(*parts, strict=True)]


def _shares(counts: Any, total: int, random: np.random.RandomState) -> Any:
    """How many rows of each class make this total; what rounding leaves over goes to the largest remainders."""
    exact = counts / counts.sum() * total
    found = exact.astype(int)
    for remainder in np.unique(exact % 1)[::-1]:
        (equal,), missing = np.nonzero(exact % 1 == remainder), total - found.sum()
        if missing:
            found[random.choice(equal, min(len(equal), missing), replace=False)] += 1
    return found


def _standardised(data: Data, targets: bool = False) -> Data:
    """Inputs (and targets) to mean 0 and deviation 1 over the training samples."""

    def scale(train: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
        mean, deviation = train.mean(0), train.std(0)
        return ((train - mean) / deviation).float(), ((held - mean) / deviation).float()

    x, xv = scale(data.x, data.x_validation)
    y, yv = scale(data.y, data.y_validation) if targets else (data.y, data.y_validation)
    return Data(data.name, data.task, x, y, xv, yv, data.facts)
