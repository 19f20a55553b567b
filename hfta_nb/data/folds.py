"""Folds of cross-validation, by their number, a splitter of scikit-learn's, or the splits themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hfta_nb.data.catalogue import resolve
from hfta_nb.data.judging import is_map_style
from hfta_nb.data.order import SPLIT_SEED, Fold
from hfta_nb.data.samples import Data
from hfta_nb.data.streams import AnyData
from hfta_nb.errors import DataError
from hfta_nb.errors.border import whole

ACCEPTED = "2, 3, ..., a splitter of scikit-learn's, or a list of (training, held-out) sample numbers"


def folded(data: Any, found: AnyData, given: Any) -> Data:
    """The data of a study with folds: all samples for training, and how they are split.

    Args:
        data: as it was handed over. Of data without validation samples of its own, all samples are split.
        found: made from it. Its validation samples are left out otherwise.
        given: the number of folds, a splitter, or splits; not used where the data has folds already.

    Raises:
        DataError: the samples are not in memory, or can't be split in this way.
    """
    if isinstance(found, Data) and found.folds:
        return found
    if isinstance(data, Mapping) and len(data) == 1:
        data = data.get("train")
    if isinstance(data, tuple) and len(data) == 2 and not is_map_style(data[0]):
        found = resolve((*data, *data))
    elif is_map_style(data):
        found = resolve((data, data))
    if not isinstance(found, Data):
        remedy = "give tensors, or hfta_nb.data.from_dataset(..., in_memory=True)"
        raise DataError("is read batch by batch, and can't be split", where="folds", got=found.name, remedy=remedy)
    splits = tuple(_checked(split, len(found)) for split in _splits(given, found))
    if len(splits) < 2:
        raise DataError("fewer than two", where="folds", got=len(splits), accepted=ACCEPTED)
    return replace(found, x_validation=found.x, y_validation=found.y, folds=splits, origin=None)


def _splits(given: Any, data: Data) -> Iterable[Any]:
    labels = data.y if isinstance(data.y, Tensor) and data.y.ndim == 1 else None
    if whole(given):
        return _dealt(int(given), len(data), None if labels is None or labels.is_floating_point() else labels)
    if isinstance(given, str) or not (hasattr(given, "split") or isinstance(given, Iterable)):
        raise DataError("not folds", where="folds", got=given, accepted=ACCEPTED)
    try:
        if hasattr(given, "split"):
            return list(given.split(np.zeros((len(data), 1)), None if labels is None else labels.numpy()))
        return list(given)
    except Exception as error:
        groups = "groups" in str(error)
        remedy = "give the splits: folds=GroupKFold(5).split(x, y, groups)" if groups else ""
        what = f"can't split the data ({type(error).__name__}: {error})"
        raise DataError(what, where="folds", got=given, accepted=ACCEPTED, remedy=remedy) from error


def _dealt(count: int, samples: int, labels: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """Folds whose sizes, and whose numbers of samples of each class, differ by at most one; the same each time."""
    if not 2 <= count <= samples:
        raise DataError("not a number of folds", where="folds", got=count, accepted=f"2 to {samples}")
    dealt = torch.randperm(samples, generator=torch.Generator().manual_seed(SPLIT_SEED))
    if labels is not None:
        dealt = dealt[labels[dealt].argsort(stable=True)]
    folds = [dealt[first::count].sort().values for first in range(count)]
    return [(torch.cat([*folds[:i], *folds[i + 1 :]]).sort().values, fold) for i, fold in enumerate(folds)]


def _checked(split: Any, samples: int) -> Fold:
    """One split.

    Raises:
        DataError: it is not a pair of lists of sample numbers, or a sample is in both.
    """
    fold = None
    with contextlib.suppress(TypeError, ValueError, RuntimeError, OverflowError):
        training, held_out = (torch.as_tensor(np.asarray(part)) for part in split)
        fold = Fold(training.long(), held_out.long())
        numbers = [t.ndim == 1 and len(t) and not t.is_floating_point() and t.dtype != torch.bool
                   and int(t.min()) >= 0 and int(t.max()) < samples for t in (training, held_out)]  # fmt: skip
        fold = fold if all(numbers) else None
    if fold is None or isinstance(split, Mapping):
        raise DataError("not a split", where="folds", got=split,
                        accepted=f"(training, held-out) numbers of samples, from 0 to {samples - 1}")  # fmt: skip
    both = np.intersect1d(fold.training.numpy(), fold.held_out.numpy())
    if len(both):
        raise DataError("a sample is held out and trained on", where="folds", got=int(both[0]))
    return fold
