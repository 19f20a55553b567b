"""The gradients of an array, or of some of its parameters, in as few pieces as they lie in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hfta_nb.engine.array import FusedArray, owner
from hfta_nb.errors import OptimError
from hfta_nb.errors.border import bounded
from hfta_nb.optim.hyperparameters import HostColumn, Kind, uniform


def chosen(params: Any, where: str) -> tuple[FusedArray, dict[str, nn.Parameter]]:
    """The array that is meant, and the parameters, by name.

    Raises:
        OptimError: something else than an array, or than parameters of one array.
    """
    if isinstance(params, FusedArray):
        return params, dict(params.named_parameters())
    accepted = "an array, or parameters of one"
    items: list[Any] = [params] if isinstance(params, Tensor) else []
    if not isinstance(params, Tensor) and isinstance(params, Iterable):
        items = bounded(params, OptimError, where)
    if not items:
        raise OptimError("no parameters", where=where, got=params, accepted=accepted)
    found: dict[str, nn.Parameter] = {}
    array = None
    for p in items:
        own = owner(p) if isinstance(p, nn.Parameter) else None
        if own is None or (array is not None and own[0] is not array):
            what = "not a parameter of an array" if own is None else "a parameter of another array"
            raise OptimError(what, where=where, got=p if own is None else own[1], accepted=accepted)
        array = own[0]
        found[own[1]] = p
    assert array is not None  # there is at least one
    return array, found


def pieces(array: FusedArray, parameters: Mapping[str, nn.Parameter]) -> Iterator[Tensor]:
    """The gradients that there are, each ``[M, *any]`` and to be written to in place.

    Neighbours in an arena come as one piece ``[M, columns]``; the columns between two parameters are zero.

    Raises:
        OptimError: one is sparse.
    """
    for name, parameter in parameters.items():
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise OptimError("a sparse gradient", where=name, accepted="dense gradients",
                             remedy="give the parameters without this one, or sparse=False to its layer")  # fmt: skip
    for arena in array.arenas:
        start = stop = -1
        for span in arena.spans:
            p = parameters.get(span.name)
            if p is not None and p.grad is not None and arena.holds_grad(p, span.name):
                start = span.start if start < 0 else start
                stop = span.stop
                continue
            if start >= 0:
                yield arena.grad[:, start:stop]
                start = -1
            if p is not None and p.grad is not None:
                yield p.grad
        if start >= 0:
            yield arena.grad[:, start:stop]


def rows_of(piece: Tensor) -> Tensor:
    """``[M, columns]``, for reading."""
    return piece.flatten(1) if piece.ndim > 1 else piece.unsqueeze(1)


def per_row(values: Tensor, piece: Tensor) -> Tensor:
    """``[M]`` so that it multiplies a piece's rows."""
    return values.view(-1, *[1] * (piece.ndim - 1))


def column(name: str, value: Any, members: int, kind: Kind) -> HostColumn:
    """A value, or one per member, as ``[M]``.

    Raises:
        OptimError: it is not accepted.
    """
    return np.array(kind.rows(name, value, members), dtype=np.float64)


def tensor_of(values: HostColumn, device: torch.device, dtype: torch.dtype) -> float | Tensor:
    """A number where all members have the same, else ``[M]``."""
    return float(values[0]) if uniform(values) else torch.tensor(values, device=device, dtype=dtype)
