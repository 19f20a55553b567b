"""Tensors that a call differentiates by, although they belong to no array: parameters of a loss, of another model.

One such tensor is shared by all members, where each member's own loop has one of its own. A replayed call would not
give it a gradient at all.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.autograd_nodes import nodes
from hfta_nb.engine.eager.foreign_reads import refused
from hfta_nb.engine.eager.ownership import owner_of
from hfta_nb.engine.eager.reach import Reach
from hfta_nb.errors import FusionError

_IN_MODEL = (
    "make it a parameter of each member: an attribute that is an nn.Module or nn.Parameter, and lists of them as "
    "nn.ModuleList or nn.ParameterList"
)
_IN_LOSS = (
    "give each member a loss of its own: losses = hfta.fuse([MyLoss() for _ in range(M)]), "
    "array.backward(losses, x, y), and an optimizer for it: hfta.optim.Adam(losses, ...)"
)


class Owned:
    """Tensors that a call may be differentiated by, as they are before it: it may write into its inputs.

    Args:
        tensors: the array's parameters, and the inputs.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = list(tensors)
        self.nodes = {tensor.grad_fn for tensor in self.tensors if tensor.grad_fn is not None}

    def foreign(self, results: Iterable[Tensor]) -> list[Tensor]:
        """The leaves that some tensors are differentiated by, beside these and what these were computed from."""
        known = set(map(id, self.tensors))
        leaves = (node.variable for node in nodes(results, self.nodes) if type(node).__name__ == "AccumulateGrad")
        return [leaf for leaf in leaves if id(leaf) not in known]


def check_leaves(results: Iterable[Tensor], own: Owned, functions: tuple[object, ...]) -> None:
    """See that a call is differentiated by nothing but what is the array's or was given as an input.

    Leaves that the call itself has created, as for a gradient penalty, count for nothing.

    Args:
        results: of the call.
        own: what is the array's or an input.
        functions: what was called: the model, then the loss.

    Raises:
        FusionError: a tensor of neither kind requires a gradient, or one that holds all members.
    """
    if not torch.is_grad_enabled():
        return
    found = own.foreign(v for v in results if v.requires_grad)
    if not found:
        return
    of_arrays = next((owner for owner in map(owner_of, found) if owner is not None), None)
    if of_arrays is not None:
        raise refused(of_arrays[1])
    reached = Reach(functions).tensors
    leaf = next((v for v in found if id(v) in reached), next((v for v in found if isinstance(v, nn.Parameter)), None))
    if leaf is None:
        return
    label = reached[id(leaf)][1] if id(leaf) in reached else ""
    in_model = id(leaf) in Reach(functions[:1]).tensors
    raise FusionError(
        f"the {'model' if in_model else 'loss'} depends on a tensor that requires a gradient and belongs to no array, "
        "so all members would share it",
        where=label,
        got=list(leaf.shape),
        accepted="tensors of the array, inputs, and tensors that require no gradient",
        remedy=f"{_IN_MODEL if in_model else _IN_LOSS}; "
        "if it is not trained, detach it: tensor.detach(), module.requires_grad_(False)",
    )
