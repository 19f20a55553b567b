"""Splits items of a `Dataset`, a `DataLoader` or a function into inputs and target, as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hfta_nb.data.samples import Positional, Samples, leaves, tuple_like
from hfta_nb.errors import DataError

TARGETS = ("labels", "label", "target", "targets", "y")
"""Keys of the target in samples that are dicts."""


def parted(item: Any, where: str) -> tuple[Any, Any]:
    """Inputs and target of one sample, or of a batch.

    Args:
        item: ``(x, y)``; ``(x1, x2, ..., y)`` for several positional inputs; a dict with the target under one of
            `TARGETS` and inputs by name (a single one is the input itself).

    Raises:
        DataError: it is none of these.
    """
    if isinstance(item, Mapping):
        key = next((k for k in TARGETS if k in item), None)
        inputs = {k: v for k, v in item.items() if k != key}
        if key is not None and inputs:
            return (next(iter(inputs.values())) if len(inputs) == 1 else inputs), item[key]
    elif isinstance(item, tuple | list) and len(item) >= 2:
        *rest, target = item
        return (_plain(rest[0]) if len(rest) == 1 else Positional(map(_plain, rest))), _plain(target)
    got = sorted(item) if isinstance(item, Mapping) else item
    raise DataError(
        "not inputs and target", where=where, got=got, accepted=f"(x, y), or a dict with one of {', '.join(TARGETS)}"
    )


def _plain(value: Any) -> Any:
    """A container converted to the kind that `Samples` uses."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple_like(value, map(_plain, value))
    several = isinstance(value, list) and any(isinstance(v, Tensor | Mapping | tuple) for v in value)
    return tuple(map(_plain, value)) if several else value


def tensor_of(value: Any, where: str, *, batched: bool) -> Tensor:
    """A tensor: floating point or complex numbers, truth values, bytes of images, or int64.

    Args:
        value: a tensor, array, number, list of numbers, a table or column of pandas, or a Pillow image (becomes uint8
            ``[C, H, W]``).
        batched: whether its first axis counts samples.

    Raises:
        DataError: it can't be one.
    """
    if hasattr(value, "getbands"):  # Pillow's, which need not be installed
        return _picture(value)
    if hasattr(value, "to_numpy"):
        value = _columns(value, where)
    try:
        value = native(value)
        tensor = torch.as_tensor(value)
        if tensor.is_floating_point() and not hasattr(value, "dtype"):  # Python's numbers have the precision of float64
            tensor = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DataError("not a tensor, array or number", where=where, got=value, remedy=_remedy(value)) from error
    if tensor.is_nested or tensor.layout != torch.strided:
        remedy = "pad samples to one length, with a mask beside them" if tensor.is_nested else "give x.to_dense()"
        got = "a nested tensor" if tensor.is_nested else str(tensor.layout)
        raise DataError("not a dense tensor", where=where, got=got, remedy=remedy)
    whole = not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool
    images = tensor.dtype == torch.uint8 and tensor.ndim == 3 + batched
    return tensor.long() if whole and not images else tensor


def native(value: Any) -> Any:
    """An array in a form that torch takes: numbers in this machine's order of bytes, rows without negative strides."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiubcO":
        return value
    if value.dtype.kind == "O":  # of numbers, as a table of mixed columns is
        value = np.array(value.tolist())
    kind = value.dtype.newbyteorder("=") if value.dtype.itemsize <= 8 or value.dtype.kind == "c" else np.float64
    return np.asarray(value, kind, order="C")


def _remedy(value: Any) -> str:
    if isinstance(value, str):
        return "encode it as whole numbers, or leave it out (remove_columns of a data set of Hugging Face's)"
    parts = value if isinstance(value, list) else []
    if any(isinstance(part, Tensor | np.ndarray) for part in parts):
        return "several parts are a tuple, (a, b), and samples one tensor: torch.stack(samples)"
    words = value.flatten()[:1].tolist() if isinstance(value, np.ndarray) else parts[:1]
    if any(isinstance(word, str) for word in words):
        return "encode words as whole numbers: numpy.unique(words, return_inverse=True)[1]"
    return "make it one in the dataset, or collate it"


def _columns(table: Any, where: str) -> Any:
    """A copy of a table or column, whose own memory may be read-only."""
    found = np.array(table)
    if found.dtype.kind not in "fiub":
        raise DataError(
            "columns that are not numbers",
            where=where,
            got=str(getattr(table, "dtypes", found.dtype)).replace("\n", ", "),
            remedy="encode them, for example by pandas.get_dummies, and labels by pandas.factorize",
        )
    return found


def _picture(picture: Any) -> Tensor:
    channels = len(picture.getbands())
    if picture.mode not in ("L", "RGB", "RGBA", "LA", "CMYK", "YCbCr", "HSV", "LAB"):  # a byte per channel
        picture, channels = picture.convert("RGB"), 3
    width, height = picture.size
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return pixels.view(height, width, channels).movedim(2, 0).contiguous()


def sample_of(item: Any, where: str) -> tuple[Samples, Samples]:
    """One sample as tensors without a batch axis."""
    x, y = parted(item, where)
    return (
        _tensors(x, f"{where}, input", batched=False),
        _tensors(y, f"{where}, target", batched=False),
    )


def batch_of(item: Any, where: str) -> tuple[Samples, Samples]:
    """One batch as tensors ``[N, ...]``.

    Raises:
        DataError: it is not inputs and target, or their numbers differ.
    """
    x, y = parted(item, where)
    x, y = _tensors(x, f"{where}, input", batched=True), _tensors(y, f"{where}, target", batched=True)
    lengths = {len(t) if t.ndim else -1 for t in (*leaves(x), *leaves(y))}
    if len(lengths) != 1 or -1 in lengths or 0 in lengths:
        shapes = [tuple(t.shape) for t in (*leaves(x), *leaves(y))]
        raise DataError(
            "not as many inputs as targets", where=where, got=shapes, accepted="the same first axis, the samples'"
        )
    return x, y


def samples_at(dataset: Any, rows: Sequence[int]) -> list[Any]:
    """Samples of a dataset by number, read as torch's `DataLoader` reads them: at once where the dataset does that."""
    at_once = getattr(dataset, "__getitems__", None)
    return list(at_once(list(rows))) if at_once else [dataset[i] for i in rows]


def stacked(items: Sequence[Any]) -> tuple[Samples, Samples]:
    """Samples as one batch.

    Raises:
        DataError: their shapes differ, or one is not inputs and target.
    """
    pairs = [sample_of(item, f"sample {i} of a batch") for i, item in enumerate(items)]
    return _stack([x for x, _ in pairs], "inputs"), _stack([y for _, y in pairs], "targets")


def _stack(samples: Sequence[Samples], where: str) -> Samples:
    first = samples[0]
    try:
        if isinstance(first, tuple):
            return tuple_like(first, [_stack(column, where) for column in zip(*samples, strict=True)])
        if isinstance(first, dict):
            return {k: _stack([s[k] for s in samples], where) for k in first}
        return torch.stack(list(samples))
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        remedy = "bring them to one shape in the dataset, or give a DataLoader whose collate_fn does"
        raise DataError(f"samples of unlike shape ({error})", where=where, remedy=remedy) from error


def _tensors(value: Any, where: str, *, batched: bool) -> Samples:
    if isinstance(value, tuple):
        return tuple_like(value, [_tensors(v, f"{where} {i}", batched=batched) for i, v in enumerate(value)])
    if isinstance(value, dict):
        return {k: _tensors(v, f"{where} {k!r}", batched=batched) for k, v in value.items()}
    return tensor_of(value, where, batched=batched)
