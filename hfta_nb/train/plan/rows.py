"""The values of all training axes of a member, and which of them an array's members have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfta_nb.data import AnyData, augment
from hfta_nb.models import imbalance
from hfta_nb.models.recipes import Family
from hfta_nb.search.grid import show
from hfta_nb.train.step import averages, by_step

SPLITTING = ("optimizer", "lr_scheduler", "batch_size", "decay_on", "accumulate_grad_batches")
"""Training axes whose values can't differ within an array."""

FOLD_SIZES = "fold_sizes"
"""The entry of a row with the numbers of samples of its fold, for training and held out, in a study with folds."""

_REASONS = {
    "warmup_steps": "lr changes with every step where it is given, once an epoch elsewhere",
    "ema_decay": "weights are averaged where it is given",
    "class_weight, weaken and their like": "losses have settings, and features are mixed, where they are given",
}


def row_of(values: Mapping[str, Any], family: Family, data: AnyData, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all training axes of a member.

    Args:
        values: of the axes that the study gives.
        family, data: of the study.
        defaults: of the axes that every family has.
    """
    row = {name: values.get(name, default) for name, default in defaults.items()}
    row["batch_size"] = data.batch_size or row["batch_size"]
    if family.param_groups is not None:
        row["param_groups"] = family.param_groups
    row |= {name: values[name] for name in augment.AXES if name in values and name not in family.axes}
    if data.folds:
        fold = data.folds[int(values["fold"])]
        row |= {"fold": int(values["fold"]), FOLD_SIZES: (len(fold.training), len(fold.held_out))}
    return row | imbalance.values_of(values, family.axes, data)


def form_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the members of an array have in common, by what keeps others out: mini-batches of one size, one optimizer,
    steps that are made alike."""
    forms = by_step(row), averages(row), imbalance.form(row)
    sizes = {FOLD_SIZES: row[FOLD_SIZES]} if FOLD_SIZES in row else {}
    return {name: row[name] for name in SPLITTING} | dict(zip(_REASONS, forms, strict=True)) | sizes


def rows_apart(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """What keeps members with these values of all training axes out of one array, whatever they train."""
    others = form_of(theirs)
    for name, value in form_of(mine).items():
        if value == others[name]:
            continue
        if name == FOLD_SIZES:
            trained, held_out = (" and ".join(map(str, sizes)) for sizes in zip(value, others[name], strict=True))
            return f"fold: {trained} training samples, {held_out} held out"
        return f"{name}: {_REASONS.get(name) or f'{show(value)} and {show(others[name])}'}"
    return None
