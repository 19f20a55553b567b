"""Finds reads of an array's own tensors, which hold all members, by the loss or metric of one member."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.overrides import TorchFunctionMode

from hfta_nb.engine.members.arena import Arena, is_held_once
from hfta_nb.errors import FusionError

if TYPE_CHECKING:
    from hfta_nb.engine.eager.state import ArrayState

_OF_SHAPES = frozenset({"size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "__len__"})
"""Methods that read no values; so does access to an attribute, whose values are read by another function."""


class ForeignReads(TorchFunctionMode):
    """Raises where a function reads tensors of an array that are not those of the member that is computed.

    Args:
        state: of the array.
    """

    def __init__(self, state: ArrayState) -> None:
        super().__init__()
        self._state = state
        with torch._C.DisableTorchFunction():  # else the rules would note what is called here
            self._arenas = {a.data.untyped_storage()._cdata: a for a in (*state.parameter_arenas, *state.buffer_arenas)}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in _OF_SHAPES and name != "__get__":
            with torch._C.DisableTorchFunction():
                for value in _tensors((args, kwargs)):
                    self._check(value)
        return func(*args, **kwargs)

    def _check(self, value: Tensor) -> None:
        if functorch.is_functorch_wrapped_tensor(value) or value.is_sparse or value.is_meta:
            return
        arena = self._arenas.get(value.untyped_storage()._cdata)
        if arena is None or self._own(value, arena):
            return
        raise refused(self._name(value, arena))

    def _own(self, value: Tensor, arena: Arena) -> bool:
        """True if a tensor lies within the row of the member that runs alone."""
        if is_held_once(arena.data):  # a member has the one tensor; the array's has the member axis
            return not (is_held_once(value) and value.ndim > len(arena.spans[0].shape))
        if functorch.maybe_current_level() is not None:
            return False
        columns = arena.data.shape[1]
        start = self._state.engine.current * columns
        first = value.storage_offset() - arena.data.storage_offset()
        last = first + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
        return not value.numel() or (start <= first and last < start + columns)

    def _name(self, value: Tensor, arena: Arena) -> str:
        offset = (value.storage_offset() - arena.data.storage_offset()) % arena.data.shape[1]
        return next((s.name for s in arena.spans if s.start <= offset < s.stop), "a parameter")


def refused(name: str) -> FusionError:
    """The error of a loss that reads a tensor of all members."""
    return FusionError(
        f"the loss or metric of one member reads `{name}` of the array, which holds all members",
        where=f"loss or metric, `{name}`",
        remedy="read it within the loss from hfta_nb.member(), the module of that member: "
        "sum(p.abs().sum() for p in hfta_nb.member().parameters()); or add a penalty per member outside: "
        "array.losses(loss, array(x), y) + c * sum(p.abs().flatten(1).sum(1) for p in array.parameters()); or give "
        "parameters a weight_decay by hfta_nb.optim.param_groups",
    )


def _tensors(tree: Iterable[Any]) -> Iterable[Tensor]:
    for value in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple | dict):
            yield from _tensors(value)
