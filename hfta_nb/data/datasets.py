"""Own data from a `Dataset`: read into memory if it fits, else streamed during the run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import psutil
from torch.utils.data import IterableDataset, Subset

from hfta_nb.data.argument_kinds import KINDS
from hfta_nb.data.items import sample_of, samples_at, stacked
from hfta_nb.data.judging import few, is_map_style
from hfta_nb.data.randomness import Randomness
from hfta_nb.data.reading_state import Held
from hfta_nb.data.samples import Data, Origin, Samples, leaves
from hfta_nb.data.streams import Stream, classes_of, declared, stream
from hfta_nb.data.tensors import from_tensors, split_rows
from hfta_nb.errors import DataError
from hfta_nb.errors.border import plain, takes

SHARE_OF_MEMORY = 0.25
"""The share of free memory that data may take to be kept in memory."""


@takes(DataError, **KINDS)
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
            it takes less than a quarter of the free memory and samples are the same each time. They are taken to be
            where reading draws no random numbers, neither torch's, NumPy's and Python's nor those of a generator that
            the dataset or a transform holds, changes no attribute from read to read, uses no clock or ``os.urandom``,
            and several samples that are read twice, in another order, are equal; a dataset with `set_epoch` is read
            again in each pass.
        facts: numbers that a model needs, for example ``num_classes=10``; by default found from the data.

    Raises:
        DataError: samples are not inputs and target, or can't be stacked.
    """
    if not is_map_style(training) and not isinstance(training, IterableDataset):
        raise DataError("not a Dataset", where="training", got=training, accepted="something with [i] and len()")
    facts = {fact: plain(value) for fact, value in facts.items()}
    title, moved = name or _title(training), False
    several = [training] if validation is None else [training, validation]
    if all(is_map_style(part) for part in several) and in_memory is not False:
        read, moved = _read(several, title, always=in_memory is True)
        if read is not None:
            (x, y), *rest = read
            xv, yv = rest[0] if rest else (None, None)
            many = facts.get("num_classes") or declared(training)
            data = from_tensors(x, y, xv, yv, name=title, task=task, validation=held_out, num_classes=many)
            data = _with_facts(data, training, facts)
            origin = functools.partial(_as_read, training, validation, held_out, title, data.task, dict(data.facts))
            return data if in_memory else replace(data, origin=Origin(data.x, data.y, origin))
    return _as_read(training, validation, held_out, title, task, facts, moved)


def _as_read(
    training: Any,
    validation: Any,
    held_out: float,
    title: str,
    task: str | None,
    facts: dict[str, int],
    whole: bool = False,
) -> Stream:
    if validation is None and is_map_style(training):
        kept, aside = split_rows(len(training), held_out)
        training, validation = Subset(training, kept.tolist()), Subset(training, aside.tolist())
    return stream(training, validation, title, task, facts, whole)


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


def _read(parts: Sequence[Any], name: str, *, always: bool) -> tuple[list[tuple[Samples, Samples]] | None, bool]:
    """All samples of each part, None if they are to be streamed; and whether some were seen to change, of those that
    a look at a few did not tell of."""
    held = Held({"dataset": parts[0], "validation dataset": parts[-1]})
    begin = held.look()
    try:
        small = [_is_small(part, name) for part in parts]
    finally:
        held.put(begin)
    if always:
        return [_whole(part) for part in parts], False
    for part in parts:
        with contextlib.suppress(Exception):  # told where it is read in earnest
            held.judge(partial(samples_at, part), [[row] for row in few(part)])
    if held.changeable or not all(small):
        return None, False
    found: list[tuple[Samples, Samples]] = []
    for part in parts:
        with Randomness(0).drawn():
            samples_at(part, [0])  # what is opened once, say, is open now
        before, drawn = held.look(), Randomness(0)
        mark = drawn.mark()
        with drawn.drawn():
            found.append(_whole(part))
        after = held.look()
        if drawn.moved(mark) or held.drawn(begin, after) or held.moved(before, after):
            held.put(begin)
            return None, True
    return found, False


def _is_small(dataset: Any, name: str) -> bool:
    """Whether all samples take little memory."""
    total = len(dataset)
    if not total:
        raise DataError("holds no samples", where=name)
    with Randomness(0).drawn():
        first = sample_of(samples_at(dataset, [0])[0], f"{name}, sample 0")
    size = sum(t.numel() * t.element_size() for part in first for t in leaves(part))
    return bool(size * total <= SHARE_OF_MEMORY * psutil.virtual_memory().available)


def _whole(dataset: Any) -> tuple[Samples, Samples]:
    return stacked(samples_at(dataset, range(len(dataset))))
