"""The signature of a call: properties that distinguish calls which may run different kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

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
    float32 = matmul_precision.float32(state.generators.device)
    training = state.skeleton.training
    return how.block_size, how.threads, branches, how.fast_rng, training, float32, settings()


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


def settings() -> tuple[Any, ...]:
    """Torch's settings that kernels and a model's code path depend on."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch._C._is_any_autocast_enabled()
        and tuple((torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in ("cpu", "cuda")),
        torch._C._get_deterministic_algorithms(),  # called by torch's own properties; this takes a tenth of the time
        torch._C._get_mkldnn_enabled(),
        matmul_precision.get(),
        torch._C._get_cudnn_enabled(),
    )
