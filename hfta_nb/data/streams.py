"""Streamed data: batches from a `DataLoader`, a `Dataset` or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset

from hfta_nb.data.argument_kinds import KINDS
from hfta_nb.data.judging import LOOK_BATCH, is_map_style, judged
from hfta_nb.data.labels import check_spread
from hfta_nb.data.reading_state import Held, Reading
from hfta_nb.data.samples import Data, Inputs, Samples, count, leaves, moved, take
from hfta_nb.data.sources import DatasetSource, FunctionSource, LoaderSource, Source, TensorSource
from hfta_nb.data.tensors import COUNTED, LABELLED, check_name, facts_of, usual_task
from hfta_nb.errors import DataError
from hfta_nb.errors.border import takes

LONGEST_LOOK = 10_000
"""The most batches that are read to count classes or words."""


@dataclass(frozen=True, eq=False)
class Stream(Inputs):
    """Training and validation samples that are read batch by batch; every member gets the same batches.

    Made by `from_loader`, `from_batches` and `from_dataset`. Each pass seeds the random numbers of torch, NumPy and
    Python from the study's seed and the number of the pass. Generators that the data itself holds (a `DataLoader`'s, a
    data set's, a transform's), and whatever else reading changes, go on from pass to pass as in a loop of one's own;
    each array begins with them as they were given.

    Attributes:
        name: shown to people.
        task: see `Data`.
        training, validation: sources of batches.
        first: the first batch, for shapes.
        facts: see `Data`.
        held: what its objects hold that reading changes.
        standard: see `Data`.
        kept: the same samples in memory, where they are there as well.
    """

    name: str
    task: str
    training: Source
    validation: Source
    first: tuple[Samples, Samples]
    facts: Mapping[str, int] = field(default_factory=dict)
    held: Held = field(default_factory=lambda: Held({}))
    standard: tuple[Tensor, Tensor] | None = None
    kept: Data | None = None

    @property
    def batch_size(self) -> int | None:
        """Its own batch size (of a function, that of the first batch); None if it uses the run's."""
        return None if self.takes_batch_size else self.training.batch_size or count(self.first[1])

    @property
    def examples(self) -> tuple[Samples, Samples]:
        return self.first

    @property
    def takes_batch_size(self) -> bool:
        """Whether it uses the run's batch size."""
        return self.training.takes_batch_size

    @property
    def samples(self) -> int | None:
        """The number of training samples, if known."""
        return self.training.samples

    @property
    def endless(self) -> bool:
        """Whether a pass through the training samples is known to have no end; False if unknown."""
        return self.training.endless

    def batches(self, batch_size: int) -> int | None:
        """Number of mini-batches in a pass through the training samples, if known."""
        return self.training.length(batch_size)

    def dropping_last(self) -> Stream:
        """The same data, without the last mini-batch of a pass where it is not full.

        Raises:
            DataError: it makes its mini-batches itself.
        """
        if not isinstance(self.training, DatasetSource):
            remedy = "DataLoader(..., drop_last=True), or a function that yields no such batch"
            raise DataError("the data makes its own mini-batches", where="drop_last", got=self.name, remedy=remedy)
        return replace(self, training=self.training.dropping_last())

    def sample_batch(
        self, n: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> tuple[Samples, Samples]:
        x, y = (moved(take(part, slice(n)), device, dtype) for part in self.first)
        return self.floats(x, dtype), y

    def to(self, device: torch.device, dtype: torch.dtype) -> Stream:
        """Return itself; batches are moved one by one."""
        return self

    def __repr__(self) -> str:
        shape = " and ".join(str(list(t.shape[1:])) for t in leaves(self.first[0]))
        many = "" if self.samples is None else f"{self.samples} "
        return f"Stream({self.name!r}, {self.task}, {many}samples of {shape})"


AnyData: TypeAlias = Data | Stream
"""The data of a study."""


@takes(DataError, **KINDS)
def from_loader(
    training: DataLoader[Any], validation: Any, *, name: str = "own data", task: str | None = None, **facts: int
) -> Stream:
    """Data from a `DataLoader`, which keeps its batch size, order, workers and collate function.

    Args:
        training: yields ``(x, y)``, ``(x1, x2, ..., y)`` for several positional inputs of the model, or a dict of
            inputs by name with the target under "labels", "label" or "target".
        validation: likewise; or a `Dataset`, tensors ``(x, y)`` or a function.
        name: shown to people.
        task: see `Data`; by default "classification" or "regression", as the targets' type says.
        facts: numbers that a model needs, for example ``num_classes=10``. By default found from the dataset's
            ``classes`` or ``targets``, else by a pass through all batches.

    Raises:
        DataError: it yields no batch, or something else than inputs and targets; or validation never ends.
    """
    if not isinstance(training, DataLoader):
        raise DataError("not a DataLoader", where="training", got=training, accepted="torch.utils.data.DataLoader")
    return stream(training, validation, name, task, facts)


@takes(DataError, **KINDS)
def from_batches(
    training: Callable[..., Iterable[Any]],
    validation: Any,
    *,
    name: str = "own data",
    task: str | None = None,
    **facts: int,
) -> Stream:
    """Data from a function that returns an iterator of batches; called again for each pass.

    Args:
        training: called with the number of the pass (from 0) if it takes an argument. See `from_loader` for what a
            batch is. Batches may differ in size. An endless one needs ``Study(steps_per_epoch=...)``.
        validation, name, task, facts: as in `from_loader`.

    Raises:
        DataError: it yields no batch, or something else than inputs and targets; or validation never ends.

    Example:
        >>> import torch
        >>> def batches(epoch):
        ...     for _ in range(3):
        ...         x = torch.randn(8, 4)
        ...         yield x, x.sum(1, keepdim=True)
        >>> from_batches(batches, batches)
        Stream('own data', regression, samples of [4])
    """
    if not callable(training):
        raise DataError("not a function", where="training", got=training, accepted="a function that yields batches")
    return stream(training, validation, name, task, facts)


def stream(
    training: Any, validation: Any, name: str, task: str | None, facts: Mapping[str, int], whole: bool = False
) -> Stream:
    """A stream of anything that `source_of` accepts; `whole`: look at all samples of it, see `judged`."""
    check_name(name)
    for key, value in facts.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise DataError("not a fact", where=key, got=value, accepted="a whole number, such as num_classes=10")
    if validation is None:
        raise DataError(
            "a loader or a function can't be split, so samples for validation must be given",
            where=name,
            remedy="data=(training, validation); the latter may be a loader, a Dataset, tensors (x, y) or a function",
        )
    sources = source_of(training, shuffle=True), source_of(validation, shuffle=False)
    for source, part in zip(sources, ("training", "validation"), strict=True):
        source.name = f"{name}, {part}"
        source.tells = part == "training"
    held = judged(list(zip((training, validation), sources, strict=True)), whole)
    firsts = [_first(source, held) for source in sources]
    if sources[1].endless:
        what, accepted = "never ends, so a validation would not either", "a limited number of batches"
        raise DataError(what, where=sources[1].name, accepted=accepted, remedy="end it after some batches")
    task = task or usual_task(firsts[0][1])
    _alike(firsts[0], firsts[1], name)
    found = facts_of(task, *firsts[0], facts.get("num_classes"), sources[0].name)
    counted = [k for k in COUNTED if k in found and k not in facts]
    if counted and task != "regression":
        found |= dict.fromkeys(counted, _count(task, counted, training, sources, held))
    held.switch(None)
    return Stream(name, task, sources[0], sources[1], firsts[0], {**found, **facts}, held)


def is_streamed(data: Any) -> bool:
    """Whether it is a loader, a dataset or a function rather than tensors."""
    return isinstance(data, DataLoader | IterableDataset) or is_map_style(data) or _is_function(data)


def _is_function(data: Any) -> bool:
    return callable(data) and not isinstance(data, type | str | Data | Stream)


def source_of(part: Any, *, shuffle: bool) -> Source:
    """The source of the batches of a part of the data.

    Raises:
        DataError: it is not a source.
    """
    if isinstance(part, DataLoader):
        return LoaderSource(part)
    if isinstance(part, IterableDataset) or is_map_style(part):
        return DatasetSource(part, shuffle)
    if _is_function(part):
        return FunctionSource(part)
    if isinstance(part, tuple) and len(part) == 2:
        from hfta_nb.data.tensors import from_tensors

        whole = from_tensors(*part, *part)  # checks them
        return TensorSource(whole.x, whole.y)
    accepted = "a DataLoader, a Dataset, a function that yields batches, or tensors (x, y)"
    remedy = ""
    if hasattr(part, "__next__"):
        remedy = "an iterator can be used only once; give the function that makes it"
    raise DataError("not data", where="data", got=part, accepted=accepted, remedy=remedy)


def _first(source: Source, held: Held) -> tuple[Samples, Samples]:
    reader = Reading(held).items(source.batches(LOOK_BATCH, 0, 0))
    try:
        found = next(reader, None)
    except DataError:
        raise
    except Exception as error:
        what = f"the first batch can't be read ({type(error).__name__}: {error})"
        raise DataError(what, where=source.name) from error
    finally:
        reader.close()
    if found is None:
        raise DataError("gave no batch", where=source.name)
    return found


def _alike(training: tuple[Samples, Samples], validation: tuple[Samples, Samples], name: str) -> None:
    """Check that training and validation have the same structure and number of axes."""
    for mine, theirs, part in zip(training, validation, ("inputs", "targets"), strict=True):
        shapes = [[(t.ndim, t.dtype.is_floating_point) for t in leaves(s)] for s in (mine, theirs)]
        if type(mine) is not type(theirs) or shapes[0] != shapes[1]:
            raise DataError(
                f"training and validation have unlike {part}",
                where=name,
                got=[[tuple(t.shape) for t in leaves(s)] for s in (mine, theirs)],
            )


def _count(task: str, names: Sequence[str], training: Any, sources: Sequence[Source], held: Held) -> int:
    """Count classes or words."""
    samples = training.dataset if isinstance(training, DataLoader) else training
    known = None if "vocab_size" in names else classes_of(samples)
    if known is not None:
        if declared(samples) is None:
            check_spread([(f"{sources[0].name}, targets", torch.as_tensor(_targets(samples)))])
        return known
    highest, present = 0, torch.zeros(0, dtype=torch.long)
    for source in sources:
        reader = Reading(held).items(source.batches(LOOK_BATCH, 0, 0))
        for number, (x, y) in enumerate(reader):
            if number == LONGEST_LOOK or source.endless:
                reader.close()
                why = "it never ends" if source.endless else f"after {number} batches there are still more"
                raise DataError(
                    f"{names[0]} can't be found: {why}",
                    where=source.name,
                    remedy=f"say {' and '.join(f'{n}=...' for n in names)}",
                )
            highest = max(highest, facts_of(task, x, y, where=source.name)[names[0]])
            if task in LABELLED and not y.is_floating_point():
                present = torch.unique(torch.cat([present, y.flatten()]))
    if len(present):
        check_spread([(sources[0].name, present)])
    return highest


def declared(dataset: Any) -> int | None:
    """The number of classes that a dataset lists as its ``classes``."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    classes = getattr(dataset, "classes", None)
    return len(classes) if isinstance(classes, Sized) and len(classes) else None


def _targets(dataset: Any) -> Any:
    """A dataset's ``targets``; None if it has none."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return getattr(dataset, "targets", None)


def classes_of(dataset: Any) -> int | None:
    """The number of classes that a dataset reports."""
    known = declared(dataset)
    if known is not None:
        return known
    targets = _targets(dataset)
    if targets is None:
        return None
    try:
        numbers = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError):
        return None
    whole = numbers.ndim == 1 and len(numbers) and not numbers.is_floating_point()
    return int(numbers.max()) + 1 if whole else None
