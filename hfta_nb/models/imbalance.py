"""Remedies for imbalanced classes, as axes: each is one value per member of an array.

They act in training alone. The validation loss is the plain one, so that members with different remedies compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.data import AnyData
from hfta_nb.data.labels import IGNORED
from hfta_nb.engine.array import PerMember, per_member
from hfta_nb.errors import GridError
from hfta_nb.models.losses import prediction
from hfta_nb.models.masks import classes_of
from hfta_nb.models.member_losses import Target
from hfta_nb.models.targets import shaped_as
from hfta_nb.search.grid import AxisSpec

GROUP = "imbalance"
"""The mark of these axes in a list."""

COUNTS = "class_counts"
"""The entry of a row with the number of training samples of each class, 1 where they are not counted; in rows that have
such axes."""

BETA = 0.999
"""Of the effective number of samples (Cui et al. 2019)."""

_NAMED = ("none", "balanced", "effective")


def _axis(name: str, kind: str, off: Any, help: str, high: float | None = None) -> AxisSpec:
    return AxisSpec(name, kind, off, low=0.0 if kind == "float" else None, high=high, help=help, group=GROUP)


_WEIGHTS = _axis("class_weight", "any", "none", 'Weights of classes: "balanced", "effective", or one for each.')
_LOSSES = (
    _WEIGHTS,
    _axis("focal_gamma", "float", 0.0, "Focusing of the focal loss, which counts by (1 - p)^gamma; 0 for none."),
    _axis("tau", "float", 0.0, "Logit adjustment: tau times the log of the share of each class is added to its logit."),
    _axis("label_smoothing", "float", 0.0, "Share of each target that is spread evenly over the classes.", 1.0),
)
_WEAKEN = (
    _axis("weaken", "float", 0.0, "Major Feature Weakening: how much inputs of large classes are mixed.", 1.0),
    _axis("weaken_gamma", "float", 1.0, "How fast weakening grows with the size of a class."),
)

AXES: dict[str, AxisSpec] = {axis.name: axis for axis in (*_LOSSES, *_WEAKEN)}
"""All of them, by name; those of the loss first."""


def axes_for(task: str | None) -> dict[str, AxisSpec]:
    """The axes that suit a task; Major Feature Weakening is for samples of one class each."""
    axes = {"classification": AXES.values(), "segmentation": _LOSSES}.get(task or "", ())
    return {axis.name: axis for axis in axes}


def used(row: Mapping[str, Any]) -> bool:
    """Whether a study gives such axes."""
    return COUNTS in row


def form(row: Mapping[str, Any]) -> tuple[bool, bool]:
    """What members of one array have in common: whether losses have settings, and whether inputs may be mixed."""
    return used(row), bool({"weaken", "weaken_gamma"} & row.keys())


def values_of(values: Mapping[str, Any], taken: Iterable[str], data: AnyData) -> dict[str, Any]:
    """The entries of a row for the axes that a study gives.

    Args:
        values: of all axes of a variant.
        taken: names of axes that are parameters of the model.
        data: of the study.

    Raises:
        GridError: a value can't be used with the data.
    """
    given = {name: values[name] for name in AXES if name in values and name not in set(taken)}
    if not given:
        return {}
    counts = data.class_counts
    weights = checked_weights(given.get(_WEIGHTS.name, "none"), data.facts.get("num_classes"))
    needs = [name for name in ("tau", "weaken") if given.get(name)]
    needs += [_WEIGHTS.name] if weights in _NAMED[1:] else []
    if counts is None and needs:
        raise GridError(f"the classes of {data.name} are not counted: it is read batch by batch", where=needs[0],
                        remedy="give tensors, or class_weight as a list")  # fmt: skip
    inputs = data.examples[0]
    if given.get("weaken") and not (isinstance(inputs, Tensor) and (inputs.is_floating_point() or inputs.ndim == 4)):
        raise GridError("mixes inputs, which must be one tensor of numbers", where="weaken", got=given["weaken"],
                        remedy="set it to 0")  # fmt: skip
    classes = data.facts.get("num_classes") or (len(weights) if isinstance(weights, tuple) else 1)
    return {**given, _WEIGHTS.name: weights, COUNTS: counts or (1,) * classes}


def checked_weights(value: Any, classes: int | None) -> Any:
    """A value of the axis `class_weight`: a name, or a weight for each class.

    Raises:
        GridError: it is neither.
    """
    if isinstance(value, str) and "/" in value:
        value = value.split("/")
    accepted = f"{', '.join(_NAMED)}, or a list of {classes or 'all'} weights, at least 0"
    try:
        weights = value if value in _NAMED else tuple(float(v) for v in value)
    except (TypeError, ValueError):
        raise GridError("no weights of classes", where=_WEIGHTS.name, got=value, accepted=accepted) from None
    if isinstance(weights, tuple):
        finite = all(0 <= v < float("inf") for v in weights) and any(weights)
        if not finite or (classes is not None and len(weights) != classes):
            raise GridError("not a weight for each class", where=_WEIGHTS.name, got=list(weights), accepted=accepted)
    return weights


def weights_of(value: Any, counts: Sequence[int] | None) -> Tensor:
    """The weights of the classes, float64 ``[C]``.

    Args:
        value: "none"; "balanced", ``N / (C * n_c)``, as scikit-learn has it; "effective", ``1 / (1 - BETA ** n_c)``
            with mean 1 (Cui et al. 2019, arXiv 1901.05555); or the weights themselves.
        counts: n_c.
    """
    if isinstance(value, tuple):
        return torch.tensor(value, dtype=torch.float64)
    number = torch.tensor(counts, dtype=torch.float64)
    if value == "none":
        return torch.ones_like(number)
    number = number.clamp(min=1)  # a class without a sample has no loss to weigh
    if value == "balanced":
        return number.sum() / (len(number) * number)
    weights = 1 / (1 - BETA**number)
    return weights * len(weights) / weights.sum()


def shares_kept(weaken: float, gamma: float, counts: Sequence[int]) -> Tensor:
    """What Major Feature Weakening leaves of samples, by class ``[C]``: ``1 - s (1 - (n_min / n_c)^gamma) / 2``.

    Source: Ye, Zhan, Chao 2021 (arXiv 2104.01769) for the idea, that features of large classes are mixed with those of
    other samples of the mini-batch. The rule is this project's reading.
    """
    number = torch.tensor(counts, dtype=torch.float64)
    smallest = number[number > 0].min()
    return 1 - weaken * (1 - (smallest / number.clamp(min=1)).clamp(max=1) ** gamma) / 2


def settings_of(rows: Sequence[Mapping[str, Any]], device: torch.device) -> dict[str, Tensor]:
    """The settings of the members' losses, each with a leading M; empty where the study has no such axes."""
    if not used(rows[0]):
        return {}
    every = [_settings(row) for row in rows]
    return {name: torch.stack([one[name] for one in every]).to(device) for name in every[0]}


def _settings(row: Mapping[str, Any]) -> dict[str, Tensor]:
    value = row.get("class_weight", "none")
    counts = row[COUNTS]
    number = torch.tensor(counts, dtype=torch.float64)
    prior = (number.clamp(min=1) / number.sum()).log()
    found = {
        "weight": weights_of(value, counts),
        "shift": float(row.get("tau") or 0.0) * prior,
        "gamma": torch.tensor(float(row.get("focal_gamma") or 0.0), dtype=torch.float64),
        "smoothing": torch.tensor(float(row.get("label_smoothing") or 0.0), dtype=torch.float64),
    }
    if form(row)[1]:
        found["kept"] = shares_kept(float(row.get("weaken") or 0.0), float(row.get("weaken_gamma", 1.0)), counts)
    return found


def cross_entropy(output: Any, target: Target) -> Tensor:
    """Cross entropy with the settings of a member, of a target with them; the mean as `torch` has it.

    With weights w, logits z + shift, their probabilities p, and targets q that are smoothed, a sample's loss is ``sum_c
    q_c w_c (1 - p_c)^gamma (-log p_c)``. The sum over samples is divided by that of the weights of their classes.

    Sources: Lin et al. 2017 (arXiv 1708.02002) for gamma; Menon et al. 2021 (arXiv 2007.07314) for the shift;
    `torch.nn.functional.cross_entropy` for weights and smoothing.
    """
    found, y = prediction(output), classes_of(target.y)
    points = not y.is_floating_point() and y.ndim == 2 and found.ndim == 3  # [N, P, classes], else [N, classes, ...]
    logits = found if points else found.movedim(1, -1)
    aim, known = _aims(logits, y)
    weight, shift, gamma, smoothing = (target.settings[name].to(found.dtype) for name in SETTINGS)
    logs = F.log_softmax(logits + shift, -1)
    missed = (-torch.expm1(logs)).clamp(min=torch.finfo(logs.dtype).eps)  # 1 - p, whose power has a slope everywhere
    smoothed = (1 - smoothing) * aim + smoothing / logits.shape[-1]
    each = (smoothed * weight * missed**gamma * -logs).sum(-1)
    counted = known.sum().to(weight.dtype) if y.is_floating_point() else (aim * weight).sum()
    return torch.where(known, each, 0).sum() / torch.where(counted > 0, counted, 1)


SETTINGS = ("weight", "shift", "gamma", "smoothing")
"""Of a member's loss, in the order of `cross_entropy`."""


def _aims(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Targets as shares ``[N, *rest, classes]``, and where they are known ``[N, *rest]``."""
    if y.is_floating_point():
        shares = y.movedim(1, -1)
        known = (shares == shares).all(-1)
        return torch.where(known.unsqueeze(-1), shares, 0).to(logits.dtype), known
    y = shaped_as(y, logits)
    classes = torch.arange(logits.shape[-1], device=y.device)
    return (y.unsqueeze(-1) == classes).to(logits.dtype), y != IGNORED


def target_of(y: Any, settings: Mapping[str, Tensor]) -> Any:
    """The target with the members' settings; as it is where there are none."""
    own = {name: per_member(settings[name]) for name in SETTINGS if name in settings}
    return Target(y, own) if own else y


def share_of_weights(target: Any, settings: Mapping[str, Tensor]) -> Tensor:
    """What a mini-batch counts among those of one optimizer step: the weights of its targets by their number, ``[M]``.

    Args:
        target: class numbers, as a step gets them; a tensor or a dict with a mask, each perhaps `per_member`.
        settings: with a leading M.
    """
    own = any(isinstance(leaf, PerMember) for leaf in (target.values() if isinstance(target, dict) else (target,)))
    y, weight = classes_of(_bare(target)), settings["weight"]
    if y.is_floating_point():
        known: Tensor = (y == y).flatten(1 if own else 0).double().mean(-1)
        return known.expand(len(weight))
    flat = y.reshape(len(weight), -1) if own else y.reshape(1, -1).expand(len(weight), -1)
    counts = torch.where(flat != IGNORED, weight.gather(1, flat.clamp(min=0)), 0)
    share: Tensor = counts.mean(1)
    return share


def weakened(x: Any, y: Any, settings: Mapping[str, Tensor]) -> Any:
    """Inputs of which those of large classes are mixed with their neighbours in the mini-batch, labels kept.

    ``h_i <- l(y_i) h_i + (1 - l(y_i)) h_(i-1)``: the order of a mini-batch is random, so the neighbour is any sample.

    Args:
        x: ``[N, *features]``, or per member ``[M, N, *features]``.
        y: class numbers, or a dict of them and a mask.
        settings: with a leading M; "kept" is l, by class.
    """
    kept = settings.get("kept")
    if kept is None:
        return x
    y = classes_of(_bare(y))
    inputs = x.value if isinstance(x, PerMember) else x.unsqueeze(0)
    labels = y if y.is_floating_point() else y.reshape(-1, inputs.shape[1])
    if labels.is_floating_point():  # shares of classes: of their mean
        rates = torch.einsum("mc,mnc->mn" if labels.ndim == 3 else "mc,nc->mn", kept, labels.to(kept.dtype))
    else:
        rates = kept.gather(1, labels.clamp(min=0).expand(len(kept), -1))
        rates = torch.where(labels != IGNORED, rates, 1)
    rates = rates.to(inputs.dtype).view(*rates.shape, *[1] * (inputs.ndim - 2))
    return per_member(rates * inputs + (1 - rates) * inputs.roll(1, 1))


def _bare(tree: Any) -> Any:
    """Tensors without the mark of members' own."""
    if isinstance(tree, dict):
        return {name: _bare(value) for name, value in tree.items()}
    return tree.value if isinstance(tree, PerMember) else tree
