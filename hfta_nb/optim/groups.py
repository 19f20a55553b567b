"""Parameter groups: whose parameters an optimizer is given, and its live values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from hfta_nb.engine.array import FusedArray, has_lazy, in_full, owner
from hfta_nb.errors import OptimError
from hfta_nb.errors.border import bounded

Group = dict[str, Any]
"""As in torch: "params", and the value of each hyperparameter: one, or a list with one per member."""

BY_SHAPE = (
    "the shapes of array.parameters() begin with the member axis, so p.dim() is one more than in the plain module: "
    "choose by name and plain shape with hfta_nb.optim.param_groups(array, choose)"
)
_ACCEPTED = "an array, or its parameters, (name, parameter) pairs, or dicts with them under 'params'"


def groups_of(params: Any, where: str) -> tuple[FusedArray, list[Group]]:
    """The array that is meant, and its parameters in groups.

    Args:
        params: what an optimizer was given first.
        where: the optimizer's name.

    Raises:
        OptimError: it is something else, or the parameters are of no array, or of several.
    """
    if isinstance(params, FusedArray):
        if has_lazy(params):
            remedy = "call it once on an input: array(x)"
            raise OptimError("the array has lazy modules that have no shapes yet", where=where, remedy=remedy)
        if not list(params.parameters()):
            raise OptimError("the array has no parameters", where=where)
        return params, [{"params": list(params.parameters())}]
    if isinstance(params, Tensor | str | Mapping) or not isinstance(params, Iterable):
        raise OptimError("not the parameters of an array", where=where, got=params, accepted=_ACCEPTED)
    items = bounded(params, OptimError, where)
    if not items:
        raise OptimError("no parameters", where=where, got=items, accepted=_ACCEPTED)
    given = items if all(isinstance(v, Mapping) for v in items) else [{"params": items}]
    groups = [listed(v, where) for v in given]
    array = None
    for group in groups:
        array = array or _array_of(group, where)
    assert array is not None  # each group has an array, else an error was raised
    return array, groups


def listed(group: Mapping[str, Any], where: str) -> Group:
    """The group with its parameters as a list, and their names apart where they were given."""
    if "params" not in group:
        raise OptimError("a group without 'params'", where=where, got=sorted(group), accepted=_ACCEPTED)
    params = group["params"]
    if isinstance(params, set):
        raise OptimError("a set has no order", where=where, got=params, accepted="a list")
    if isinstance(params, FusedArray):
        params = list(params.parameters())
    items = [params] if isinstance(params, Tensor) else list(params)
    named = [isinstance(v, tuple) and len(v) == 2 for v in items]
    if any(named) and not all(named):
        raise OptimError("some parameters come with names and some without", where=where)
    plain: Group = {k: in_full(v) for k, v in group.items() if k != "params"}
    if items and all(named):
        return {"params": [p for _, p in items], **plain, "param_names": [n for n, _ in items]}
    return {"params": items, **plain}


def names_of(group: Mapping[str, Any], array: FusedArray, taken: Mapping[str, int], where: str) -> list[str]:
    """The names of a group's parameters in the array.

    Args:
        taken: names that are in groups already, with the number of the group.

    Raises:
        OptimError: a parameter is none of this array's, or is there twice.
    """
    names: list[str] = []
    for p in group["params"]:
        if not isinstance(p, Tensor):
            raise OptimError("not a parameter", where=where, got=p, accepted=_ACCEPTED)
        found = owner(p)
        if found is None:
            remedy = "array.to(...) keeps parameters, but array.select(...) and copies have their own"
            raise OptimError(
                "a parameter of no array", where=where, got=list(p.shape), accepted=_ACCEPTED, remedy=remedy
            )
        if found[0] is not array:
            raise OptimError("a parameter of another array", where=where, got=found[1], accepted=f"those of {array!r}")
        if found[1] in taken or found[1] in names:
            raise OptimError("a parameter given twice", where=where, got=found[1])
        names.append(found[1])
    if not names:
        raise OptimError("a group without parameters", where=where, remedy=BY_SHAPE)
    return names


def _array_of(group: Mapping[str, Any], where: str) -> FusedArray | None:
    for p in group["params"]:
        if not isinstance(p, Tensor):
            raise OptimError("not a parameter", where=where, got=p, accepted=_ACCEPTED)
        found = owner(p)
        if found is None:
            raise OptimError(
                "not a FusedArray, nor parameters of one", where=where, got=list(p.shape), accepted=_ACCEPTED
            )
        return found[0]
    raise OptimError("a group without parameters", where=where, remedy=BY_SHAPE)
