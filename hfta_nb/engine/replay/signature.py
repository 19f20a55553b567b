"""The signature of a call: properties that distinguish calls which may run different kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mha, opt_einsum

from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.engine.members.per_member import PerMember
from hfta_nb.engine.members.threads import available_threads
from hfta_nb.engine.replay.trace import NotRecordableError
from hfta_nb.errors import FusionError


def state_of(state: ArrayState) -> tuple[Any, ...]:
    """The part of the signature that does not depend on inputs."""
    how = state.settings
    branches = available_threads() if how.threads == "blocks" else 0
    training = state.skeleton.training
    return how.block_size, how.threads, branches, how.fast_rng, training, settings(state.generators.device)


def form(tree: Any, *, grads: bool = False) -> Any:
    """The structure of inputs, and the properties of tensors that kernels and code depend on.

    Args:
        tree: the inputs.
        grads: a tensor may require a gradient.

    Raises:
        NotRecordableError: the inputs contain objects with unknown properties.
        FusionError: one is a nested tensor of the strided layout.
    """
    if isinstance(tree, Tensor):
        wants = tree.requires_grad
        plain = type(tree) in (Tensor, nn.Parameter) and tree.layout is torch.strided
        # A tensor created in inference mode has no version counter, and cannot be saved for a backward.
        if not plain or (wants and not grads) or (tree.is_inference() and torch.is_grad_enabled()):
            raise NotRecordableError("an input of another sort")
        if tree.is_nested:
            accepted = "tensors padded to one length, with a mask beside them"
            raise FusionError("a nested tensor", where="inputs", accepted=accepted)
        return tree.shape, tree.stride(), tree.dtype, tree.device, wants
    if type(tree) in (tuple, list) or (isinstance(tree, tuple) and hasattr(tree, "_fields")):
        return type(tree), tuple(form(v, grads=grads) for v in tree)
    if type(tree) is dict:
        return dict, tuple((k, form(v, grads=grads)) for k, v in tree.items())
    if isinstance(tree, PerMember):
        return PerMember, form(tree.value, grads=grads)
    if tree is None or isinstance(tree, bool | int | float | str):
        return type(tree), tree
    raise NotRecordableError("an input of another sort")


def memberless(key: Any) -> Any:
    """The same of a signature for any number of members: what is per member has a leading axis of their number."""
    if isinstance(key, tuple) and len(key) == 2 and key[0] is PerMember:
        return PerMember, _unstacked(key[1])
    return tuple(map(memberless, key)) if type(key) is tuple else key


def batchless(key: Any) -> Any:
    """The same of a signature for any batch size, the leading axis of what a member gets."""
    if isinstance(key, tuple) and len(key) == 2 and key[0] is PerMember:
        return PerMember, _unstacked(key[1], 2)
    if _of_tensor(key):
        return _unstacked(key)
    return tuple(map(batchless, key)) if type(key) is tuple else key


def _unstacked(key: Any, axes: int = 1) -> Any:
    if _of_tensor(key):
        return key[0][axes:], key[1][axes:], *key[2:]
    return tuple(_unstacked(part, axes) for part in key) if type(key) is tuple else key


def _of_tensor(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 5 and isinstance(key[0], torch.Size)


def watched() -> bool:
    """True if a mode around the call, or autograd's anomaly mode, observes the kernels."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch.is_anomaly_enabled()
        or torch._C._functorch.maybe_current_level()
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._autograd._top_saved_tensors_default_hooks(True)
    )


_TINY = 2.0**-1040
"""A double below the smallest normal one, of which arithmetic makes 0 if a CPU is set to flush such numbers."""

_ANYWHERE = (
    "deterministic_algorithms",
    "deterministic_algorithms_warn_only",
    "deterministic_fill_uninitialized_memory",
    "mkldnn_enabled",
    "mkldnn_deterministic",
    "nnpack_enabled",
    "cpu_allow_fp16_reduced_precision_reduction",
    "flash_sdp_enabled",
    "mem_efficient_sdp_enabled",
    "math_sdp_enabled",
    "overrideable_sdp_enabled",
    "math_sdp_allow_fp16_bf16_reduction",
)
_ON_GPU = (
    "cudnn_enabled",
    "cudnn_benchmark",
    "cudnn_deterministic",
    "cudnn_sdp_enabled",
    "fa3_sdp_enabled",
    "cublas_allow_bf16_reduced_precision_reduction",
    "cublas_allow_fp16_reduced_precision_reduction",
    "cublas_allow_fp16_accumulation",
    "blas_preferred_backend",
    "linalg_preferred_backend",
)


def _getters(names: Iterable[str]) -> tuple[Callable[[], Any], ...]:
    """Torch's functions that return these settings, those that this version has.

    Its public properties call them too, and take ten times as long.
    """
    found = (getattr(torch._C, f"_get_{name}", None) for name in names)
    return tuple(getter for getter in found if getter is not None)


_ORDER = getattr(torch._C, "_get_sdp_priority_order", list[int])  # a list
_GETTERS, _GPU_GETTERS = _getters(_ANYWHERE), _getters(_ON_GPU)
_EINSUM = vars(getattr(opt_einsum, "m", opt_einsum))  # of the module itself, for which torch puts another


def _on_gpu(device: torch.device) -> tuple[Any, ...]:
    if device.type != "cuda":
        return ()
    return matmul_precision.float32(device), tuple(_ORDER()), *[g() for g in _GPU_GETTERS]


def settings(device: torch.device) -> tuple[Any, ...]:
    """Torch's settings on which depends what kernels compute, or which way a model's code takes.

    A program computes what was recorded under its settings, so under others there is another one. `torch.backends.cuda`
    lists those of attention (`sdpa_kernel` changes them) and of products.

    Args:
        device: of the array; those of GPUs are left out on a CPU.
    """
    autocast = torch._C._is_any_autocast_enabled() and (
        torch.is_autocast_cache_enabled(),
        *((torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in ("cpu", "cuda")),
    )
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        autocast,
        matmul_precision.on_cpu(),
        _TINY * 1.0 == 0.0,
        mha._is_fastpath_enabled,
        _EINSUM.get("enabled"),
        _EINSUM.get("strategy"),
        *[g() for g in _GETTERS],
        *_on_gpu(device),
    )
