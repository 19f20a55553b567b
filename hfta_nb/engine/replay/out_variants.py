"""Kernels that can write into given memory, by the functional overload that a step calls.

Only kernels whose `out` overload computes in place are listed; many others allocate internally and copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinFunctionType, BuiltinMethodType
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.rules.by_kind import BINDINGS

_aten = torch.ops.aten


@dataclass(frozen=True)
class Kernel:
    """How to call a function with memory for its results.

    Attributes:
        function: takes the same arguments, and the memory by the names `buffers`.
        buffers: one per result.
        pointwise: each entry depends on the same entry of the inputs only, so that an input's memory may be reused.
        anywhere: the result may be written to memory with other strides than a call without memory would have. Sums
            are ordered by the strides. Products have the same numbers, but for the last bit of a few: torch computes
            a batch of products by one call of the library if the memory has no gaps, else one by one.
    """

    function: Callable[..., Any]
    buffers: tuple[str, ...] = ("out",)
    pointwise: bool = False
    anywhere: bool = False


def _clone(source: Tensor, *, out: Tensor, **_: Any) -> Tensor:
    return out.copy_(source)


def _fill(value: float) -> Callable[..., Any]:
    def fill(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        return out.fill_(value)

    return fill


def _full(size_or_like: Any, value: Any, *, out: Tensor, **_: Any) -> Tensor:
    return out.fill_(value)


def _new_full(like: Tensor, size: Any, value: Any, *, out: Tensor, **_: Any) -> Tensor:
    return out.fill_(value)


def nothing(*args: Any, out: Tensor, **_: Any) -> Tensor:
    """Leave the memory unchanged."""
    return out


def _relu(x: Tensor, *, out: Tensor) -> Tensor:
    return torch.clamp_min(x, 0, out=out)  # as in torch's relu


def _embedding(table: Tensor, index: Tensor, *args: Any, out: Tensor, **_: Any) -> Tensor:
    torch.index_select(table, 0, index.reshape(-1), out=out.view(-1, table.shape[1]))  # as in torch's embedding
    return out


def _sum(x: Tensor, *, dtype: torch.dtype | None = None, out: Tensor) -> Any:
    return _aten.sum.IntList_out(x, None, False, dtype=dtype, out=out)


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    found = getattr(_aten, packet, None)
    return getattr(found, overload or "default", None)


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that an overload calls, with minimal overhead: torch's own binding if there is one."""
    schema = getattr(function, "_schema", None)
    if schema is None:
        return function
    name, overload = schema.name.removeprefix("aten::"), schema.overload_name
    if name in _BOUND and (overload == "out" or overload.endswith("_out")):
        return getattr(torch, name)  # type: ignore[no-any-return]
    if name in _BOUND_METHODS:
        return getattr(Tensor, name)  # type: ignore[no-any-return]
    return getattr(function, "_op", function)


_POINTWISE_OUT = (
    *("neg", "exp", "log", "sqrt", "rsqrt", "reciprocal", "abs", "sin", "cos", "tanh", "sigmoid", "erf", "square"),
    *("gelu", "silu", "elu", "leaky_relu", "softplus", "hardtanh", "hardsigmoid", "hardswish", "mish", "log_sigmoid"),
    *("logical_not", "bitwise_not", "sgn", "sign", "expm1", "log1p", "threshold", "addcmul", "addcdiv"),
    *("maximum", "minimum", "clamp_min", "clamp_max", "clamp"),
)
_NAMED: dict[str, tuple[str, bool]] = {
    **{f"{n}.Tensor": (f"{n}.out", True) for n in ("add", "sub", "mul", "div", "bitwise_and", "bitwise_or")},
    **{f"{n}.Tensor": (f"{n}.Tensor_out", True) for n in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"{n}.Scalar": (f"{n}.Scalar_out", True) for n in ("eq", "ne", "lt", "le", "gt", "ge")},
    "pow.Tensor_Scalar": ("pow.Tensor_Scalar_out", True),
    "where.self": ("where.self_out", True),
    **{n: (f"{n}.out", False) for n in ("bmm", "baddbmm", "mm", "addmm", "cat", "stack", "gather", "scatter_add")},
    **{n: (f"{n}.out", False) for n in ("_log_softmax", "_softmax", "_log_softmax_backward_data", "index_select")},
    **{n: (f"{n}.out", False) for n in ("amax", "amin", "argmax", "avg_pool2d", "cumsum")},
    "sum.dim_IntList": ("sum.IntList_out", False),
    "mean.dim": ("mean.out", False),
}
_PRODUCTS = ("bmm", "baddbmm", "mm", "addmm")
_GRAD_INPUT = (
    *("threshold_backward", "tanh_backward", "sigmoid_backward", "gelu_backward", "silu_backward"),
    *("leaky_relu_backward", "elu_backward", "softplus_backward", "hardtanh_backward", "hardsigmoid_backward"),
)
_WHOLE_GRAD_INPUT = (
    *("max_pool2d_with_indices_backward", "avg_pool2d_backward", "nll_loss_backward", "_softmax_backward_data"),
)


def _table() -> dict[Any, Kernel]:
    found: dict[Any, Kernel] = {}

    def add(name: str, out: str, buffers: tuple[str, ...], pointwise: bool) -> None:
        function, kernel = _overload(name), _overload(out)
        names = [] if kernel is None else [a.name for a in kernel._schema.arguments if a.is_out]
        if function is not None and names == list(buffers):
            found[function] = Kernel(kernel, buffers, pointwise, pointwise or name in _PRODUCTS)

    for name in _POINTWISE_OUT:
        add(name, f"{name}.out", ("out",), True)
    for name, (out, pointwise) in _NAMED.items():
        add(name, out, ("out",), pointwise)
    for name in _GRAD_INPUT:
        add(name, f"{name}.grad_input", ("grad_input",), True)
    for name in _WHOLE_GRAD_INPUT:
        add(name, f"{name}.out" if name.startswith("_") else f"{name}.grad_input", ("grad_input",), False)
    add("max_pool2d_with_indices", "max_pool2d_with_indices.out", ("out", "indices"), False)
    add("nll_loss_forward", "nll_loss_forward.output", ("output", "total_weight"), False)
    found[_aten.relu.default] = Kernel(_relu, pointwise=True)
    found[_aten.sum.default] = Kernel(_sum)
    found[_aten.embedding.default] = Kernel(_embedding)
    for name in ("clone", "_to_copy"):
        found[_overload(name)] = Kernel(_clone)
    for name, value in (("zeros", 0), ("ones", 1)):
        for function in (_overload(name), _overload(f"{name}_like"), _overload(f"new_{name}")):
            found[function] = Kernel(_fill(value), anywhere=True)
    for name in ("full", "full_like"):
        found[_overload(name)] = Kernel(_full)
    found[_aten.new_full.default] = Kernel(_new_full)
    for name in ("empty.memory_format", "empty_like", "new_empty", "empty_strided", "new_empty_strided"):
        found[_overload(name)] = Kernel(nothing)
    found.pop(None, None)
    return found | {function: Kernel(binding) for function, binding in BINDINGS.items()}


_BOUND = frozenset(
    name
    for name in (*_POINTWISE_OUT, *(n.partition(".")[0] for n in _NAMED))
    if isinstance(getattr(torch, name, None), BuiltinFunctionType | BuiltinMethodType)
)
"""Functions of torch with the same arguments as their `out` overloads, half a microsecond faster."""
_BOUND_METHODS = frozenset(("copy_", "zero_", "fill_", "add_", "sub_", "mul_", "div_", "neg_", "addcmul_"))

KERNELS: dict[Any, Kernel] = _table()
"""By functional overload."""

SHAPE_ONLY: frozenset[Any] = frozenset(
    found
    for kind in ("zeros", "ones", "full", "empty")
    for name in (f"{kind}_like", f"new_{kind}")
    if (found := _overload(name)) is not None
)
"""Functions that use only the shape of their tensor."""
