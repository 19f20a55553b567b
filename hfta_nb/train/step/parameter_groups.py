"""Which parameters share an optimizer's hyperparameters, and which an optimizer: by names, for an array or a module."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import nn

from hfta_nb.engine.array import FusedArray
from hfta_nb.errors import OptimError
from hfta_nb.optim.group_functions import norms_and_biases, plain_shaped
from hfta_nb.train.step.choices import beside
from hfta_nb.train.step.step_protocol import Row

SCALE = "_scale"
"""Ends the name of a hyperparameter by which the member's own is multiplied: ``{"lr_scale": 0.1}``."""


def groups_of(module: nn.Module, names: Sequence[str], row: Row) -> list[tuple[list[str], dict[str, Any]]]:
    """The parameters by groups, each with what differs from the optimizer's hyperparameters.

    Args:
        module: an array, or a plain module.
        names: of the parameters that the optimizer trains.
        row: its ``param_groups`` is a function of a parameter's name and of the parameter as a plain module has it;
            with ``decay_on="weights"`` norms and biases have no weight decay.

    Raises:
        OptimError: the function returns something else than hyperparameters.
    """
    choose, parameters = row.get("param_groups"), dict(module.named_parameters())
    spared = norms_and_biases(module) if row.get("decay_on") == "weights" else set()
    found: list[tuple[list[str], dict[str, Any]]] = []
    for name in names:
        answer = {} if choose is None else choose(name, plain_shaped(module, parameters[name]))
        if not isinstance(answer, Mapping):
            accepted = 'a dict such as {"weight_decay": 0.0} or {"lr_scale": 0.1}'
            raise OptimError("not the values of a group", where=f"param_groups, {name}", got=answer, accepted=accepted)
        own = {**({"weight_decay": 0.0} if name in spared else {}), **answer}
        home = next((members for members, values in found if values == own), None)
        if home is None:
            found.append((home := [], own))
        home.append(name)
    return found


def values_of(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a group has of its own, for a member with these hyperparameters.

    Raises:
        OptimError: the optimizer has no such hyperparameter.
    """
    found = {}
    for name, value in own.items():
        base = name.removesuffix(SCALE)
        if base == "weight_decay" and base not in given:
            continue  # an optimizer without decay spares everything
        if base not in given:
            raise OptimError("not a hyperparameter of this optimizer", where="param_groups", got=name,
                             accepted=", ".join([*given, *(f"{n}{SCALE}" for n in given)]))  # fmt: skip
        found[base] = value if name == base else given[base] * value
    return found


def by_optimizer(module: nn.Module, names: Sequence[str], row: Row) -> list[tuple[list[str], dict[str, Any]]]:
    """The parameters by optimizer, each with its row: Muon takes matrices, row-wise Adagrad embeddings, and another
    optimizer the rest."""
    other = beside(row)
    if other is None:
        return [(list(names), dict(row))]
    embeddings = _embeddings(module, names)
    taken = embeddings if row["optimizer"] == "rowwise_adagrad" else _matrices(module, names) - embeddings
    rest = [name for name in names if name not in taken]
    parts = [([n for n in names if n in taken], dict(row)), (rest, other)]
    return [part for part in parts if part[0]]


def _matrices(module: nn.Module, names: Collection[str]) -> set[str]:
    """Parameters of two axes (of a member)."""
    parameters, axes = dict(module.named_parameters()), 2 + isinstance(module, FusedArray)
    return {name for name in names if parameters[name].ndim == axes}


def _embeddings(module: nn.Module, names: Collection[str]) -> set[str]:
    """The tables of embeddings."""
    modules = dict(module.named_modules())
    kinds = nn.Embedding, nn.EmbeddingBag
    return {name for name in names if isinstance(modules.get(name.rpartition(".")[0]), kinds)}
