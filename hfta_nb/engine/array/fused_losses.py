"""Losses that are modules with parameters of their own: an array of them beside the array of models, member by member.

``losses = hfta.fuse([ArcFace() for _ in range(M)])`` is given as the loss. Member i's output goes to member i of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hfta_nb.engine.array.own_losses import marked
from hfta_nb.engine.array.saving import Savable
from hfta_nb.engine.eager.gradients import call_module
from hfta_nb.engine.eager.reach import Reach
from hfta_nb.engine.members.held_losses import HeldLoss
from hfta_nb.engine.members.tree import flatten, tensor_map
from hfta_nb.errors import FusionError


def held(loss: Any, name: str) -> Any:
    """The loss; one that is a module with parameters to train, as members hold it.

    Raises:
        FusionError: it has lazy parameters, or an optimizer that would step the parameters of the loss as given.
    """
    if not isinstance(loss, nn.Module) or not any(p.requires_grad for p in loss.parameters()):
        return loss
    if any(is_lazy(p) for p in loss.parameters()):
        what = "a loss whose parameters have no shapes yet"
        raise FusionError(what, where=name, got=type(loss).__name__, remedy="call it once with an output and a target")
    own = set(map(id, loss.parameters()))
    for holder in Reach((loss,)).holders:
        found = holder.owner
        if isinstance(found, Optimizer) and any(id(p) in own for g in found.param_groups for p in g["params"]):
            raise FusionError(
                "a loss that steps its parameters itself",
                where=f"{name}: {holder.label}",
                got=type(found).__name__,
                accepted="losses whose parameters the study's optimizer trains",
                remedy="drop its optimizer; param_groups gives the loss a learning rate of its own",
            )
    return HeldLoss(loss, name)


def computed(array: Savable, losses: Savable, output: Any, y: Any, has_aux: bool = False) -> tuple[Tensor, Any]:
    """Every member's loss ``[M]`` of an existing output, and the auxiliary result; see `FusedArray.losses`.

    Raises:
        FusionError: the two have different numbers of members, or a loss is not a scalar.
    """
    if len(losses.generators) != len(array.generators):
        raise FusionError(
            "another number of members than the array has",
            where="loss_fn",
            got=losses,
            accepted=f"a FusedArray of {len(array.generators)} losses",
        )
    losses._state.axes_known = True  # which inputs have a member axis is known
    with _streams_of(array, losses):
        result = losses(marked(output), y)
    values, aux = result if has_aux else (result, None)
    if not isinstance(values, Tensor) or values.ndim != 1:
        shown = f"a tensor {list(values.shape[1:])}" if isinstance(values, Tensor) else values
        raise FusionError("the loss of a member must be a scalar tensor", where="loss_fn", got=shown)
    return values, aux


def backward(
    array: Savable,
    losses: Savable,
    x: Any,
    y: Any,
    has_aux: bool,
    scale: Tensor | None,
    only: Collection[str] | None,
) -> Tensor | tuple[Tensor, Any]:
    """See `FusedArray.backward`: the gradients of both arrays."""
    values, aux = computed(array, losses, call_module(array, x), y, has_aux)
    total = (values if scale is None else values * scale.to(values)).sum()
    if only is None:
        total.backward()  # type: ignore[no-untyped-call]
    else:
        own = [p for name, p in array.named_parameters() if name in only and p.requires_grad]
        given = [v for v in flatten((x, y))[0] if isinstance(v, Tensor) and v.requires_grad and v.is_leaf]
        torch.autograd.backward(total, inputs=[*own, *(p for p in losses.parameters() if p.requires_grad), *given])
    return (values.detach(), tensor_map(Tensor.detach, aux)) if has_aux else values.detach()


def evaluated(array: Savable, losses: Savable, x: Any, y: Any) -> Any:
    """See `FusedArray.evaluate`."""
    with _streams_of(array, losses):
        losses._state.axes_known = True
        return losses(marked(call_module(array, x)), y)


@contextmanager
def _streams_of(array: Savable, losses: Savable) -> Iterator[None]:
    """The context in which losses draw from the streams of the models, as they do in a loop of one member."""
    own, losses.generators.states = losses.generators.states, array.generators.states
    try:
        yield
        array.generators.states = losses.generators.states
    finally:
        losses.generators.states = own
