"""Checks that samples are of the form that a model and a loss take."""

from __future__ import annotations

import inspect

from torch import Tensor, nn

from hfta_nb.data import AnyData, Data, Positional, check_finite, known
from hfta_nb.data.labels import beside_mask
from hfta_nb.errors import DataError, FamilyError
from hfta_nb.models import losses
from hfta_nb.models.recipes.recipe import Family


def check_samples(recipe: Family, data: AnyData) -> None:
    """Check that the loss takes targets of this form, and that the model meets no numbers that are missing.

    A loss and a model of the user's may take anything; built-in losses leave out targets that are NaN.

    Raises:
        FamilyError: targets of several kinds need a loss of the user's.
        DataError: a number is missing.
    """
    own_loss = bool(recipe.phases) or not (recipe.loss is None or isinstance(recipe.loss, losses.NamedLoss))
    y, _ = beside_mask(data.examples[1])
    if not own_loss and not isinstance(y, Tensor):
        raise FamilyError(
            "its loss takes one tensor of targets, and a mask beside it",
            where=recipe.name,
            got=list(y) if isinstance(y, dict) else f"a tuple of {len(y)}",
            accepted='a tensor y, or {"y": y, "mask": mask}',
            remedy="give a loss of your own, which gets the targets as they are: Study(..., loss=...)",
        )
    if not isinstance(data, Data) or known(data.name):
        return
    own_model = not str(getattr(recipe.function, "__module__", "")).startswith("hfta_nb.")
    parts = {"x": (data.x, own_model), "y": (data.y, own_loss)}
    parts |= {"x_validation": (data.x_validation, own_model), "y_validation": (data.y_validation, own_loss)}
    for where, (samples, own) in parts.items():
        if not own:
            what = "a model" if where.startswith("x") else "a loss"
            remedy = f"clean the data first, or give {what} of your own that leaves them out"
            check_finite(samples, where, remedy, missing=where.startswith("y"))


def check_taken(module: nn.Module, data: AnyData, phases: bool = False) -> None:
    """Check that ``(x1, x2, y)`` are two inputs and a target, and not an input, a target and its weights; and that the
    module has parameters of the names of inputs by name, unless the functions of phases call it.

    Raises:
        DataError: the module takes one input, or may; or an input has a name that it does not take.
    """
    x, _ = data.examples
    if not isinstance(x, Positional | dict) or (phases and isinstance(x, dict)):
        return
    try:
        taken = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return
    if isinstance(x, dict):
        _check_names(list(x), taken, data.name)
        return
    places = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    wanted = [p for p in places if p.default is p.empty]
    if len(wanted) == len(x) or any(p.kind is p.VAR_POSITIONAL for p in taken):
        return
    count = len(x) + 1
    raise DataError(
        f"has samples of {count} parts, which are {count - 1} inputs and a target, and the model needs {len(wanted)}",
        where=data.name,
        got=f"forward({', '.join(str(p) for p in taken)})",
        accepted="(x, y); ((x1, x2), y) for several inputs; (x, (y, weight)) or (x, (y, index)) for a loss of both",
        remedy="put what belongs together into a tuple: in the dataset, its collate_fn, or the tensors that are given",
    )


def _check_names(names: list[str], taken: list[inspect.Parameter], where: str) -> None:
    known = [p.name for p in taken if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    others = [name for name in names if name not in known]
    if not others or any(p.kind is p.VAR_KEYWORD for p in taken):
        return
    shown = ", ".join(str(p) for p in taken)
    raise DataError(
        f"has inputs by name, and the model's forward takes none of the name {' and '.join(others)}",
        where=where,
        got=f"forward({shown})",
        accepted=f"forward({', '.join(names)})",
        remedy="name its parameters so, or let it take **inputs; what only the loss needs, as weights, is part of the "
        'target: {"x": x, "y": {"y": y, "weight": weight}}',
    )
