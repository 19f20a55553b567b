"""Autocast as a plain module applies it.

`vmap` decomposes functions before autocast sees them, so that a convolution, for example, would stay in float32. The
casts are made here instead, by the names in torch's own lists. Casts that torch makes itself are unchanged.

Source: "Autocast Op Reference" of torch.amp, for CUDA and CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._C import _functorch as functorch

from hfta_nb.engine.members.tree import flatten, unflatten

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_PRODUCTS = ("addbmm", "addmm", "baddbmm", "bmm", "linear", "matmul", "__matmul__", "__rmatmul__", "mm")
_LOWER = {
    "cpu": {*_CONVOLUTIONS, *_PRODUCTS, "prelu", "scaled_dot_product_attention"},
    "cuda": {
        *_CONVOLUTIONS,
        *_PRODUCTS,
        *("addmv", "addr", "chain_matmul", "einsum", "linalg_multi_dot", "linalg_vecdot", "mv", "prelu"),
        *("multi_dot", "vecdot", "scaled_dot_product_attention"),
    },
}
_FLOAT32 = {
    "cpu": {
        *("avg_pool3d", "grid_sample", "mse_loss", "nll_loss", "binary_cross_entropy", "cosine_embedding_loss"),
        *("cross_entropy", "l1_loss", "poisson_nll_loss", "hinge_embedding_loss", "binary_cross_entropy_with_logits"),
    },
    "cuda": {
        *("__pow__", "__rdiv__", "__rpow__", "__rtruediv__", "acos", "asin", "binary_cross_entropy_with_logits"),
        *("cosh", "cosine_embedding_loss", "cdist", "cosine_similarity", "cross_entropy", "cumprod", "cumsum", "dist"),
        *("erfinv", "exp", "expm1", "group_norm", "hinge_embedding_loss", "kl_div", "l1_loss", "layer_norm", "log"),
        *("log10", "log_softmax", "log1p", "log2", "margin_ranking_loss", "mse_loss", "multilabel_margin_loss"),
        *("multi_margin_loss", "nll_loss", "norm", "normalize", "pdist", "poisson_nll_loss", "pow", "prod"),
        *("reciprocal", "rsqrt", "sinh", "smooth_l1_loss", "soft_margin_loss", "softmax", "softmin", "softplus"),
        *("sum", "renorm", "tan", "triplet_margin_loss"),
    },
}


Kept: TypeAlias = dict[Any, tuple[Tensor, Tensor]]
"""Weights and their casts. As in torch's own cache, a weight that is used twice is cast once, and the gradients of both
uses are added before they are cast back."""


def cast(name: str, args: Any, kwargs: Any, kept: Kept) -> tuple[Any, Any]:
    """The arguments as the active autocast would pass them to the function of this name.

    Args:
        name, args, kwargs: of the function.
        kept: the casts in this call of the model; new ones are added.
    """
    for kind in _LOWER:
        if not torch.is_autocast_enabled(kind):
            continue
        dtype = torch.get_autocast_dtype(kind) if name in _LOWER[kind] else torch.float32
        if name in _LOWER[kind] or name in _FLOAT32[kind]:
            return _changed(args, kwargs, kind, dtype, kept)
    return args, kwargs


def half_under_way() -> torch.dtype | None:
    """The dtype that an active autocast casts to; None if there is none."""
    return next((torch.get_autocast_dtype(k) for k in _LOWER if torch.is_autocast_enabled(k)), None)


@contextmanager
def uncast() -> Iterator[None]:
    """Disable autocast within the context, as for a backward pass; its cached casts of weights are kept."""
    kinds = [k for k in _LOWER if torch.is_autocast_enabled(k)] if torch._C._is_any_autocast_enabled() else []
    for kind in kinds:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        for kind in kinds:
            torch.set_autocast_enabled(kind, True)


def active() -> tuple[tuple[str, torch.dtype], ...]:
    """The devices with active autocast, and its dtype."""
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind))


@contextmanager
def activated(autocasts: Iterable[tuple[str, torch.dtype]]) -> Iterator[None]:
    """The context in which these are active, for a backward that repeats a forward."""
    with ExitStack() as stack:
        for kind, dtype in autocasts:
            stack.enter_context(torch.autocast(kind, dtype=dtype))
        yield


def _may(tensor: Tensor, kind: str) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type == kind


def _changed(args: Any, kwargs: Any, kind: str, dtype: torch.dtype, kept: Kept) -> tuple[Any, Any]:
    leaves, rebuild = flatten((args, kwargs))
    given = [_cast(v, dtype, kept) if isinstance(v, Tensor) and _may(v, kind) else v for v in leaves]
    changed: tuple[Any, Any] = unflatten(rebuild, given)
    return changed


def _cast(tensor: Tensor, dtype: torch.dtype, kept: Kept) -> Tensor:
    if dtype == torch.float32 or tensor.dtype != torch.float32 or not _is_weight(tensor):
        return tensor.to(dtype)
    # A cast that was made under `no_grad` has no gradient.
    key = id(tensor), dtype, torch.is_grad_enabled()
    if key not in kept:
        kept[key] = tensor, tensor.to(dtype)  # keeps the weight alive, so that no other tensor gets its id
    return kept[key][1]


def _is_weight(tensor: Tensor) -> bool:
    while functorch.is_batchedtensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor.is_leaf and tensor.requires_grad
