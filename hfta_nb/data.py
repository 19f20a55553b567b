"""Data sets as tensors, and the order in which a run goes through them."""

from __future__ import annotations

import difflib
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from hfta_nb.errors import DataError

SPLIT_SEED = 0
"""All built-in data sets are split into training and validation with this seed, so that results compare."""


@dataclass(frozen=True)
class Data:
    """Training and validation samples, whole, as tensors.

    Attributes:
        name: shown to people.
        task: "classification" (targets are class numbers ``[N]``) or "regression" (targets ``[N, outputs]``).
        x, y: training inputs ``[N, ...]`` and targets ``[N, ...]``.
        x_validation, y_validation: likewise.
        facts: what a model must know of the data, passed to a family's build function by name: "in_features",
            "num_classes", "out_features", "in_channels", "image_size".
    """

    name: str
    task: str
    x: Tensor
    y: Tensor
    x_validation: Tensor
    y_validation: Tensor
    facts: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: torch.device, dtype: torch.dtype) -> Data:
        """On a device, floating-point tensors in `dtype`."""

        def move(t: Tensor) -> Tensor:
            return t.to(device, dtype) if t.is_floating_point() else t.to(device)

        moved = [move(t) for t in (self.x, self.y, self.x_validation, self.y_validation)]
        return Data(self.name, self.task, moved[0], moved[1], moved[2], moved[3], self.facts)

    def __repr__(self) -> str:
        shape = list(self.x.shape[1:])
        return f"Data({self.name!r}, {self.task}, {len(self.x)} + {len(self.x_validation)} samples of {shape})"


def from_tensors(
    x: Any,
    y: Any,
    x_validation: Any = None,
    y_validation: Any = None,
    *,
    name: str = "own data",
    task: str | None = None,
    validation: float = 0.2,
) -> Data:
    """Own data, from tensors or arrays.

    Args:
        x, y: inputs ``[N, ...]`` and targets: whole numbers ``[N]`` for classes, else ``[N]`` or ``[N, outputs]``.
        x_validation, y_validation: likewise; without, a part of the training samples is set aside.
        name: shown to people.
        task: "classification" or "regression"; by default as the targets' type says.
        validation: the part set aside, between 0 and 1.

    Raises:
        DataError: lengths differ, there are too few samples, or values are not finite.
    """
    given = [_tensor(v, w) for v, w in ((x, "x"), (y, "y"))]
    if x_validation is None:
        train, held = _split(given[0], given[1], validation)
        (x, y), (xv, yv) = train, held
    else:
        x, y, xv, yv = *given, _tensor(x_validation, "x_validation"), _tensor(y_validation, "y_validation")
    task = task or ("regression" if y.is_floating_point() else "classification")
    if task == "regression" and y.ndim == 1:
        y, yv = y.unsqueeze(1), yv.unsqueeze(1)
    for left, right, where in ((x, y, "training"), (xv, yv, "validation")):
        if len(left) != len(right) or not len(left):
            raise DataError("not one target per input", where=where, got=f"{len(left)} inputs, {len(right)} targets")
    return Data(name, task, x, y, xv, yv, _facts(task, x, y))


def _facts(task: str, x: Tensor, y: Tensor) -> dict[str, int]:
    facts = {"in_features": int(x[0].numel())}
    if task == "classification":
        facts["num_classes"] = facts["out_features"] = int(y.max()) + 1
    else:
        facts["out_features"] = int(y[0].numel())
    if x.ndim == 4:
        facts |= {"in_channels": x.shape[1], "image_size": x.shape[-1]}
    return facts


def _tensor(value: Any, where: str) -> Tensor:
    try:
        t = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError("not a tensor or array", where=where, got=type(value).__name__) from error
    if t.ndim == 0:
        raise DataError("a single number, not samples", where=where, got=t)
    if t.is_floating_point():
        if t.dtype == torch.float64:
            t = t.float()
        if not torch.isfinite(t).all():
            raise DataError("holds NaN or infinity", where=where, remedy="clean the data first")
        return t
    return t.long()


def _split(x: Tensor, y: Tensor, part: float) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    count = round(len(x) * part)
    if not 0 < part < 1 or count < 1 or count >= len(x):
        raise DataError("can't set this part aside", where="validation", got=part, accepted="between 0 and 1")
    if len(x) != len(y):
        raise DataError("not one target per input", got=f"{len(x)} inputs, {len(y)} targets")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(SPLIT_SEED))
    held, kept = order[:count], order[count:]
    return (x[kept], y[kept]), (x[held], y[held])


# Built-in data sets.


def names() -> list[str]:
    """The built-in data sets."""
    return list(_LOADERS)


@functools.cache
def load(name: str) -> Data:
    """A built-in data set.

    Raises:
        DataError: there is none of this name.
    """
    if name not in _LOADERS:
        close = difflib.get_close_matches(str(name), _LOADERS, 1)
        raise DataError(
            "unknown data set",
            where="data",
            got=name,
            accepted=", ".join(_LOADERS),
            remedy=f"did you mean {close[0]}?" if close else "",
        )
    return _LOADERS[name]()


def resolve(data: str | Data | tuple[Any, ...]) -> Data:
    """A name, own data, or a tuple of tensors ``(x, y)`` or ``(x, y, x_validation, y_validation)``, as `Data`.

    Raises:
        DataError: it is none of these.
    """
    if isinstance(data, str):
        return load(data)
    if isinstance(data, Data):
        return data
    if isinstance(data, tuple) and len(data) in (2, 4):
        return from_tensors(*data)
    raise DataError("not data", where="data", got=data, accepted=f"{', '.join(_LOADERS)}, Data, or (x, y) tensors")


def _digits() -> Data:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.as_tensor(bunch.images / 16.0, dtype=torch.float32).unsqueeze(1)
    return _built_in("digits", x, torch.as_tensor(bunch.target, dtype=torch.long))


def _breast_cancer() -> Data:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    data = _built_in(
        "breast_cancer", torch.as_tensor(bunch.data).double(), torch.as_tensor(bunch.target, dtype=torch.long)
    )
    return _standardised(data)


def _diabetes() -> Data:
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    y = torch.as_tensor(bunch.target).double().unsqueeze(1)
    return _standardised(_built_in("diabetes", torch.as_tensor(bunch.data).double(), y), targets=True)


_LOADERS: dict[str, Callable[[], Data]] = {
    "digits": _digits,
    "breast_cancer": _breast_cancer,
    "diabetes": _diabetes,
}


def _built_in(name: str, x: Tensor, y: Tensor) -> Data:
    from sklearn.model_selection import train_test_split

    task = "regression" if y.is_floating_point() else "classification"
    classes = y.numpy() if task == "classification" else None
    kept, held = train_test_split(range(len(x)), test_size=0.2, random_state=SPLIT_SEED, stratify=classes)
    return Data(name, task, x[kept], y[kept], x[held], y[held], _facts(task, x, y))


def _standardised(data: Data, targets: bool = False) -> Data:
    """Inputs (and targets) to mean 0 and deviation 1 over the training samples."""

    def scale(train: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
        mean, deviation = train.mean(0), train.std(0)
        return ((train - mean) / deviation).float(), ((held - mean) / deviation).float()

    x, xv = scale(data.x, data.x_validation)
    y, yv = scale(data.y, data.y_validation) if targets else (data.y, data.y_validation)
    return Data(data.name, data.task, x, y, xv, yv, data.facts)


# Order.


def order(samples: int, seed: int, epoch: int) -> Int[Tensor, " samples"]:
    """The order of an epoch: a permutation, the same on every device for the same seed and epoch."""
    mixed = zlib.crc32(f"{seed}/{epoch}".encode())
    return torch.randperm(samples, generator=torch.Generator().manual_seed(mixed))


def orders(samples: int, seeds: Sequence[int], epoch: int) -> Int[Tensor, " samples"] | Int[Tensor, "M samples"]:
    """One order for all where the seeds agree; else one per member."""
    if len(set(seeds)) == 1:
        return order(samples, seeds[0], epoch)
    return torch.stack([order(samples, seed, epoch) for seed in seeds])
