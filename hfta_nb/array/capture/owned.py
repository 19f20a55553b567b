"""Kernels of torch without room for their results, where the package's own library computes them into memory given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hfta_nb.array.capture.kernels import bare
from hfta_nb.array.capture.record import Call, Place
from hfta_nb.array.native import attention, rows
from hfta_nb.array.native.binding import Bind, Binding
from hfta_nb.array.strategy.formulations import COMPILED, Formulation, Operand

_aten = torch.ops.aten


@dataclass(frozen=True)
class Owned:
    """How the library computes what an overload does.

    Attributes:
        rooms: names of the arguments for the results.
        bind: from arguments and rooms to what computes.
        takes: whether it computes such a call.
    """

    rooms: tuple[str, ...]
    bind: Bind
    takes: Callable[[Call], bool]

    @property
    def way(self) -> Formulation:
        """The same to be measured."""
        return Formulation(COMPILED, lambda _: Binding(self.bind))


class Copying:
    """Torch's own way, for comparison: its results copied to the rooms."""

    def __init__(self, function: Callable[..., Any], rooms: Sequence[str]) -> None:
        self.function, self.rooms = bare(function), rooms

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        rooms = {name: kwargs.pop(name) for name in self.rooms if name in kwargs}
        for name, result in zip(self.rooms, self.function(*args, **kwargs), strict=True):
            if name in rooms:
                rooms[name].copy_(result)
        return tuple(rooms.values())


def owned(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Owned | None:
    """How the library computes a call; None where it does not.

    Args:
        call: as recorded.
        args, kwargs: what stands for its arguments.
    """
    found = OWNED.get(call.function)
    if found is None or set(call.makes) != {r.storage for r in call.results if r is not None} or not call.makes:
        return None
    given = zip((*args, *kwargs.values()), (*call.args, *call.kwargs.values()), strict=True)
    tensors = [value for value, place in given if isinstance(place, Place)]
    if not all(isinstance(t, Tensor) and t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors):
        return None
    made = [r for r in call.results if r is not None]
    if len(set(call.makes)) < len(made) or any(r.dtype != torch.float32 for r in made) or not found.takes(call):
        return None
    return found


def _side_by_side(*found: Any) -> bool:
    return all(isinstance(p, Place) and (p.stride[-1] == 1 or p.size[-1] == 1) for p in found)


def _attention(call: Call) -> bool:
    q, k, v, *rest = call.args
    return (
        _side_by_side(q, k, v, call.results[0])
        and attention.takes([p.size for p in (q, k, v)], rest, call.kwargs)
        and attention.usable()
    )


def _attention_backward(call: Call) -> bool:
    grad, q, k, v, out, _, *rest = call.args
    return (
        _side_by_side(grad, q, k, v, out, *call.results)
        and attention.takes([p.size for p in (q, k, v)], rest, call.kwargs)
        and attention.usable()
    )


def _layer_norm(call: Call) -> bool:
    columns = math.prod(call.args[1])
    return all(map(_whole, (call.args[0], call.args[2], call.args[3], *call.results))) and columns > 0 and rows.usable()


def _layer_norm_backward(call: Call) -> bool:
    by, x, shape, mean, scale, weight, *_ = call.args
    given = by, x, mean, scale, weight, *call.results
    return call.results[0] is not None and all(map(_whole, given)) and math.prod(shape) > 0 and rows.usable()


def _whole(place: Any) -> bool:
    """Whether a tensor, if it is one, is without gaps."""
    return not isinstance(place, Place) or Operand(place.size, place.stride, place.dtype).contiguous


def _table() -> dict[Any, Owned]:
    norms = {
        _aten.native_layer_norm.default: Owned(("out", "mean", "scale"), rows.layer_norm, _layer_norm),
        _aten.native_layer_norm_backward.default: Owned(
            ("out", "by_weight", "by_bias"), rows.layer_norm_backward, _layer_norm_backward
        ),
    }
    forward = getattr(_aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    backward = getattr(_aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
    if forward is None or backward is None:
        return norms
    return norms | {
        forward.default: Owned(("out", "logs"), attention.forward, _attention),
        backward.default: Owned(("dq", "dk", "dv"), attention.backward, _attention_backward),
    }


OWNED: dict[Any, Owned] = _table()
