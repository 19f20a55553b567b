"""Parameter groups by a function of a parameter's name and plain shape, of an array as of a plain module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hfta_nb.engine.array import FusedArray
from hfta_nb.errors import OptimError
from hfta_nb.errors.border import FUNCTION, instance, takes
from hfta_nb.optim.groups import Group
from hfta_nb.optim.hyperparameters import plain

Choose: TypeAlias = Callable[[str, Tensor], Mapping[str, Any] | None]
"""From a parameter's name, and the parameter as one member has it, to the hyperparameters of its group; None to leave
it out."""

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Modules whose parameters are those of a normalisation."""


@takes(OptimError, module=instance(nn.Module, "a module or an array"), choose=FUNCTION)
def param_groups(module: nn.Module, choose: Choose) -> list[Group]:
    """Parameter groups for an optimizer, chosen by name and plain shape.

    Args:
        module: an array; or a plain module, which gives the groups for torch's own optimizer.
        choose: called with the name and the parameter as a plain module has it: without the member axis, and of an
            array without values, on the device "meta". It returns the hyperparameters in which the parameter's group
            differs from the optimizer's, for example ``{"weight_decay": 0.0}``, each one value or one per member; or
            None to leave the parameter out. Parameters with equal answers make one group.

    Returns:
        Groups in the order of their first parameters, each with "params" and what `choose` has returned.

    Raises:
        OptimError: `choose` returned something else.

    Example:
        >>> from hfta_nb import fuse, optim
        >>> array = fuse([nn.Linear(4, 2) for _ in range(3)])
        >>> groups = param_groups(array, lambda name, p: {} if p.dim() >= 2 else {"weight_decay": 0.0})
        >>> optimizer = optim.AdamW(groups, lr=[1e-3, 1e-2, 1e-1])
        >>> [g["weight_decay"] for g in optimizer.param_groups]
        [0.01, 0.0]
    """
    found: list[tuple[dict[str, Any], list[nn.Parameter]]] = []
    for name, parameter in module.named_parameters():
        try:
            answer = choose(name, plain_shaped(module, parameter))
        except TypeError as error:
            where, accepted = f"param_groups, {name}", "a function of the name and the parameter"
            raise OptimError(f"`choose` fails ({error})", where=where, got=choose, accepted=accepted) from error
        if answer is None:
            continue
        if not isinstance(answer, Mapping) or "params" in answer:
            accepted = 'a dict of hyperparameters, such as {"weight_decay": 0.0}, or None'
            raise OptimError("not the values of a group", where=f"param_groups, {name}", got=answer, accepted=accepted)
        own = {k: plain(v) for k, v in answer.items()}
        home = next((parameters for values, parameters in found if values == own), None)
        if home is None:
            found.append((own, home := []))
        home.append(parameter)
    return [{"params": parameters, **values} for values, parameters in found]


def plain_shaped(module: nn.Module, parameter: Tensor) -> Tensor:
    """The parameter as one member has it: of an array without its member axis, and without values."""
    if not isinstance(module, FusedArray):
        return parameter
    return torch.empty(parameter.shape[1:], dtype=parameter.dtype, device="meta")


def norms_and_biases(module: nn.Module) -> set[str]:
    """Names of the parameters that are biases, of normalisations, or vectors or single numbers for another reason.

    Args:
        module: an array, or a plain module.
    """
    norms = {f"{path}." if path else "" for path, child in module.named_modules() if isinstance(child, NORMS)}
    axes = 2 + isinstance(module, FusedArray)
    return {
        name
        for name, p in module.named_parameters()
        if p.ndim < axes
        or name.rpartition(".")[2].startswith("bias")
        or any(name.startswith(n) and "." not in name[len(n) :] for n in norms)
    }


def no_decay_on_norms_and_biases(module: nn.Module) -> Choose:
    """For `param_groups`: no weight decay on norms and biases.

    Example:
        >>> from hfta_nb import fuse, optim
        >>> array = fuse([nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2)) for _ in range(3)])
        >>> groups = param_groups(array, no_decay_on_norms_and_biases(array))
        >>> [len(g["params"]) for g in groups]
        [1, 3]
    """
    names = norms_and_biases(module)
    return lambda name, parameter: {"weight_decay": 0.0} if name in names else {}
