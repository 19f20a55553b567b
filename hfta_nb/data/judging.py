"""Whether samples are the same each time that they are read."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from hfta_nb.data.items import samples_at
from hfta_nb.data.reading_state import UNLIKE, Held, shown
from hfta_nb.data.sources import InOrder, Source, TensorSource
from hfta_nb.errors import DataError, DataWarning

LOOK_BATCH = 64
"""The size of batches that are looked at, where the data has none of its own."""

MOST_ENTRIES = 50_000
"""So much of an order, which may have no end, is read to see whether it varies."""


def judged(parts: Sequence[tuple[Any, Source]], whole: bool = False) -> Held:
    """What the parts of some data hold that reading changes, found out by reading a little of them twice.

    Args:
        parts: training and validation, as given, and their sources.
        whole: read all samples of data sets, of which it is known that some change.

    Raises:
        DataError: a loader's worker processes would keep it from pass to pass.
    """
    held = Held({_name(part, role): part for (part, _), role in zip(parts, ("training", "validation"), strict=False)})
    for part, source in parts:
        for read, keys in _readable(part, source, whole):
            with contextlib.suppress(Exception):  # told where it is read in earnest
                held.judge(read, keys)
        if isinstance(part, DataLoader):
            _check_workers(part, source)
    if held.entropy == UNLIKE:
        why = "where that is an iterator, a large array or a file, which can't be put back, this look has moved it on"
        words = f"{parts[0][1].name}: {UNLIKE}; {why}"
        warnings.warn(DataWarning(words), stacklevel=2)
    return held


def is_map_style(data: Any) -> bool:
    """Whether samples can be read by index: torch's `Dataset`, an object with its methods, or a list of samples, which
    are tuples that begin with a tensor or an array."""
    if isinstance(data, list):
        first = data[0] if data else None
        return isinstance(first, tuple) and len(first) > 1 and hasattr(first[0], "shape")
    if isinstance(data, IterableDataset | Tensor | tuple | Mapping | str | bytes) or hasattr(data, "__array__"):
        return False
    return callable(getattr(data, "__getitem__", None)) and callable(getattr(data, "__len__", None))


def _name(part: Any, role: str) -> str:
    if isinstance(part, DataLoader):
        return "loader" if role == "training" else "validation loader"
    if role == "training" and (is_map_style(part) or isinstance(part, IterableDataset)):
        return "dataset"
    return str(getattr(part, "__name__", role))


def _readable(part: Any, source: Source, whole: bool = False) -> Iterator[tuple[Callable[[Any], Any], list[Any]]]:
    """Ways to read a little of it."""
    samples: Any = part.dataset if isinstance(part, DataLoader) else part
    if is_map_style(samples) and len(samples):
        yield lambda row: samples_at(samples, [row]), list(range(len(samples))) if whole else few(samples)
    own = _own_order(part) if isinstance(part, DataLoader) else None
    if own is not None:  # to its end, where one that is a generator may go on to its next pass
        yield lambda _: list(itertools.islice(own, MOST_ENTRIES)), [None]
    if isinstance(part, DataLoader) and part.num_workers:
        order = part.sampler if part.batch_sampler is None else part.batch_sampler
        yield lambda _: next(iter(order)), [None]
    elif isinstance(source, InOrder) and not (isinstance(source, TensorSource) or is_map_style(part)):
        yield lambda _: _first_of(source), [None]


def few(dataset: Any) -> list[int]:
    """The numbers of some samples."""
    last = len(dataset) - 1
    return sorted({0, last // 2, last})


def _own_order(loader: DataLoader[Any]) -> Any:
    """The loader's sampler that is not one of torch's; None if there is none."""
    given = (loader.batch_sampler, loader.sampler)
    return next((v for v in given if v is not None and not type(v).__module__.startswith("torch.")), None)


def _first_of(source: Source) -> Any:
    with contextlib.closing(source.batches(LOOK_BATCH, 0, 0)) as reader:
        return next(reader, None)


def _check_workers(loader: DataLoader[Any], source: Source) -> None:
    """Check that no state is in processes that live on from pass to pass, where it can't be put back."""
    if not loader.persistent_workers:
        return
    if loader.worker_init_fn is not None:
        words = "each pass has worker processes of its own, so that a run can be resumed: worker_init_fn is called anew"
        remedy = (
            "let it seed by torch.initial_seed(), which differs from pass to pass, or give persistent_workers=False"
        )
        warnings.warn(DataWarning(f"{source.name}: {words}; {remedy}"), stacklevel=2)
        return
    inner = Held({"dataset": loader.dataset, "collate_fn": loader.collate_fn})
    if is_map_style(loader.dataset):
        with contextlib.suppress(Exception):
            inner.judge(*next(_readable(loader.dataset, source)))
    if inner.keeps:
        what = "worker processes that live on would change what the data holds, which can't be put back"
        remedy = "DataLoader(..., persistent_workers=False), or draw from torch's random numbers"
        raise DataError(what, where=source.name, got=shown(inner.names) or "set_epoch", remedy=remedy)
