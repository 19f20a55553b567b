"""Texts of unlike length as samples of equal length, without padding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from hfta_nb.data.labels import IGNORED
from hfta_nb.errors import DataError
from hfta_nb.errors.border import WHOLE, takes


@takes(DataError, length=WHOLE)
def pack(rows: Iterable[Any], length: int, *, end: int | None = None) -> tuple[Tensor, Tensor]:
    """Tokenised texts one behind the other, cut into samples of equal length: inputs and the next tokens.

    Args:
        rows: texts: lists of tokens, or dicts with "input_ids", as tokenisers give them. Tokens whose "attention_mask"
            is 0 are left out. "labels", where there are any, say which tokens count: those that are not -100.
        length: of a sample, in tokens; what is left at the end is dropped.
        end: the token behind each text; None for none.

    Returns:
        Inputs and targets ``[N, length]``, for ``from_tensors(*pack(rows, 128), task="language_model")``. The target of
        a token is the one behind it. A sample may have parts of several texts, which see each other.

    Raises:
        DataError: a row has no tokens, or other labels than tokens, or all together are too few for a sample.

    Example:
        >>> x, y = pack([[1, 2, 3], [4, 5]], 3, end=0)
        >>> x.tolist(), y.tolist()
        ([[1, 2, 3], [0, 4, 5]], [[2, 3, 0], [4, 5, 0]])
    """
    if length < 1:
        raise DataError("no sample", where="length", got=length, accepted="from 1")
    tokens, labels = list[int](), list[int]()
    for number, row in enumerate(rows):
        own, counted = _of_row(row, number)
        tokens += own if end is None else [*own, end]
        labels += counted if end is None else [*counted, end]
    samples = (len(tokens) - 1) // length
    if samples < 1:
        raise DataError("too few tokens for a sample", where="rows", got=len(tokens), accepted=f"from {length + 1}")
    x, y = torch.tensor(tokens[: samples * length]), torch.tensor(labels[1 : samples * length + 1])
    return x.view(samples, length), y.view(samples, length)


def _of_row(row: Any, number: int) -> tuple[list[int], list[int]]:
    """The tokens of a text, and its labels."""
    named: Mapping[str, Any] = row if isinstance(row, Mapping) else {"input_ids": row}
    if "input_ids" not in named:
        raise DataError(
            "no tokens", where=f"row {number}", got=list(named), accepted='a dict with "input_ids", or a list'
        )
    try:
        tokens = [int(token) for token in named["input_ids"]]
        labels = [int(label) for label in named.get("labels", tokens)]
        mask = [int(seen) for seen in named.get("attention_mask", [1] * len(tokens))]
    except (TypeError, ValueError) as error:
        remedy = "tokenise it first: tokenizer(text)"
        raise DataError(
            "not tokens", where=f"row {number}", got=row, accepted="whole numbers", remedy=remedy
        ) from error
    if not len(tokens) == len(labels) == len(mask):
        got = {"input_ids": len(tokens), "labels": len(labels), "attention_mask": len(mask)}
        raise DataError("not as many labels and masks as tokens", where=f"row {number}", got=got)
    kept = [i for i, seen in enumerate(mask) if seen]
    return [tokens[i] for i in kept], [tokens[i] if labels[i] != IGNORED else IGNORED for i in kept]
