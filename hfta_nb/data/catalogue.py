"""Data sets by name."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hfta_nb.data import clicks, english, photographs, shapes, tabular
from hfta_nb.data.catalogue_names import TASKS
from hfta_nb.data.datasets import from_dataset
from hfta_nb.data.judging import is_map_style
from hfta_nb.data.readers import READERS, read
from hfta_nb.data.readers.files import directory_of
from hfta_nb.data.samples import Data
from hfta_nb.data.streams import Stream, is_streamed, stream
from hfta_nb.data.tensors import from_tensors
from hfta_nb.errors import DataError

BUILT_IN: dict[str, Callable[[], Data]] = {
    "digits": tabular.digits,
    "breast_cancer": tabular.breast_cancer,
    "diabetes": tabular.diabetes,
    "wine": tabular.wine,
    "iris": tabular.iris,
    "photographs": photographs.photographs,
    "photograph_patches": photographs.photograph_patches,
    "digit_images": tabular.digit_images,
    "shapes": shapes.shapes,
    "shape_parts": shapes.shape_parts,
    "english": english.english,
    "english_words": english.english_words,
    "english_masked": english.english_masked,
    "english_words_masked": english.english_words_masked,
    "clicks": clicks.clicks,
}
"""Data sets that need no download."""


def names_for(tasks: Sequence[str]) -> list[str]:
    """Built-in data sets and kinds of directories for any of these tasks."""
    return [n for n, task in TASKS.items() if task in tasks and (n in BUILT_IN or n in READERS)]


def names() -> list[str]:
    """The built-in data sets."""
    return list(BUILT_IN)


def kinds() -> list[str]:
    """Kinds of data sets that can be read from a directory: ``load("cifar10:<directory>")``. The default directory is
    below ``$HFTA_NB_DATA``."""
    return list(READERS)


def found(tasks: Sequence[str] = ()) -> list[str]:
    """Kinds of data sets that are found under ``$HFTA_NB_DATA``, for any of these tasks (by default all)."""
    there = [kind for kind in READERS if directory_of(kind, None).is_dir()]
    return [kind for kind in there if not tasks or TASKS.get(kind) in tasks]


@functools.cache
def load(name: str) -> Data:
    """Load a data set by name: a built-in one, or ``kind:directory`` (see `kinds`).

    Raises:
        DataError: the name is unknown, the files are not in the directory, or a file is damaged.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    kind, _, directory = str(name).partition(":")
    if kind in READERS:
        return read(kind, directory or None)
    all_names = [*BUILT_IN, *READERS]
    close = difflib.get_close_matches(str(name), all_names, 1)
    raise DataError(
        "unknown data set",
        where="data",
        got=name,
        accepted=", ".join(all_names),
        remedy=f"did you mean {close[0]}?" if close else "",
    )


def resolve(data: Any) -> Data | Stream:
    """Make data from what `Study` accepts.

    Args:
        data: a name; `Data` or a `Stream`; tensors ``(x, y)`` or ``(x, y, x_validation, y_validation)``; a `Dataset`
            or a list of samples ``[(x, y), ...]``; or ``(training, validation)``, each a `Dataset`, a `DataLoader` or a
            function that yields batches (the second may also be tensors ``(x, y)``). A dict with "train" and, if
            any, "validation" (or else "test"), as Hugging Face's `DatasetDict`, is such a pair.

    Raises:
        DataError: it is none of these, or can't be used.
    """
    if isinstance(data, str):
        return load(data)
    if isinstance(data, Data | Stream):
        return data
    if isinstance(data, Mapping) and is_streamed(data.get("train")):
        held_out = data.get("validation", data.get("test"))
        return resolve(data["train"] if held_out is None else (data["train"], held_out))
    pair = isinstance(data, tuple) and len(data) == 2 and is_streamed(data[0])
    if pair or is_streamed(data):
        training, validation = data if pair else (data, None)
        if is_map_style(training) and (validation is None or is_map_style(validation)):
            return from_dataset(training, validation)
        return stream(training, validation, "own data", None, {})
    if isinstance(data, tuple) and len(data) in (2, 4):
        return from_tensors(*data)
    accepted = f"{', '.join(BUILT_IN)}, Data, tensors (x, y), a Dataset, a list of samples, or (training, validation)"
    remedy = "give the function that makes the iterator, with validation" if hasattr(data, "__next__") else ""
    if isinstance(data, tuple) and len(data) in (3, 5, 6):
        remedy = (
            "several inputs are a tuple, ((x1, x2), y), and so are a target and its weights or indices, (x, (y, w))"
        )
    if isinstance(data, Mapping):
        remedy = "axes come before the data: Study(family, grid, data)"
    got = f"a tuple of {len(data)}" if isinstance(data, tuple) else data
    raise DataError("not data", where="data", got=got, accepted=accepted, remedy=remedy)
