"""One flat tensor ``[M, P]`` that stores the parameters of an array.

Row i contains all parameters of member i. A parameter ``[M, *shape]`` is a view of some columns. An optimizer
therefore updates all parameters of all members in single passes over ``[M, P]`` with hyperparameters ``[M, 1]``, and
a member is copied, selected or saved as one row.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Shaped
from torch import Tensor

from hfta_nb.errors.caught_warnings import caught_warnings

_ALIGN_BYTES = 64  # every parameter begins on a cache line, as in a separate allocation


@dataclass(frozen=True)
class Span:
    """The location of a parameter: columns ``start .. start + numel`` of an arena, with ``shape`` per member."""

    name: str
    start: int
    numel: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.start + self.numel


class Arena:
    """Values and gradients of all parameters of one dtype.

    Attributes:
        data: ``[M, P]``; columns between two parameters (alignment) are zero and stay zero. Of a parameter that is held
            once, all rows are the same memory.
        spans: by parameter, in order.
    """

    def __init__(self, data: Tensor, spans: Sequence[Span]) -> None:
        self.data = data
        self.spans = tuple(spans)
        self._grad: Tensor | None = None
        self._grad_views: dict[str, Tensor] = {}

    @classmethod
    def of(cls, parameters: Mapping[str, Tensor]) -> Arena:
        """Copy stacked tensors ``[M, *shape]`` of one dtype and device into a new arena."""
        first = next(iter(parameters.values()))
        step = max(1, _ALIGN_BYTES // first.element_size())
        spans, end = [], 0
        for name, value in parameters.items():
            shape = tuple(value.shape[1:])
            spans.append(Span(name, end, math.prod(shape), shape))
            end += -(-math.prod(shape) // step) * step
        arena = cls(first.new_zeros(first.shape[0], end), spans)
        for name, value in parameters.items():
            arena.view(name).copy_(value)
        return arena

    @classmethod
    def once(cls, name: str, value: Tensor) -> Arena:
        """Copy the first row of a parameter ``[M, *shape]`` into an arena whose rows are the same memory."""
        base = value[0].clone(memory_format=torch.contiguous_format)
        return cls(base.view(1, -1).expand(len(value), -1), [Span(name, 0, base.numel(), tuple(base.shape))])

    @property
    def stored(self) -> Shaped[Tensor, "rows P"]:
        """The rows that have memory of their own: all, or one."""
        return self.data[:1] if is_held_once(self.data) else self.data

    def span(self, name: str) -> Span:
        return next(s for s in self.spans if s.name == name)

    def view(self, name: str) -> Shaped[Tensor, " M *shape"]:
        """The parameter's values."""
        return _view(self.data, self.span(name))

    @property
    def grad(self) -> Shaped[Tensor, "M P"]:
        """The gradients, laid out like `data`; allocated on first use."""
        if self._grad is None:
            _expect_layout()
            self._grad = torch.zeros_like(self.data)
            self._grad_views = {s.name: _view(self._grad, s) for s in self.spans}
        return self._grad

    @property
    def has_grad(self) -> bool:
        """True if there is memory for gradients."""
        return self._grad is not None

    def grad_view(self, name: str) -> Shaped[Tensor, " M *shape"]:
        """The view of `grad` for a parameter; always the same object."""
        if self._grad is None:
            _ = self.grad
        return self._grad_views[name]

    def holds_grad(self, parameter: Tensor, name: str) -> bool:
        """True if the parameter's gradient is stored in this arena."""
        return self._grad is not None and parameter.grad is self._grad_views[name]

    def rows(self, indices: Sequence[int]) -> Arena:
        """A new arena with these rows only."""
        return Arena(self.data[list(indices)], self.spans)


def is_held_once(tensor: Tensor) -> bool:
    """True if the rows of a tensor ``[M, ...]`` are the same memory."""
    return tensor.ndim > 0 and tensor.stride(0) == 0 and tensor.numel() > 0


def arenas_of(tensors: Mapping[str, Tensor]) -> list[Arena]:
    """Stacked tensors copied into arenas, one per dtype."""
    kinds: dict[torch.dtype, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        kinds.setdefault(value.dtype, {})[name] = value
    return [Arena.of(group) for group in kinds.values()]


@cache
def _expect_layout() -> None:
    """Trigger torch's warning about non-contiguous gradients once, and suppress it.

    Autograd warns when it accumulates into such a gradient. Gradients in an arena are non-contiguous by design.
    """
    parameter = torch.zeros(2, 2)[:, :1].requires_grad_()
    with caught_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        parameter.grad = torch.zeros(2, 2)[:, :1]
        parameter.sum().backward()  # type: ignore[no-untyped-call]


def _view(flat: Tensor, span: Span) -> Tensor:
    return flat[:, span.start : span.stop].view(flat.shape[0], *span.shape)
