"""Counts classes in labels, and rejects implausible labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from hfta_nb.errors import DataError
from hfta_nb.errors.border import plain

IGNORED = -100
"""The class number that says "no target here": the `ignore_index` of torch's losses."""

_OWN: ContextVar[int] = ContextVar("ignored", default=IGNORED)
_NUMBERS: ContextVar[bool] = ContextVar("numbers", default=False)

FEW_CLASSES = 100
SPARSE = 8
"""More classes than `FEW_CLASSES` and than `SPARSE` times those that occur are probably a mistake: a stray number, or
an ignored class such as 255 that is not marked by -100."""

_FLOATS = "counts and other numbers that are no classes are floats: y.float()"


def next_tokens(item: Mapping[str, Any]) -> dict[str, Any]:
    """A tokenised text with the labels of a causal language model: at each place the next token.

    Data sets and collators of Hugging Face have the token itself there, and their models move it in their own loss. A
    loss outside of the model needs it moved; its value is the same.

    Args:
        item: a sample, or a batch of a collate function: "input_ids" ``[..., T]``, and, where there are any,
            "attention_mask" and "labels". Without labels, all tokens are learned that the mask does not leave out.

    Returns:
        The same with "labels" ``[..., T]``; -100 at the last place, and before what the labels leave out.

    Raises:
        DataError: it has no tokens.

    Example:
        >>> next_tokens({"input_ids": [5, 6, 7, 0], "attention_mask": [1, 1, 1, 0]})["labels"]
        tensor([   6,    7, -100, -100])
    """
    if "input_ids" not in item:
        raise DataError("no tokens", where="next_tokens", got=list(item), accepted='a dict with "input_ids"')
    labels = torch.as_tensor(item.get("labels", item["input_ids"]))
    if "labels" not in item and "attention_mask" in item:
        labels = labels.masked_fill(torch.as_tensor(item["attention_mask"]) == 0, IGNORED)
    moved = torch.full_like(labels, IGNORED)
    moved[..., :-1] = labels[..., 1:]
    return {**item, "labels": moved}


MASK = "mask"
"""The name under which a mask stands beside targets."""


def beside_mask(y: Any) -> tuple[Any, Any]:
    """Targets and the mask beside them: of a dict ``{"mask": mask, "any other name": targets}``; else no mask, None.

    The mask is 0 (or False) where a target does not count. It has the shape of the targets, or of their first axes.
    """
    if isinstance(y, dict) and len(y) == 2 and MASK in y:
        (name,) = y.keys() - {MASK}
        return y[name], y[MASK]
    return y, None


@contextmanager
def ignoring(loss: Any, numbers: bool = False) -> Iterator[None]:
    """Read labels, within the context, for a loss that may have an `ignore_index` of its own.

    Args:
        loss: the loss.
        numbers: it is one of numbers, so that whole numbers are no classes.
    """
    keywords = getattr(loss, "keywords", None)  # of `functools.partial`
    found = (keywords if isinstance(keywords, Mapping) else getattr(loss, "__dict__", {})).get("ignore_index")
    token, kind = _OWN.set(found if isinstance(found, int) else IGNORED), _NUMBERS.set(numbers)
    try:
        yield
    finally:
        _OWN.reset(token)
        _NUMBERS.reset(kind)


def ignored() -> int:
    """The label that marks a target that does not count."""
    return _OWN.get()


def are_numbers() -> bool:
    """Whether whole numbers are read for a loss of numbers."""
    return _NUMBERS.get()


def classes_in(y: Tensor, where: str, known: int | None = None) -> int:
    """The number of classes: as given, else the largest label plus one; 0 if nothing is labelled.

    Args:
        y: labels, whole numbers of any shape; `ignored` is not counted.
        where: for the error.
        known: the number of classes, if known.

    Raises:
        DataError: a label is negative (other than `ignored`), or outside the known classes.
    """
    known, counted = plain(known), y[y != ignored()]
    if not counted.numel():
        return known or 0
    lowest, highest = int(counted.min()), int(counted.max())
    if lowest < 0:
        accepted = f"class numbers from 0, or {IGNORED} for targets that do not count"
        remedy = f"where {lowest} marks what does not count: y[y == {lowest}] = {IGNORED}, and ignore_index={IGNORED}; "
        remedy += f"or Study(build, grid, (x, y), loss=nn.CrossEntropyLoss(ignore_index={lowest})); {_FLOATS}"
        raise DataError("a negative label", where=where, got=lowest, accepted=accepted, remedy=remedy)
    if known is not None and highest >= known:
        strays = counted[counted >= known]
        raise DataError(
            f"{len(strays)} of {y.numel():,} labels are none of the {known} classes",
            where=where,
            got=torch.unique(strays)[:5].tolist(),
            accepted=f"0 to {known - 1}, or {IGNORED} for targets that do not count",
            remedy="mend the labels, or give the num_classes that is meant",
        )
    return highest + 1 if known is None else known


def check_spread(parts: list[tuple[str, Tensor]]) -> None:
    """Check that the labels of all parts are plausible, if the number of classes was not given.

    Args:
        parts: the labels, each with a name for the error.

    Raises:
        DataError: nothing is labelled, or the largest label is far beyond the number of classes that occur.
    """
    present = torch.unique(torch.cat([y.flatten() for _, y in parts]))
    present = present[present != ignored()]
    if not len(present):
        raise DataError("has no labels", where=parts[0][0], got=f"nothing but {ignored()}, which is ignored")
    classes = int(present.max()) + 1
    if classes < FEW_CLASSES or classes <= SPARSE * len(present):
        return
    largest = int(present.max())
    where, count = next((n, int((y == largest).sum())) for n, y in parts if bool((y == largest).any()))
    raise DataError(
        f"{len(present)} classes occur, and their largest number would make a model of {classes:,}",
        where=where,
        got=f"the label {largest:,}, {count} times",
        accepted=f"class numbers from 0 without large gaps, or {IGNORED} for targets that do not count",
        remedy=f"where it marks what does not count: y[y == {largest}] = {IGNORED}, and ignore_index={IGNORED}; or say "
        f"that so many are meant: num_classes={classes}; {_FLOATS}",
    )
