"""Data sets as tensors."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hfta_nb.data.labels import IGNORED, beside_mask
from hfta_nb.data.order import Draw, Fold, order, sampled
from hfta_nb.errors import DataError

Samples: TypeAlias = Any
"""A tensor ``[N, ...]``, a tuple of samples (a model's positional inputs) or a dict of samples (inputs by name), which
may be nested. Use `tree_map` to process any of them."""


class Positional(tuple[Any, ...]):
    """Several positional inputs of a model, from an item that lists them before the target: ``(x1, x2, y)``."""


def leaves(samples: Samples) -> list[Any]:
    """The tensors."""
    if isinstance(samples, tuple | dict):
        parts = samples.values() if isinstance(samples, dict) else samples
        return [leaf for part in parts for leaf in leaves(part)]
    return [samples]


def tree_map(function: Callable[[Any], Any], samples: Samples) -> Samples:
    """Apply `function` to every tensor, keeping the structure."""
    if isinstance(samples, tuple):
        return tuple_like(samples, [tree_map(function, v) for v in samples])
    if isinstance(samples, dict):
        return {k: tree_map(function, v) for k, v in samples.items()}
    return function(samples)


def tuple_like(samples: tuple[Any, ...], values: Iterable[Any]) -> tuple[Any, ...]:
    """A tuple of the same class, which may have names."""
    kind: Any = type(samples)
    found: tuple[Any, ...] = kind(*values) if hasattr(samples, "_fields") else kind(values)
    return found


def take(samples: Samples, rows: Tensor | slice) -> Samples:
    """Some of the samples.

    Args:
        samples: all.
        rows: their numbers, ``[n]`` or ``[M, n]``, or a slice.
    """
    if isinstance(rows, slice):
        return tree_map(lambda t: t[rows], samples)
    # Two to three times as fast as indexing.
    if rows.ndim == 1:
        return tree_map(lambda t: t.index_select(0, rows), samples)
    return tree_map(lambda t: t.index_select(0, rows.flatten()).view(*rows.shape, *t.shape[1:]), samples)


def count(samples: Samples) -> int:
    """How many samples."""
    return len(leaves(samples)[0])


def is_image(tensor: Tensor) -> bool:
    """Whether a tensor of inputs holds images as bytes: all other whole numbers are kept as int64."""
    return tensor.dtype == torch.uint8


def standard_of(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel ``[C]`` of images of bytes ``[N, C, H, W]``, scaled to [0, 1]."""
    channels, pixels = images.shape[1], images.numel() / images.shape[1]
    # Counts each of the 256 values, without a floating-point copy of the images.
    counts = torch.stack([torch.bincount(images[:, c].flatten(), minlength=256) for c in range(channels)]).double()
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = counts @ values / pixels
    variance = (counts * (values - mean.unsqueeze(1)) ** 2).sum(1) / (pixels - 1)
    return mean.float(), variance.sqrt().float()


def moved(samples: Samples, device: torch.device | None, dtype: torch.dtype | None) -> Samples:
    """Move to a device, floating-point tensors to `dtype`; None keeps either."""
    return tree_map(lambda t: t.to(device, dtype) if t.is_floating_point() else t.to(device), samples)


class Inputs(ABC):
    """Common base of `Data` and `Stream`."""

    standard: tuple[Tensor, Tensor] | None

    @property
    @abstractmethod
    def examples(self) -> tuple[Samples, Samples]:
        """Some training inputs and targets, as stored."""

    folds: tuple[Fold, ...] = ()

    def class_counts(self, fold: int | None = None) -> tuple[int, ...] | None:
        """Training targets of each class; None of data that is read batch by batch, or has no classes.

        Args:
            fold: of whose training samples; None for all.
        """
        return None

    @abstractmethod
    def batches(self, batch_size: int) -> int | None:
        """Number of mini-batches in a pass through the training samples, if known."""

    def batches_for(self, row: Mapping[str, Any]) -> int | None:
        """The same for a member with these values of all training axes."""
        return self.batches(int(row["batch_size"]))

    @abstractmethod
    def sample_batch(
        self, n: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> tuple[Samples, Samples]:
        """Up to `n` training inputs and targets, as a step gets them; always the same ones."""

    def sample(self, n: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Samples:
        """Up to `n` training inputs, as a model gets them; always the same ones."""
        return self.sample_batch(n, device, dtype)[0]

    def scaled(self, x: Samples, dtype: torch.dtype | None = None) -> Samples:
        """Scale images of bytes to [0, 1]; leave everything else unchanged."""
        return tree_map(lambda t: t.to(dtype or torch.get_default_dtype()) / 255 if is_image(t) else t, x)

    def standardised(self, x: Samples) -> Samples:
        """Standardise images ``[..., C, H, W]`` in [0, 1] by the mean and standard deviation of each channel."""
        if self.standard is None:
            return x
        mean, deviation = (t.view(-1, 1, 1) for t in self.standard)
        return tree_map(lambda t: (t - mean.to(t)) / deviation.to(t), x)

    def floats(self, x: Samples, dtype: torch.dtype | None = None) -> Samples:
        """Inputs as a model gets them: `scaled`, then `standardised`. Floating-point inputs are returned unchanged."""
        return self.standardised(self.scaled(x, dtype))


def batches_in(samples: int, batch_size: int, drop_last: bool = False) -> int:
    """The number of mini-batches in a pass.

    Args:
        samples: their number.
        batch_size: of a mini-batch; the last one has what is left.
        drop_last: without the last one if it is not full.

    Raises:
        DataError: then none is left.
    """
    if not drop_last:
        return -(-samples // batch_size)
    if samples < batch_size:
        raise DataError(
            "no mini-batch is full", where="drop_last", got=f"{samples} training samples, batch_size {batch_size}",
            remedy=f"a batch_size up to {samples}, or drop_last=False",
        )  # fmt: skip
    return samples // batch_size


@dataclass(frozen=True)
class Origin:
    """Where data in memory comes from.

    Attributes:
        x, y: of training, as they were read.
        stream: makes a `Stream` of the same data set.
    """

    x: Samples
    y: Samples
    stream: Callable[[], Any]


@dataclass(frozen=True)
class Data(Inputs):
    """Training and validation samples as tensors.

    Attributes:
        name: shown to people.
        task: kind of targets, which determines the usual loss and metrics:
            "classification": class numbers ``[N]``;
            "regression": ``[N]`` or ``[N, outputs]``;
            "segmentation": a class number per pixel ``[N, H, W]`` or point ``[N, P]``;
            "language_model": the next tokens ``[N, T]``;
            "masked_language_model": the tokens at masked places ``[N, T]``, elsewhere `losses.IGNORED`;
            "click": 0 or 1, ``[N]``;
            "generation": images in [-1, 1] ``[N, channels, height, width]`` to generate; the targets (zeros) are not
            used.
        x, y: training inputs ``[N, ...]`` and targets ``[N, ...]``. A tuple of tensors holds several positional inputs
            of the model, a dict inputs by name.
        x_validation, y_validation: likewise.
        facts: numbers that a model needs, such as ``num_classes``; passed to a family's build function by name.
        standard: for images of bytes (uint8 ``[N, C, H, W]``), the mean and standard deviation of each channel ``[C]``
            after scaling to [0, 1]; None to not standardise. See `floats`.
        words: for texts of words, the word of each token.
        drop_last: leave out the last mini-batch of a pass if it is not full.
        folds: of cross-validation. Members train on a part of the training samples each, and validation samples are the
            training samples: those that are held out from the member.
        origin: the data set that all this was read from; it stays in this process.
    """

    name: str
    task: str
    x: Samples
    y: Samples
    x_validation: Samples
    y_validation: Samples
    facts: Mapping[str, int] = field(default_factory=dict)
    standard: tuple[Tensor, Tensor] | None = None
    words: tuple[str, ...] = ()
    drop_last: bool = False
    folds: tuple[Fold, ...] = ()
    origin: Origin | None = field(default=None, repr=False)

    def as_given(self) -> Any:
        """A `Stream` of the data set that all this was read from; None where it is not known, or no longer this."""
        if self.origin is None or self.origin.x is not self.x or self.origin.y is not self.y:
            return None
        return self.origin.stream()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "origin": None}

    batch_size = None
    """Of its own; a `Stream` may have one."""

    @functools.cached_property
    def _labels(self) -> Tensor | None:
        """The class of each training target, `IGNORED` where it does not count; None where there are no classes."""
        y, mask = beside_mask(self.y)
        if not isinstance(y, Tensor) or "num_classes" not in self.facts:
            return None
        labels = y.movedim(1, -1).argmax(-1) if y.is_floating_point() else y
        if mask is None:
            return labels
        counts = mask.reshape(*mask.shape, *[1] * (labels.ndim - mask.ndim)).expand_as(labels) != 0
        return torch.where(counts, labels, IGNORED)

    def class_counts(self, fold: int | None = None) -> tuple[int, ...] | None:
        """See `Inputs`."""
        labels = self._labels
        if labels is None:
            return None
        labels = labels if fold is None else labels[self.folds[fold].training.to(labels.device)]
        return tuple(torch.bincount(labels[labels != IGNORED], minlength=self.facts["num_classes"]).tolist())

    def drawn(self, draw: Draw, seed: int, epoch: int) -> Tensor:
        """The numbers of a member's training samples in the order of an epoch; see `order`."""
        rows = None if draw.fold is None else self.folds[draw.fold].training
        if draw.balanced:
            labels = self._labels.cpu() if rows is None else self._labels.cpu()[rows]  # type: ignore[union-attr]
            shares = 1 / torch.tensor(self.class_counts(draw.fold), dtype=torch.float64)
            found = sampled(torch.where(labels == IGNORED, 0, shares[labels.clamp(min=0)]), seed, epoch)
        else:
            found = order(len(self) if rows is None else len(rows), seed, epoch)
        return found if rows is None else rows[found]

    def held_out_of(self, fold: int | None) -> Tensor:
        """The numbers of the validation samples of a member."""
        return torch.arange(self.held_out) if fold is None else self.folds[fold].held_out

    def __len__(self) -> int:
        return count(self.x)

    @property
    def examples(self) -> tuple[Samples, Samples]:
        return self.x, self.y

    @property
    def samples(self) -> int:
        """Of training."""
        return count(self.x)

    def batches(self, batch_size: int, fold: int | None = None) -> int:
        """Number of mini-batches in a pass through the training samples; the last one may be smaller."""
        samples = len(self) if fold is None else len(self.folds[fold].training)
        return batches_in(samples, batch_size, self.drop_last)

    def batches_for(self, row: Mapping[str, Any]) -> int:
        """See `Inputs`."""
        return self.batches(int(row["batch_size"]), row.get("fold"))

    def dropping_last(self) -> Data:
        """The same data, without the last mini-batch of a pass where it is not full."""
        return replace(self, drop_last=True)

    def sample_batch(
        self, n: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> tuple[Samples, Samples]:
        x, y = (moved(take(part, slice(n)), device, dtype) for part in (self.x, self.y))
        return self.floats(x, dtype), y

    @property
    def held_out(self) -> int:
        """Number of validation samples."""
        return count(self.x_validation)

    def to(self, device: torch.device, dtype: torch.dtype) -> Data:
        """Move to a device, floating-point tensors to `dtype`."""

        parts = [moved(getattr(self, name), device, dtype) for name in self.parts]
        standard = None if self.standard is None else (self.standard[0].to(device), self.standard[1].to(device))
        x, y, xv, yv = parts * (2 if self.folds else 1)
        return replace(self, x=x, y=y, x_validation=xv, y_validation=yv, standard=standard)

    @property
    def parts(self) -> tuple[str, ...]:
        """The attributes that hold its samples; with folds, those of training are all."""
        return PARTS[:2] if self.folds else PARTS

    def head(self, n: int) -> Data:
        """The first `n` samples of training and of validation, copied."""
        parts = {name: tree_map(torch.clone, take(getattr(self, name), slice(n))) for name in PARTS}
        every = torch.arange(min(n, len(self)))
        return replace(self, **parts, folds=tuple(Fold(every, every) for _ in self.folds))

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for saving: "x", or "x.0", "x.1", ... of a tuple, "x.name" of a dict."""
        named = {name: value for part in self.parts for name, value in _named(part, getattr(self, part))}
        for number, fold in enumerate(self.folds):
            named |= {f"folds.{number}.training": fold.training, f"folds.{number}.held_out": fold.held_out}
        if self.standard is not None:
            named |= {"standard.mean": self.standard[0], "standard.deviation": self.standard[1]}
        return named

    @classmethod
    def of_tensors(
        cls,
        name: str,
        task: str,
        facts: Mapping[str, int],
        tensors: Mapping[str, Tensor],
        words: Sequence[str] = (),
    ) -> Data:
        """Rebuild samples from the result of `tensors`."""

        def part(wanted: str) -> Samples:
            if wanted in tensors:
                return tensors[wanted]
            inner = [k.removeprefix(f"{wanted}.") for k in tensors if k.startswith(f"{wanted}.")]
            keys = list(dict.fromkeys(k.partition(".")[0] for k in inner))
            found = {k: part(f"{wanted}.{k}") for k in keys}
            if all(k.isdecimal() for k in keys):
                return tuple(found[k] for k in sorted(keys, key=int))
            return {k.replace("%2E", ".").replace("%25", "%"): v for k, v in found.items()}

        standard = (tensors["standard.mean"], tensors["standard.deviation"]) if "standard.mean" in tensors else None
        count = sum(key.endswith(".held_out") for key in tensors if key.startswith("folds."))
        folds = [Fold(tensors[f"folds.{i}.training"], tensors[f"folds.{i}.held_out"]) for i in range(count)]
        x, y, xv, yv = (part(one) for one in (PARTS[:2] * 2 if folds else PARTS))
        return cls(name, task, x, y, xv, yv, facts, standard, tuple(words), folds=tuple(folds))

    def __repr__(self) -> str:
        shape = " and ".join(str(list(t.shape[1:])) for t in leaves(self.x))
        held_out = "" if self.folds else f" + {self.held_out}"
        folds = f" in {len(self.folds)} folds" if self.folds else ""
        return f"Data({self.name!r}, {self.task}, {len(self)}{held_out} samples of {shape}{folds})"


PARTS = ("x", "y", "x_validation", "y_validation")


def _named(name: str, samples: Samples) -> Iterator[tuple[str, Tensor]]:
    """Tensors by the path to them."""
    if isinstance(samples, Tensor):
        yield name, samples
        return
    for key, value in samples.items() if isinstance(samples, dict) else enumerate(samples):
        word = str(key).replace("%", "%25").replace(".", "%2E")
        yield from _named(f"{name}.{word}", value)
