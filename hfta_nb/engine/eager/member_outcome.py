"""What a call computes for one member, in a form that can be compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.eager.attributes import AttributeKey
from hfta_nb.engine.eager.engine import Call
from hfta_nb.engine.eager.given_objects import with_copies
from hfta_nb.engine.members.tree import flatten

MemberOutcome = dict[str, Any]
"""What a call returns and changes for one member, by kind and name: tensors, and other values that can be compared."""

INPUT_GRADIENT = "gradient of input "
"""Prefix of the keys of gradients of inputs."""

BUFFER, PARAMETER = "buffer ", "parameter "
"""Prefixes of the keys of buffers and of parameters."""

LATER = "change, in the backward, of "
"""Prefix of the keys of what has another value after the backward of a call's outputs."""


@dataclass(frozen=True)
class Computation:
    """What a call of an array computes.

    Attributes:
        call: for a member, from the module and the leaves of its inputs: the output; with `backward`, the loss and an
            auxiliary result.
        backward: whether the loss is differentiated.
        scale: ``[M]``, factors of the losses for differentiation.
        only: names of the parameters by which losses are differentiated; None for all.
        functions: losses, metrics and other functions that it calls.
    """

    call: Call
    backward: bool = False
    scale: Tensor | None = None
    only: Collection[str] | None = None
    functions: tuple[Any, ...] = ()


def result_outcome(result: Any, member: int | None) -> MemberOutcome:
    """The leaves of a result; of a result with a member axis, those of `member`."""
    found: MemberOutcome = {}
    for i, leaf in enumerate(flatten(result)[0]):
        if isinstance(leaf, Tensor):
            leaf = (leaf if member is None else leaf[member]).detach().clone()
        found[f"result {i}"] = leaf
    return found


def gradient_outcome(
    names: Sequence[str], grads: Sequence[Tensor | None], of_inputs: Sequence[Tensor | None]
) -> MemberOutcome:
    """Gradients of parameters, by name, and of inputs."""
    found: MemberOutcome = {f"gradient of {name}": grad for name, grad in zip(names, grads, strict=True)}
    return found | {f"{INPUT_GRADIENT}{i}": grad for i, grad in enumerate(of_inputs)}


def differentiable(result: Any) -> list[Tensor]:
    """The tensors of a result that require a gradient."""
    return [v for v in flatten(result)[0] if isinstance(v, Tensor) and v.requires_grad]


def weighted_sum(outputs: Sequence[Tensor]) -> Tensor:
    """One number whose gradient depends on every entry of the outputs; the weights are random and always the same."""
    generator = torch.Generator().manual_seed(0)
    terms = []
    for v in outputs:
        weights = torch.randn(v.shape, generator=generator, dtype=torch.float32).to(v.device, v.dtype)
        terms.append((v * weights).sum().abs() if v.is_complex() else (v * weights).sum())
    return torch.stack([t.to(terms[0].dtype) for t in terms]).sum()


def copied_leaves(leaves: Sequence[Any]) -> list[Any]:
    """The leaves with copies of their tensors, and of objects that a call may change; what occurs twice is copied
    once."""
    made: dict[int, Tensor] = {}
    for v in leaves:
        if isinstance(v, Tensor) and id(v) not in made:
            made[id(v)] = v.detach().clone().requires_grad_(v.requires_grad)
    return [made[id(v)] if isinstance(v, Tensor) else v for v in with_copies(leaves)]


def attribute_outcome(attributes: dict[AttributeKey, Any]) -> MemberOutcome:
    """Attributes that a member has set on its module."""
    return {f"attribute {'.'.join(filter(None, key))}": value for key, value in attributes.items()}


def later_outcome(now: MemberOutcome) -> MemberOutcome:
    """State under the keys of what a backward changes."""
    return {f"{LATER}{key}": value for key, value in now.items()}


def stream_outcome(streams: Mapping[str, Tensor]) -> MemberOutcome:
    """The states of a member's random streams."""
    return {f"stream of random numbers ({kind})": state for kind, state in streams.items()}


def submodule_of(key: str) -> str:
    """The path of the submodule to which a parameter, buffer or attribute belongs."""
    return key.rpartition(" ")[2].rpartition(".")[0]
