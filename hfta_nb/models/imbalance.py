"""Remedies for imbalanced classes, as axes: each is one value per member of an array.

They act in training alone. The validation loss is the plain one, so that members with different remedies compare.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.data import AnyData
from hfta_nb.data.labels import IGNORED
from hfta_nb.engine.array import PerMember, per_member
from hfta_nb.engine.array.access import Arguments
from hfta_nb.errors import GridError, StudyError
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

INPUT = "input"
"""The value of the axis `weaken_at` for the model's input."""

SHARES = "weaken_shares"
"""The keyword with which a model gets what weakening leaves of each sample, and the attribute of the layer that has it
while a batch goes through."""

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
_SAMPLING = AxisSpec(
    "sampling",
    "str",
    "shuffle",
    ("shuffle", "balanced"),
    help='How samples are drawn: "balanced" with replacement, all classes equally often, as many as there are.',
    group=GROUP,
)
_OF_SAMPLES = (
    _SAMPLING,
    _axis("weaken", "float", 0.0, "Major Feature Weakening: how much inputs of large classes are mixed.", 1.0),
    _axis("weaken_gamma", "float", 1.0, "How fast weakening grows with the size of a class."),
    _axis("weaken_at", "str", INPUT, 'What is mixed: the "input", or the output of the layer of this name.'),
)

AXES: dict[str, AxisSpec] = {axis.name: axis for axis in (*_LOSSES, *_OF_SAMPLES)}
"""All of them, by name; those of the loss first."""


def axes_for(task: str | None) -> dict[str, AxisSpec]:
    """The axes that suit a task; weakening and balanced sampling are for samples of one class each."""
    axes = {"classification": AXES.values(), "segmentation": _LOSSES}.get(task or "", ())
    return {axis.name: axis for axis in axes}


def used(row: Mapping[str, Any]) -> bool:
    """Whether a study gives such axes."""
    return COUNTS in row


def form(row: Mapping[str, Any]) -> tuple[bool, bool, str]:
    """What members of one array have in common: whether losses have settings, whether features may be mixed, where."""
    return used(row), bool({"weaken", "weaken_gamma"} & row.keys()), row.get("weaken_at", INPUT)


def layer_of(module: nn.Module, row: Mapping[str, Any]) -> nn.Module | None:
    """The layer whose output is mixed; None where nothing is, or the input.

    Raises:
        GridError: there is no such layer.
    """
    _, mixes, name = form(row)
    layers: dict[str, nn.Module | None] = {**dict(module.named_modules()), INPUT: None}
    if mixes and not layers.keys() >= {name}:
        raise GridError("no such layer", where="weaken_at", got=name, accepted=", ".join(filter(None, layers)))
    return layers[name] if mixes else None


def let_mix(module: nn.Module, row: Mapping[str, Any]) -> nn.Module:
    """The module, which mixes the output of the layer that the axis `weaken_at` names where it is given `SHARES`."""
    layer = layer_of(module, row)
    if layer is not None:
        setattr(layer, SHARES, None)
        module.register_forward_pre_hook(functools.partial(_take_shares, form(row)[2]), with_kwargs=True)
        layer.register_forward_hook(_mixed)
    return module


def _take_shares(name: str, module: nn.Module, given: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    setattr(module.get_submodule(name), SHARES, named.get(SHARES))
    return given, {key: value for key, value in named.items() if key != SHARES}


def _mixed(layer: nn.Module, given: Any, output: Any) -> Any:
    shares = getattr(layer, SHARES)
    if shares is None:
        return output
    if not isinstance(output, Tensor) or not output.ndim or output.shape[0] != shares.shape[0]:
        raise StudyError("gives no features of samples that could be mixed", where="weaken_at",
                         accepted="a layer whose output is a tensor [N, ...]")  # fmt: skip
    rates = shares.to(output.dtype).view(-1, *[1] * (output.ndim - 1))
    return rates * output + (1 - rates) * output.roll(1, 0)


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
    counts = data.class_counts(values.get("fold"))
    weights = checked_weights(given.get(_WEIGHTS.name, "none"), data.facts.get("num_classes"))
    needs = [name for name in ("tau", "weaken") if given.get(name)]
    needs += [_WEIGHTS.name] if weights in _NAMED[1:] else []
    needs += [_SAMPLING.name] if given.get(_SAMPLING.name) == "balanced" else []
    if counts is None and needs:
        raise GridError(f"the classes of {data.name} are not counted: it is read batch by batch", where=needs[0],
                        remedy="give tensors, or class_weight as a list")  # fmt: skip
    if not given.keys() - {_SAMPLING.name}:  # nothing that a step does
        return given
    inputs, mixed = data.examples[0], given.get("weaken") and given.get("weaken_at", INPUT) == INPUT
    if mixed and not (isinstance(inputs, Tensor) and (inputs.is_floating_point() or inputs.ndim == 4)):
        raise GridError("mixes inputs, which must be one tensor of numbers", where="weaken", got=given["weaken"],
                        remedy='weaken_at="the name of a layer", or weaken=0')  # fmt: skip
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
    _, mixes, at = form(row)
    if mixes:
        strength = float(row.get("weaken") or 0.0), float(row.get("weaken_gamma", 1.0))
        found["kept" if at == INPUT else SHARES] = shares_kept(*strength, counts)
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
    """Inputs of which those of large classes are mixed with their neighbours in the mini-batch, labels kept; or inputs
    with `SHARES`, for a layer that mixes.

    ``h_i <- l(y_i) h_i + (1 - l(y_i)) h_(i-1)``: the order of a mini-batch is random, so the neighbour is any sample.

    Args:
        x: ``[N, *features]``, or per member ``[M, N, *features]``.
        y: class numbers, or a dict of them and a mask.
        settings: with a leading M; "kept", or `SHARES`, is l, by class.
    """
    if SHARES in settings:
        return Arguments(x, {SHARES: per_member(_rates(settings[SHARES], y))})
    if "kept" not in settings:
        return x
    inputs = x.value if isinstance(x, PerMember) else x.unsqueeze(0)
    rates = _rates(settings["kept"], y).to(inputs.dtype)
    rates = rates.view(*rates.shape, *[1] * (inputs.ndim - 2))
    return per_member(rates * inputs + (1 - rates) * inputs.roll(1, 1))


def _rates(kept: Tensor, target: Any) -> Tensor:
    """What weakening leaves of each sample, ``[M, N]``."""
    own = any(isinstance(leaf, PerMember) for leaf in (target.values() if isinstance(target, dict) else (target,)))
    y = classes_of(_bare(target))
    labels = y if y.is_floating_point() else y.reshape(len(kept) if own else 1, -1)
    if labels.is_floating_point():  # shares of classes: of their mean
        rates: Tensor = torch.einsum("mc,mnc->mn" if labels.ndim == 3 else "mc,nc->mn", kept, labels.to(kept.dtype))
    else:
        rates = kept.gather(1, labels.clamp(min=0).expand(len(kept), -1))
        rates = torch.where(labels != IGNORED, rates, 1)
    return rates


def _bare(tree: Any) -> Any:
    """Tensors without the mark of members' own."""
    if isinstance(tree, dict):
        return {name: _bare(value) for name, value in tree.items()}
    return tree.value if isinstance(tree, PerMember) else tree
