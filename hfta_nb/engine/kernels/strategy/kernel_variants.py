"""The table of kernels with several variants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hfta_nb.engine.kernels.native import norm, product, rows
from hfta_nb.engine.kernels.native.binding import Binding
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.engine.kernels.strategy.gpu_streams import Parted, partings
from hfta_nb.engine.kernels.strategy.pointwise import Pointwise, PointwiseBackward
from hfta_nb.engine.kernels.strategy.pooling import ChannelsLast
from hfta_nb.engine.kernels.strategy.softmax import LogSoftmaxBackward, SoftmaxBackward, Turned
from hfta_nb.engine.kernels.strategy.widened import HALVES, Widened

_aten = torch.ops.aten

PLAIN = "torch"
"""The name of torch's own kernel."""
COMPILED = "own kernel"
"""The name of this package's own kernel (`native`)."""


@dataclass(frozen=True)
class Operand:
    """A tensor's geometry."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def contiguous(self) -> bool:
        """True if its memory is contiguous and in order."""
        step = 1
        for size, stride in zip(reversed(self.size), reversed(self.stride), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True


@dataclass(frozen=True)
class KernelVariant:
    """One way to compute something.

    Attributes:
        name: shown to people, and the key of kept times.
        make: creates the function to call, with the same arguments, from torch's function; once for each place of use,
            as it may own memory.
        setting: the precision setting of oneDNN's products (`precision`) while it runs; None for the current one.
        copies: its last two tensors are copied to contiguous memory first.
    """

    name: str
    make: Callable[[Callable[..., Any]], Callable[..., Any]]
    setting: str | None = None
    copies: bool = False


def same(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself."""
    return function


PRODUCTS = frozenset({_aten.bmm.default, _aten.baddbmm.default, _aten.mm.default, _aten.addmm.default})
"""Operators that the setting of `precision` affects."""


_BATCHED = frozenset({_aten.bmm.default, _aten.baddbmm.default})
_ONEDNN = KernelVariant("oneDNN", same, matmul_precision.ONEDNN)
_COPIED = KernelVariant("oneDNN (copied)", same, matmul_precision.ONEDNN, copies=True)


def variants_of(function: Any, args: Sequence[Any], device: torch.device) -> list[KernelVariant]:
    """All variants of a call except torch's own; in float64, only those with identical bits.

    Args:
        function: the overload of an aten operator.
        args: with an `Operand` in place of each tensor.
        device: of the tensors.
    """
    operands = [a for a in args if isinstance(a, Operand)]
    if device.type == "cuda":
        return _parted(function, args, operands)
    if device.type != "cpu" or not operands:
        return []
    if function is _MAX_POOL:
        return _pools(args[0])
    if function in _WIDENED and any(o.dtype in HALVES for o in operands):
        return [_IN_FLOAT32]
    if any(o.dtype != torch.float32 for o in operands):
        return []  # in float64 the bits must equal the plain module's
    if function is _SUM:
        return [_COLUMN_SUMS] if _columns(args) and rows.usable() else []
    if function in PRODUCTS:
        return [*(_products(function, args) if matmul_precision.can_switch() else []), *_compiled(function, args)]
    if function in _NORMS:
        return _norms(function, args)
    if function is _CONVOLUTION:
        return _pointwise(args)
    if function is _CONVOLUTION_BACKWARD:
        return _pointwise([*args[1:3], None, *args[4:]], args[0])
    if not all(o.contiguous and len(o.size) > 1 for o in operands):
        return []
    if function in _OVER_LAST:
        at = 1 if function in _TURNED else 2
        last = len(operands[0].size) - 1
        if len(args) > at and args[at] in (last, -1) and not (function in _TURNED and args[2]):
            own = function is _LOG_SOFTMAX_BACKWARD and rows.usable()
            return [_OVER_LAST[function], *([_COMPILED_BACKWARD] if own else [])]
    return []


def _parted(function: Any, args: Sequence[Any], operands: Sequence[Operand]) -> list[KernelVariant]:
    """On a GPU: a grouped convolution divided into parts that run on several streams."""
    at = _GROUPS_AT.get(function)
    if at is None or len(args) != at[1] or any(o.dtype == torch.float64 for o in operands):
        return []
    ways = partings(int(args[at[0]]))
    return [
        KernelVariant(f"{parts} parts on {count} streams", partial(Parted, parts=parts, count=count))
        for parts, count in ways
    ]


_GROUPS_AT = {_aten.convolution.default: (8, 9), _aten.convolution_backward.default: (9, 11)}
"""The index of the number of groups, and the number of arguments."""

_IN_FLOAT32 = KernelVariant("in float32", Widened)
_WIDENED = frozenset(
    found
    for name in (
        *("bmm", "baddbmm", "mm", "addmm", "convolution", "mkldnn_convolution", "convolution_backward"),
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    )
    if (found := getattr(getattr(_aten, name, None), "default", None)) is not None
)
_MAX_POOL = _aten.max_pool2d_with_indices.default
_CHANNELS_LAST = KernelVariant("channels last", ChannelsLast)


def _pools(x: Any) -> list[KernelVariant]:
    known = x.dtype in (torch.float32, torch.float64, *HALVES)
    return [_CHANNELS_LAST] if known and x.contiguous and len(x.size) == 4 else []


_CONVOLUTION = _aten.convolution.default
_CONVOLUTION_BACKWARD = _aten.convolution_backward.default
CONVOLUTIONS = frozenset(f for f in _WIDENED if "convolution" in f._schema.name)
"""Operators of convolutions that have a variant in float32."""
_MOST_GROUPS, _LEAST_CHANNELS = 16, 4
"""The operators of a pointwise convolution that may be one product per group."""


def _pointwise(args: Sequence[Any], grad: Operand | None = None) -> list[KernelVariant]:
    """Variants of a convolution with these arguments, or of its gradients."""
    (x, weight), (padding, dilation, transposed), groups = args[:2], args[4:7], args[8]
    if len(x.size) != 4 or transposed or any(padding) or any(d != 1 for d in dilation):
        return []
    own = weight.size[1]
    if weight.size[2:] != (1, 1) or not weight.contiguous or groups > (_MOST_GROUPS if own >= _LEAST_CHANNELS else 1):
        return []
    if any(image is not None and not _channels_last(image) for image in (x, grad)):
        return []
    make = Pointwise if grad is None else PointwiseBackward
    found = [KernelVariant("product", make)]
    return (
        [*found, KernelVariant("product by oneDNN", make, matmul_precision.ONEDNN)]
        if matmul_precision.can_switch()
        else found
    )


_BATCH_NORM = _aten.native_batch_norm.default
_NORMS = {
    _BATCH_NORM: KernelVariant(COMPILED, norm.BatchNorm),
    _aten.native_batch_norm_backward.default: KernelVariant(COMPILED, norm.BatchNormBackward),
}


def _norms(function: Any, args: Sequence[Any]) -> list[KernelVariant]:
    """Variants of a batch norm in training, or of its gradients, as pixels by channels."""
    forward = function is _BATCH_NORM
    images = args[: 1 if forward else 2]
    if not args[5 if forward else 7] or not all(len(i.size) == 2 or len(i.size) == 4 for i in images):
        return []
    last = all(_channels_last(i) if len(i.size) == 4 else i.contiguous for i in images)
    rest = [a for a in args[len(images) :] if isinstance(a, Operand)]
    several = images[0].size[0] * math.prod(images[0].size[2:]) > 1
    return [_NORMS[function]] if last and several and all(a.contiguous for a in rest) and norm.usable() else []


def _channels_last(image: Operand) -> bool:
    size, stride = (tuple(part[i] for i in (0, 2, 3, 1)) for part in (image.size, image.stride))
    return Operand(size, stride, image.dtype).contiguous


def _products(function: Any, args: Sequence[Any]) -> list[KernelVariant]:
    if function not in _BATCHED or len(args) != (3 if function in _ADDS else 2):
        return [_ONEDNN]  # the arguments contain a factor of a summand
    return [_ONEDNN if all(_gapless(a) for a in args[-2:]) else _COPIED]


def _compiled(function: Any, args: Sequence[Any]) -> list[KernelVariant]:
    plain = len(args) == (3 if function in _ADDS else 2)  # otherwise the arguments contain a factor of a summand
    return [_COMPILED[function in _ADDS]] if plain and product.usable() else []


_COMPILED = {adds: KernelVariant(COMPILED, partial(product.Compiled, adds=adds)) for adds in (False, True)}
_ADDS = frozenset({_aten.baddbmm.default, _aten.addmm.default})


def _gapless(factor: Operand) -> bool:
    members, rows, columns = factor.size
    turned = Operand((members, columns, rows), tuple(factor.stride[i] for i in (0, 2, 1)), factor.dtype)
    return factor.contiguous or turned.contiguous


_TURNED = frozenset({_aten._log_softmax.default, _aten._softmax.default})
_LOG_SOFTMAX_BACKWARD = _aten._log_softmax_backward_data.default
_COMPILED_BACKWARD = KernelVariant(COMPILED, lambda _: Binding(rows.log_softmax_backward))
_OVER_LAST = {
    **{f: KernelVariant("turned", Turned) for f in _TURNED},
    _LOG_SOFTMAX_BACKWARD: KernelVariant("whole tensors", LogSoftmaxBackward),
    _aten._softmax_backward_data.default: KernelVariant("whole tensors", SoftmaxBackward),
}
_SUM = _aten.sum.dim_IntList
_COLUMN_SUMS = KernelVariant(COMPILED, lambda _: Binding(rows.column_sums))


def _columns(args: Sequence[Any]) -> bool:
    """True if a sum is over all axes between the first ones and the last."""
    x, dims = args[0], sorted(d % len(args[0].size) for d in args[1] or ())
    last = len(x.size) - 1
    return x.contiguous and 0 not in x.size and dims == list(range(last - len(dims), last)) and bool(dims)
