"""Torch's kernels without an `out` form, which the package's own library computes into given memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.kernels.native import attention, conv, rows
from hfta_nb.engine.kernels.native.binding import Bind, Binding
from hfta_nb.engine.kernels.strategy.kernel_variants import COMPILED, KernelVariant, Operand
from hfta_nb.engine.replay.trace import BufferView, Instruction

_aten = torch.ops.aten
_TAKEN = torch.float32, torch.int64


@dataclass(frozen=True)
class NativeCall:
    """How the library computes an overload.

    Attributes:
        buffers: names of the arguments for the results.
        bind: creates the function that computes, from arguments and memory for the results.
        takes: whether it supports a call.
    """

    buffers: tuple[str, ...]
    bind: Bind
    takes: Callable[[Instruction], bool]

    def way(self, buffers: Mapping[str, Operand]) -> KernelVariant:
        """The kernel variant for measurement, with memory for results of these geometries."""
        return KernelVariant(COMPILED, lambda _: _Roomy(self.bind, buffers))


class _Roomy:
    """Is called without memory for the results, and returns them like torch's kernels."""

    def __init__(self, bind: Bind, buffers: Mapping[str, Operand]) -> None:
        self._buffers = {n: torch.empty_strided(r.size, r.stride, dtype=r.dtype) for n, r in buffers.items()}
        self._call = Binding(bind)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        self._call(*args, **kwargs, **self._buffers)
        return tuple(self._buffers.values())


def owned(call: Instruction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NativeCall | None:
    """How the library computes a call; None if it does not.

    Args:
        call: the recorded call.
        args, kwargs: the actual arguments.
    """
    found = OWNED.get(call.function)
    if found is None or set(call.makes) != {r.storage for r in call.results if r is not None} or not call.makes:
        return None
    given = zip((*args, *kwargs.values()), (*call.args, *call.kwargs.values()), strict=True)
    tensors = [value for value, place in given if isinstance(place, BufferView)]
    if not all(isinstance(t, Tensor) and t.device.type == "cpu" and t.dtype in _TAKEN for t in tensors):
        return None
    made = [r for r in call.results if r is not None]
    if len(set(call.makes)) < len(made) or any(r.dtype != torch.float32 for r in made) or not found.takes(call):
        return None
    return found


def _side_by_side(*found: Any) -> bool:
    return all(isinstance(p, BufferView) and (p.stride[-1] == 1 or p.size[-1] == 1) for p in found)


def _attention(call: Instruction) -> bool:
    q, k, v, *rest = call.args
    return (
        _side_by_side(q, k, v, call.results[0])
        and attention.takes([p.size for p in (q, k, v)], rest, call.kwargs)
        and attention.usable()
    )


def _attention_backward(call: Instruction) -> bool:
    grad, q, k, v, out, _, *rest = call.args
    return (
        _side_by_side(grad, q, k, v, out, *call.results)
        and attention.takes([p.size for p in (q, k, v)], rest, call.kwargs)
        and attention.usable()
    )


def _layer_norm(call: Instruction) -> bool:
    columns = math.prod(call.args[1])
    return all(map(_whole, (call.args[0], call.args[2], call.args[3], *call.results))) and columns > 0 and rows.usable()


def _layer_norm_backward(call: Instruction) -> bool:
    by, x, shape, mean, scale, weight, *_ = call.args
    given = by, x, mean, scale, weight, *call.results
    return call.results[0] is not None and all(map(_whole, given)) and math.prod(shape) > 0 and rows.usable()


def _convolution(call: Instruction) -> bool:
    x, weight, bias, *how = call.args
    return _lasting(x, call.results[0]) and _whole(bias) and conv.takes(weight.size, how) and conv.usable()


def _convolution_backward(call: Instruction) -> bool:
    grad, x, weight, _, *how, _ = call.args
    by_x, _, by_bias = call.results
    images = [p for p in (grad, x, by_x) if p is not None]
    if how[3] and by_bias is not None:
        return False
    return _lasting(*images) and _whole(by_bias) and conv.takes(weight.size, how) and conv.usable()


def _lasting(*images: Any) -> bool:
    """True if all tensors are images with channels last."""
    for place in images:
        if not isinstance(place, BufferView) or len(place.size) != 4 or 0 in place.size:
            return False
        if not place.permuted((0, 2, 3, 1)).operand.contiguous:
            return False
    return True


def _embedding_backward(call: Instruction) -> bool:
    by, index, _, _, scaled = call.args
    whole = _whole(by) and _whole(call.results[0]) and by.size[-1] > 0
    return whole and index.dtype == torch.int64 and not scaled and rows.usable()


def _whole(place: Any) -> bool:
    """True unless the value is a tensor that is not contiguous."""
    return not isinstance(place, BufferView) or place.operand.contiguous


def _table() -> dict[Any, NativeCall]:
    found = {
        _aten.native_layer_norm.default: NativeCall(("out", "mean", "scale"), rows.layer_norm, _layer_norm),
        _aten.native_layer_norm_backward.default: NativeCall(
            ("out", "by_weight", "by_bias"), rows.layer_norm_backward, _layer_norm_backward
        ),
        _aten.convolution.default: NativeCall(("out",), conv.forward, _convolution),
        _aten.convolution_backward.default: NativeCall(
            ("by_x", "by_weight", "by_bias"), conv.backward, _convolution_backward
        ),
        _aten.embedding_dense_backward.default: NativeCall(("out",), rows.embedding_backward, _embedding_backward),
    }
    forward = getattr(_aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    backward = getattr(_aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
    if forward is None or backward is None:
        return found
    return found | {
        forward.default: NativeCall(("out", "logs"), attention.forward, _attention),
        backward.default: NativeCall(("dq", "dk", "dv"), attention.backward, _attention_backward),
    }


OWNED: dict[Any, NativeCall] = _table()
