"""Own data from a `Dataset`: read into memory if it fits, else streamed during the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psutil
from torch.utils.data import IterableDataset, Subset

from hfta_nb.data.items import sample_of, stacked
from hfta_nb.data.randomness import Randomness
from hfta_nb.data.samples import Data, Samples, leaves
from hfta_nb.data.streams import Stream, classes_of, declared, is_map_style, stream
from hfta_nb.data.tensors import from_tensors, split_rows
from hfta_nb.errors import DataError

SHARE_OF_MEMORY = 0.25
"""The share of free memory that data may take to be kept in memory."""

CHUNK = 64
"""Samples that are read before checking whether random numbers were drawn."""


def from_dataset(
    training: Any,
    validation: Any = None,
    *,
    name: str | None = None,
    task: str | None = None,
    held_out: float = 0.2,
    in_memory: bool | None = None,
    **facts: int,
) -> Data | Stream:
    """Data from a `Dataset`, read once into memory if it fits, else streamed during the run.

    Args:
        training: a `torch.utils.data.Dataset`, or anything with ``[i]`` and ``len()``. A sample is ``(x, y)``,
            ``(x1, x2, ..., y)`` for several positional inputs of the model, or a dict of inputs by name with the target
            under "labels", "label" or "target". Pillow images become bytes ``[C, H, W]``.
        validation: likewise; by default a part of the training samples is held out, the same ones each time.
        name: shown to people; the dataset's class by default, or "own data" for a list of samples.
        task: see `Data`; by default "classification" or "regression", as the targets' type says.
        held_out: the share held out, between 0 and 1.
        in_memory: True to keep it in memory whatever its size, False to stream it. By default it is kept in memory if
            it takes less than a quarter of the free memory and reading draws no random numbers: a dataset that augments
            its samples must be read again in each pass.
        facts: numbers that a model needs, for example ``num_classes=10``; by default found from the data.

    Raises:
        DataError: samples are not inputs and target, or can't be stacked.
    """
    if not is_map_style(training) and not isinstance(training, IterableDataset):
        raise DataError("not a Dataset", where="training", got=training, accepted="something with [i] and len()")
    title = name or _title(training)
    several = [training] if validation is None else [training, validation]
    if all(is_map_style(part) for part in several) and in_memory is not False:
        read = [_whole(part, title, always=in_memory is True) for part in several]
        if all(part is not None for part in read):
            (x, y), *rest = (part for part in read if part is not None)
            xv, yv = rest[0] if rest else (None, None)
            many = facts.get("num_classes") or declared(training)
            data = from_tensors(x, y, xv, yv, name=title, task=task, validation=held_out, num_classes=many)
            return _with_facts(data, training, facts)
    if validation is None and is_map_style(training):
        kept, aside = split_rows(len(training), held_out)
        training, validation = Subset(training, kept.tolist()), Subset(training, aside.tolist())
    return stream(training, validation, title, task, facts)


def _title(dataset: Any) -> str:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return "own data" if isinstance(dataset, list) else type(dataset).__name__


def _with_facts(data: Data, dataset: Any, given: dict[str, int]) -> Data:
    facts = dict(data.facts)
    classes = classes_of(dataset) if data.task == "classification" else None
    if classes is not None and classes >= facts["num_classes"]:
        facts |= {"num_classes": classes, "out_features": classes}
    return replace(data, facts={**facts, **given})


def _whole(dataset: Any, name: str, *, always: bool) -> tuple[Samples, Samples] | None:
    """All samples; None if they are to be streamed."""
    total = len(dataset)
    if not total:
        raise DataError("holds no samples", where=name)
    drawn = Randomness(0)
    before = drawn.mark()
    items = []
    with drawn.drawn():
        first = sample_of(dataset[0], f"{name}, sample 0")
    size = sum(t.numel() * t.element_size() for part in first for t in leaves(part))
    if not always and (drawn.moved(before) or size * total > SHARE_OF_MEMORY * psutil.virtual_memory().available):
        return None
    for start in range(0, total, CHUNK):
        with drawn.drawn():
            items += [dataset[i] for i in range(start, min(start + CHUNK, total))]
        if not always and drawn.moved(before):
            return None
    return stacked(items)
