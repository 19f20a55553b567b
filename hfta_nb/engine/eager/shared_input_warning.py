"""Warnings about inputs that members share: one that seems to have a member axis, one that requires a gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.autograd_nodes import nodes
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.eager.user_warnings import warn

_AXES: tuple[tuple[type[nn.Module], int], ...] = (
    (nn.Linear, 2),
    (nn.Conv1d, 3),
    (nn.Conv2d, 4),
    (nn.Conv3d, 5),
    (nn.RNNBase, 3),
    (nn.Embedding, 2),
)
"""Layers, and the usual number of axes of their mini-batches."""


def warn_of_shared_input(state: ArrayState, inputs: Inputs) -> None:
    """Warn, once per array, about an unmarked input whose first axis looks like a member axis.

    This is likely if the first layer expects one axis fewer, and the first axis has as many entries as there are
    members.
    """
    members = len(state)
    first = inputs.leaves[0] if inputs.leaves else None
    if state.axes_known or members < 2 or not isinstance(first, Tensor) or inputs.per_member[0]:
        return
    layer = next((m for m in state.skeleton.modules() if not list(m.children())), None)
    # A subclass of Linear is part of another layer, such as attention, which receives the inputs.
    axes = next(
        (n for kind, n in _AXES if isinstance(layer, kind) and (kind is not nn.Linear or type(layer) is kind)), 0
    )
    if not axes or first.ndim != axes + 1 or first.shape[0] != members:
        return
    state.axes_known = True
    shape = f"[{members}, {', '.join(str(n) for n in first.shape[1:])}]"
    text = (
        f"the input {shape} goes to all {members} members as a whole, although its first axis is as long as there are "
        f"members and {type(layer).__name__} takes {axes} axes: if each member is to get an entry of its own, call "
        "array(hfta_nb.per_member(x))"
    )
    warn(text)


def warn_of_summed_gradients(state: ArrayState, inputs: Inputs) -> None:
    """Warn, once per array, that the gradient of an input that members share is the sum over members.

    An input that is computed from parameters alone is left out: all members train what computes it, by that sum.
    """
    members = len(state)
    if state.sums_reported or members < 2 or not torch.is_grad_enabled():
        return
    pairs = zip(inputs.leaves, inputs.per_member, strict=True)
    found = next((v for v, own in pairs if isinstance(v, Tensor) and v.requires_grad and not own and _given(v)), None)
    if found is None:
        return
    state.sums_reported = True
    text = (
        f"an input {list(found.shape)} that requires a gradient goes to all {members} members, so what "
        "torch.autograd.grad or a backward gives it is the sum of the members' gradients, not each member's own. For a "
        "gradient with a row per member, call array(hfta_nb.per_member(own)) with "
        f"own = x.expand({members}, *x.shape), and differentiate by own"
    )
    warn(text)


def _given(tensor: Tensor) -> bool:
    """True if a tensor is a leaf, or computed from a leaf that is no parameter."""
    leaves = (getattr(node, "variable", None) for node in nodes([tensor]))
    return tensor.is_leaf or any(leaf is not None and not isinstance(leaf, nn.Parameter) for leaf in leaves)
