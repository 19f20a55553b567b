"""A user's metric of one member: alone_where_needed where it can run, and checked to be one number."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hfta_nb.engine.array import MemberGenerators
from hfta_nb.engine.array.access import (
    FunctionStates,
    alone_where_needed,
    changes,
    flatten,
    is_number,
    tensor_of_number,
)
from hfta_nb.engine.broadcasts import called
from hfta_nb.errors import ArrayWarning, FamilyError
from hfta_nb.models.metrics import Metric

_TOLD: set[str] = set()


def measured(name: str, function: Callable[[Any, Any], Any], output: Any, target: Any) -> Tensor:
    """A metric of one training batch. NaN where the function finds the batch unfit: AUC with a single class, say.

    Raises:
        FamilyError: it is not one number, or the function writes into what the loss needs as well.
    """
    before = changes(output, target)
    device = next((v.device for v in flatten(output)[0] if isinstance(v, Tensor)), torch.device("cpu"))

    def together(output: Any, target: Any) -> Tensor:
        return one_number(name, called(function, output, target, f"metric {name}"), device).double()

    def alone(output: Any, target: Any) -> Tensor:
        try:
            return together(output, target)
        except FamilyError:
            raise
        except ValueError as error:
            _warn(name, error)
            return torch.full((), torch.nan, dtype=torch.float64, device=device)

    found: Tensor = alone_where_needed(together, alone, output, target)
    if changes(output, target) != before:
        raise FamilyError(
            "writes into the output or the target, which the loss needs as well",
            where=f"metric {name}",
            remedy="let it work on a copy: output.clone(), y.clone()",
        )
    return found


@contextmanager
def measuring(
    kept: FunctionStates, streams: MemberGenerators, losses: tuple[Any, ...], member: int, function: Any
) -> Iterator[None]:
    """See `Step.measuring`.

    Args:
        kept: what functions keep for each member.
        streams: the members' random streams.
        losses: whose values are the same in training and validation.
        member: its number.
        function: the metric.
    """
    with kept.validating(losses), kept.used((function,)), streams.member(member), kept.alone(member):
        yield


def measured_whole(name: str, metric: Metric, output: Any, target: Any, device: torch.device) -> Tensor:
    """A metric of one member's outputs and targets of a whole set.

    Raises:
        FamilyError: it is not one number.
    """
    return one_number(name, called(metric, output, target, f"metric {name}"), device)


def one_number(name: str, value: Any, device: torch.device) -> Tensor:
    """What a metric returns, as a floating-point tensor without axes.

    Raises:
        FamilyError: it is not one number.
    """
    found = tensor_of_number(value, device) if is_number(value) else value
    if not isinstance(found, Tensor) or found.numel() != 1 or found.is_complex():
        raise FamilyError(
            "a metric that is not one number",
            where=f"metric {name}",
            got=_shown(found),
            accepted="a number of Python or NumPy, or a tensor with one entry",
            remedy=_remedy(name, value),
        )
    return found.reshape(()) if found.is_floating_point() else found.reshape(()).double()


def _shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"a {'complex ' if value.is_complex() else ''}tensor {list(value.shape)}"


def _remedy(name: str, value: Any) -> str:
    """How to write what has several numbers, or none."""
    if value.is_complex() if isinstance(value, Tensor) else is_number(value) and np.iscomplexobj(value):
        return "return a real number: its real part or its absolute value"
    if isinstance(value, dict) and value:
        key = next(iter(value))
        example = f'"{name}_{key}": lambda output, y: {name}(output, y)[{key!r}]'
    elif isinstance(value, Tensor | list | tuple) or is_number(value):
        example = f'"{name}_0": lambda output, y: {name}(output, y)[0]'
    else:
        return "return a number: float(...), where it is one of another type"
    return f"give each number a name of its own: metrics={{{example}, ...}}, or return their mean"


def _warn(name: str, error: ValueError) -> None:
    if name not in _TOLD:
        _TOLD.add(name)
        text = f"metric {name} of a training batch is NaN where it raises ({error}); validation takes the whole set"
        warnings.warn(text, ArrayWarning, stacklevel=3)
