"""Small real data sets that ship inside scikit-learn: digits and tables of numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.data.order import SPLIT_SEED
from hfta_nb.data.photographs import pictures_of
from hfta_nb.data.samples import Data
from hfta_nb.data.tensors import facts_of


def digits() -> Data:
    """1,797 handwritten digits, 8x8 pixels."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.as_tensor(bunch.images / 16.0, dtype=torch.float32).unsqueeze(1)
    return _split("digits", x, torch.as_tensor(bunch.target, dtype=torch.long))


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
    from sklearn.datasets import load_breast_cancer

    return _classes("breast_cancer", load_breast_cancer())


def wine() -> Data:
    """178 wines, 13 features, 3 classes."""
    from sklearn.datasets import load_wine

    return _classes("wine", load_wine())


def iris() -> Data:
    """150 irises, 4 features, 3 classes."""
    from sklearn.datasets import load_iris

    return _classes("iris", load_iris())


def diabetes() -> Data:
    """442 patients, 10 features; how far the disease has come a year later."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    y = torch.as_tensor(bunch.target).double().unsqueeze(1)
    return _standardised(_split("diabetes", torch.as_tensor(bunch.data).double(), y), targets=True)


def _classes(name: str, bunch: Any) -> Data:
    x, y = torch.as_tensor(bunch.data).double(), torch.as_tensor(bunch.target, dtype=torch.long)
    return _standardised(_split(name, x, y))


def _split(name: str, x: Tensor, y: Tensor) -> Data:
    from sklearn.model_selection import train_test_split

    task = "regression" if y.is_floating_point() else "classification"
    classes = y.numpy() if task == "classification" else None
    kept, held = train_test_split(range(len(x)), test_size=0.2, random_state=SPLIT_SEED, stratify=classes)
    return Data(name, task, x[kept], y[kept], x[held], y[held], facts_of(task, x, y))


def _standardised(data: Data, targets: bool = False) -> Data:
    """Inputs (and targets) to mean 0 and deviation 1 over the training samples."""

    def scale(train: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
        mean, deviation = train.mean(0), train.std(0)
        return ((train - mean) / deviation).float(), ((held - mean) / deviation).float()

    x, xv = scale(data.x, data.x_validation)
    y, yv = scale(data.y, data.y_validation) if targets else (data.y, data.y_validation)
    return Data(data.name, data.task, x, y, xv, yv, data.facts)
