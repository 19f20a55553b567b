"""Own data, from tensors or arrays."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hfta_nb.data.argument_kinds import KINDS, SHARE
from hfta_nb.data.catalogue_names import known
from hfta_nb.data.items import tensor_of
from hfta_nb.data.labels import are_numbers, beside_mask, check_spread, classes_in, ignored
from hfta_nb.data.order import SPLIT_SEED
from hfta_nb.data.samples import Data, Samples, count, leaves, take, tuple_like
from hfta_nb.errors import DataError
from hfta_nb.errors.border import takes


@takes(DataError, **KINDS, validation=SHARE)
def from_tensors(
    x: Any,
    y: Any,
    x_validation: Any = None,
    y_validation: Any = None,
    *,
    name: str = "own data",
    task: str | None = None,
    validation: float = 0.2,
    num_classes: int | None = None,
) -> Data:
    """Own data, from tensors or arrays.

    Args:
        x, y: inputs ``[N, ...]`` and targets: whole numbers ``[N]`` for classes, else ``[N]`` or ``[N, outputs]``. A
            tuple of tensors or arrays for several positional inputs of the model, a dict for inputs by name. Images of
            bytes (uint8 ``[N, C, H, W]``) stay bytes, and models get them scaled to values between 0 and 1.
        x_validation, y_validation: likewise; by default a part of the training samples is held out.
        name: shown to people.
        task: see `Data`; by default "classification" or "regression", as the targets' type says.
        validation: the share held out, between 0 and 1.
        num_classes: the number of classes, by default the largest label plus one. The label -100 marks a target that
            does not count, as NaN does among targets that are floating-point numbers.

    Targets may have a mask beside them, which is 0 where they do not count: ``{"y": y, "mask": mask}``.

    Raises:
        DataError: lengths differ, there are too few samples, or a label is implausible.
    """
    check_name(name)
    x, y = _samples(x, "x"), _samples(y, "y")
    if x_validation is None:
        (x, y), (xv, yv) = _split(x, y, validation)
    else:
        xv, yv = _samples(x_validation, "x_validation"), _samples(y_validation, "y_validation")
    task = task or usual_task(y)
    for left, right, where in ((x, y, "training"), (xv, yv, "validation")):
        lengths = {len(t) for t in (*leaves(left), *leaves(right))}
        if len(lengths) != 1 or not count(left):
            raise DataError(
                "not one target per input", where=where, got=f"{_lengths(left)} inputs, {_lengths(right)} targets"
            )
    _check_alike(x, xv)
    # The model also needs outputs for a class (or word) that occurs in validation only.
    where = f"{name}, labels" if name != "own data" else "labels"
    facts, held = (facts_of(task, *part, num_classes, where) for part in ((x, y), (xv, yv)))
    labels = [marked_labels(part) for part in (y, yv)]
    if num_classes is None and task in LABELLED and isinstance(labels[0], Tensor) and not labels[0].is_floating_point():
        check_spread([(f"{where} of training", labels[0]), (f"{where} of validation", labels[1])])
    facts |= {k: held[k] for k in ("ignored",) if k in held}
    return Data(name, task, x, y, xv, yv, facts | {k: max(facts[k], held[k]) for k in COUNTED if k in facts})


def _check_alike(x: Samples, xv: Samples, where: str = "x_validation") -> None:
    """Check that a model of the training inputs takes those of validation. Lengths of sequences and sizes of images may
    differ.

    Raises:
        DataError: they are made of other parts, or have other axes, features or channels.
    """
    if isinstance(x, Tensor) and isinstance(xv, Tensor):
        fixed = {2: (1,), 4: (1,)}.get(x.ndim, ()) if x.is_floating_point() or x.ndim == 4 else ()
        if x.ndim != xv.ndim or any(x.shape[axis] != xv.shape[axis] for axis in fixed):
            raise DataError("inputs of another shape than those of training", where=where, got=list(xv.shape),
                            accepted=f"as [N, {', '.join(map(str, x.shape[1:]))}]")  # fmt: skip
        return
    parts = [dict(s) if isinstance(s, dict) else dict(enumerate(s)) if isinstance(s, tuple) else {} for s in (x, xv)]
    if type(x) is not type(xv) or parts[0].keys() != parts[1].keys():
        raise DataError("made of other parts than those of training", where=where, got=list(parts[1]) or "one tensor",
                        accepted=str(list(parts[0]) or "one tensor"))  # fmt: skip
    for key, part in parts[0].items():
        _check_alike(part, parts[1][key], f"{where}[{key!r}]")


def check_name(name: str) -> None:
    """Check that own data does not have the name of a built-in data set.

    Raises:
        DataError: it has.
    """
    if known(name):
        raise DataError("is the name of another data set", where="name", got=name, remedy="choose another one")


def usual_task(y: Samples) -> str:
    """ "classification" or "regression", from the targets' type, and from the loss where that is known."""
    y, _ = beside_mask(y)
    numbers = are_numbers() or not isinstance(y, Tensor) or y.is_floating_point() or y.is_complex()
    return "regression" if numbers else "classification"


def marked_labels(y: Samples) -> Samples:
    """Targets as they are; of class numbers with a mask beside them, the class numbers, `ignored` where it is 0."""
    labels, mask = beside_mask(y)
    if mask is None or not isinstance(labels, Tensor) or labels.is_floating_point():
        return labels
    if len(mask) != len(labels) or labels.numel() % mask.numel():
        raise DataError("not of the shape of the targets", where="mask", got=list(mask.shape),
                        accepted=f"{list(labels.shape)}, or its first axes")  # fmt: skip
    shape = labels.shape if mask.numel() == labels.numel() else (*mask.shape, *[1] * (labels.ndim - mask.ndim))
    return torch.where(mask.reshape(shape) != 0, labels, ignored())


COUNTED = ("num_classes", "out_features", "vocab_size")
"""Facts that are the largest target (or token) number plus one."""


LABELLED = ("classification", "segmentation")
"""Tasks whose targets are class numbers."""


def facts_of(
    task: str, x: Samples, y: Samples, num_classes: int | None = None, where: str = "labels"
) -> dict[str, int]:
    """The facts that follow from shapes and labels.

    Raises:
        DataError: a label is implausible; see `classes_in`.
    """
    facts: dict[str, int] = {}
    if isinstance(x, Tensor):
        facts["in_features"] = int(x[0].numel())
        if x.ndim == 4:
            facts |= {"in_channels": x.shape[1], "image_size": x.shape[-1]}
    y = marked_labels(y)
    if not isinstance(y, Tensor):
        return facts
    if task in LABELLED:
        # Floating-point targets are a probability per class.
        shares = y.is_floating_point() and y.ndim > 1
        classes = y.shape[1] if shares else classes_in(y, where, num_classes)
        facts["num_classes"] = facts["out_features"] = classes
        if not shares and bool((y == ignored()).any()):
            facts["ignored"] = ignored()
    elif task in ("language_model", "masked_language_model") and isinstance(x, Tensor):
        facts = {"vocab_size": max(int(x.max()), int(y.max())) + 1, "context": x.shape[1]}
    elif task == "regression":
        facts["out_features"] = int(y[0].numel())
    return facts


def _lengths(samples: Samples) -> str:
    return " and ".join(str(len(t)) for t in leaves(samples))


def _samples(value: Any, where: str) -> Samples:
    if isinstance(value, tuple) and value:
        return tuple_like(value, [_samples(v, f"{where}[{i}]") for i, v in enumerate(value)])
    if isinstance(value, dict) and value:
        return {k: _samples(v, f"{where}[{k!r}]") for k, v in value.items()}
    return _tensor(value, where)


def _tensor(value: Any, where: str) -> Tensor:
    t = tensor_of(value, where, batched=True)
    if t.is_meta:
        raise DataError("a tensor without values", where=where, got=f"{list(t.shape)} on meta", accepted="samples")
    if t.ndim == 0:
        raise DataError("a single number, not samples", where=where, got=t)
    return t


def check_finite(samples: Samples, where: str, remedy: str, missing: bool = False) -> None:
    """Check that all numbers are finite.

    Args:
        samples: inputs or targets.
        where, remedy: for the error.
        missing: NaN says that a target is missing, and not all of them are.

    Raises:
        DataError: one is infinite, or NaN, or all are missing.
    """
    for t in leaves(samples):
        if not t.is_floating_point() or bool(torch.isfinite(t).all()):
            continue
        if not missing or bool(torch.isinf(t).any()):
            raise DataError("holds infinity" if missing else "holds NaN or infinity", where=where, remedy=remedy)
        if bool(torch.isnan(t).all()):
            raise DataError("has no targets", where=where, got="nothing but NaN, which is a missing target")


def split_rows(total: int, part: float) -> tuple[Tensor, Tensor]:
    """Which samples are for training and which are held out: the same ones each time.

    Raises:
        DataError: there are too few samples, or the share is not between 0 and 1.
    """
    aside = round(total * part)
    if total < 2:
        what = f"can't set samples aside of {total}"
        raise DataError(what, where="validation", accepted="2 or more samples", remedy="pass more data")
    if not 0 < part < 1 or aside < 1 or aside >= total:
        raise DataError("can't set this part aside", where="validation", got=part, accepted="between 0 and 1")
    order = torch.randperm(total, generator=torch.Generator().manual_seed(SPLIT_SEED))
    return order[aside:], order[:aside]


def _split(x: Samples, y: Samples, part: float) -> tuple[tuple[Samples, Samples], tuple[Samples, Samples]]:
    total = count(x)
    kept, held = split_rows(total, part)
    if any(len(t) != total for t in (*leaves(x), *leaves(y))):
        raise DataError("not one target per input", got=f"{_lengths(x)} inputs, {_lengths(y)} targets")
    return (take(x, kept), take(y, kept)), (take(x, held), take(y, held))
