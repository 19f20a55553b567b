"""Kernels of torch without room for their results, where the package's own library computes them into memory given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hfta_nb.array.capture.kernels import bare
from hfta_nb.array.capture.record import Call, Place
from hfta_nb.array.native import attention
from hfta_nb.array.strategy.formulations import COMPILED, Formulation

_aten = torch.ops.aten


@dataclass(frozen=True)
class Owned:
    """How the library computes what an overload does.

    Attributes:
        rooms: names of the arguments for the results.
        make: makes what has `bound`, from arguments and rooms to what is called without any.
        takes: whether it computes such a call.
    """

    rooms: tuple[str, ...]
    make: Callable[[], Any]
    takes: Callable[[Call], bool]

    @property
    def way(self) -> Formulation:
        """The same to be measured."""
        return Formulation(COMPILED, lambda _: self.make())


class Copying:
    """Torch's own way, for comparison: its results copied to the rooms."""

    def __init__(self, function: Callable[..., Any], rooms: Sequence[str]) -> None:
        self.function, self.rooms = bare(function), rooms

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        rooms = tuple(kwargs.pop(name) for name in self.rooms)
        for room, result in zip(rooms, self.function(*args, **kwargs), strict=True):
            room.copy_(result)
        return rooms


def owned(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Owned | None:
    """How the library computes a call; None where it does not.

    Args:
        call: as recorded.
        args, kwargs: what stands for its arguments.
    """
    found = OWNED.get(call.function)
    if found is None or set(call.makes) != {r.storage for r in call.results if r is not None} or not call.makes:
        return None
    tensors = [v for v, p in zip((*args, *kwargs.values()), (*call.args, *call.kwargs.values()), strict=True)
               if isinstance(p, Place)]  # fmt: skip
    places = [p for p in (*call.args, *call.kwargs.values(), *call.results) if isinstance(p, Place)]
    if not all(isinstance(t, Tensor) and t.device.type == "cpu" for t in tensors) or len(set(call.makes)) < len(
        call.results
    ):
        return None
    if any(p.dtype != torch.float32 for p in places) or not found.takes(call):
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


def _table() -> dict[Any, Owned]:
    forward = getattr(_aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    backward = getattr(_aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
    if forward is None or backward is None:
        return {}
    return {
        forward.default: Owned(("out", "logs"), attention.Forward, _attention),
        backward.default: Owned(("dq", "dk", "dv"), attention.Backward, _attention_backward),
    }


OWNED: dict[Any, Owned] = _table()
