"""Losses by task. A loss sees ONE member's output and the target and returns a scalar, the mean over the mini-batch."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.array import PerMember, per_member
from hfta_nb.engine.array.access import HeldLoss as HeldLoss
from hfta_nb.engine.array.access import attach as attach
from hfta_nb.engine.array.access import held as held
from hfta_nb.engine.array.access import submodule_of as submodule_of
from hfta_nb.errors import FamilyError, FusionError
from hfta_nb.models.targets import as_numbers, shaped_as

Loss = Callable[[Any, Any], Tensor]

IGNORED = -100
"""A class number that says "no target here" (torch's own default)."""


PREDICTIONS = ("logits", "out", "prediction", "predictions", "pred", "preds", "output", "y_hat", "y_pred")
"""Names under which models return what they predict: Hugging Face's, torchvision's, and what people write."""


def prediction(output: Any) -> Tensor:
    """The prediction in a model's output: the output itself, or the first entry of a tuple or list.

    For an output with names (a dict, a dataclass, a named tuple, a Hugging Face output): the entry under one of
    `PREDICTIONS`, or the only tensor unless its name contains "hidden".

    Raises:
        FamilyError: no entry is known to be the prediction.
    """
    named = _named(output)
    if named is None:
        first: Tensor = output[0] if isinstance(output, tuple | list) else output
        return first
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    found = next((tensors[name] for name in PREDICTIONS if name in tensors), None)
    if found is None and len(tensors) == 1 and not any("hidden" in name for name in tensors):
        (found,) = tensors.values()
    if found is None and isinstance(output, tuple):
        found = output[0]
    if found is None:
        raise FamilyError(
            "no prediction in what the model returns",
            got=list(named),
            accepted="a tensor, a tuple with it first, or logits by name",
            remedy="name it logits, or give a loss (and metrics) of your own: Study(..., loss=..., metrics=...)",
        )
    return found


def _named(output: Any) -> Mapping[str, Any] | None:
    """The entries of an output that has names; None of one that has none."""
    if isinstance(output, Mapping):
        return output
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    return output._asdict() if isinstance(output, tuple) and hasattr(output, "_asdict") else None


def classes_last(output: Tensor, target: Tensor) -> Tensor:
    """Logits with the classes in the last axis: ``[N, classes, H, W]`` (the target is ``[N, H, W]``) turned round."""
    return output.movedim(1, -1) if target.ndim == 3 else output


def _classes(output: Any, target: Tensor) -> Tensor:
    """Cross entropy, torch's own: ``[N, classes, ...]``; the target may be shares of classes of the same shape."""
    found = prediction(output)
    return F.cross_entropy(found, shaped_as(target, found))


def _each(output: Any, target: Tensor) -> Tensor:
    """Cross entropy of every point ``[N, P, classes]``, pixel ``[N, classes, H, W]`` or token ``[N, T, vocab]``."""
    logits = classes_last(prediction(output), target)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def _masked(output: Any, target: Tensor) -> Tensor:
    """Cross entropy over the targets that are not `IGNORED`; 0 where all are."""
    logits = prediction(output)
    flat = target.reshape(-1)
    total = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), flat, ignore_index=IGNORED, reduction="sum")
    return total / (flat != IGNORED).sum().clamp(min=1)


def _squared(output: Any, target: Tensor) -> Tensor:
    found = prediction(output)
    return F.mse_loss(found, shaped_as(as_numbers(target, found), found))


def _clicks(output: Any, target: Tensor) -> Tensor:
    logits = prediction(output)
    return F.binary_cross_entropy_with_logits(logits, shaped_as(target.to(logits.dtype), logits))


BY_TASK: dict[str, Loss] = {
    "classification": _classes,
    "regression": _squared,
    "segmentation": _each,
    "language_model": _each,
    "masked_language_model": _masked,
    "click": _clicks,
}


def for_task(task: str) -> Loss:
    """The usual loss of a task.

    Raises:
        FamilyError: there is none.
    """
    if task not in BY_TASK:
        raise FamilyError("no loss is known for this task", where="task", got=task, accepted=", ".join(BY_TASK))
    return BY_TASK[task]


NAMED = {
    **{name: name for name in ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss")},
    **{"mse": "mse_loss", "l1": "l1_loss", "mae": "l1_loss", "huber": "huber_loss", "smooth_l1": "smooth_l1_loss"},
    **{"nll": "nll_loss", "bce": "binary_cross_entropy_with_logits"},
    "binary_cross_entropy_with_logits": "binary_cross_entropy_with_logits",
}
"""Names of losses, and the function of `torch.nn.functional` that they mean."""
_OF_CLASSES = ("cross_entropy", "nll_loss")


class NamedLoss:
    """A loss of `torch.nn.functional`, of a model's `prediction`.

    Args:
        name: one of `NAMED`.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = NAMED[name]
        self._function: Callable[..., Tensor] = getattr(F, self.__name__)

    def __call__(self, output: Any, target: Any) -> Tensor:
        found = prediction(output)
        aim = target if self.__name__ in _OF_CLASSES else as_numbers(target, found)
        return self._function(found, shaped_as(aim, found))

    def __repr__(self) -> str:
        return self.__name__


_TORCHS: dict[str, Loss] = {f"{F.__name__}.{name}": getattr(F, name) for name in NAMED.values()}
"""Functions that a study is given as they are, by the names under which they are saved."""


def name_of(loss: Any) -> str:
    """The name from which `checked` makes this loss; empty if there is none."""
    if isinstance(loss, NamedLoss):
        return loss.__name__
    return next((name for name, function in _TORCHS.items() if function is loss), "")


def checked(loss: Any, where: str = "loss") -> Loss:
    """The loss that was given, or named.

    Raises:
        FamilyError: it is neither a function nor one of `NAMED`.
    """
    if isinstance(loss, str) and loss in NAMED:
        return NamedLoss(loss)
    if isinstance(loss, str) and loss in _TORCHS:
        return _TORCHS[loss]
    if callable(loss) and not isinstance(loss, type):
        return loss  # type: ignore[no-any-return]
    near = difflib.get_close_matches(loss, NAMED, 1) if isinstance(loss, str) else []
    remedy = f"make one: {loss.__name__}()" if isinstance(loss, type) else f"did you mean {near[0]}?" if near else ""
    accepted = f"a callable of (output, target), or one of {', '.join(NAMED)}"
    raise FamilyError("not a loss", where=where, got=loss, accepted=accepted, remedy=remedy)


# Losses with per-member settings.


class Target(NamedTuple):
    """A target with each member's loss settings; made by `MemberLoss.target_per_member`."""

    y: Any
    settings: dict[str, Any]


class MemberLoss:
    """A loss of `torch.nn.functional` some of whose settings are per member.

    Args:
        function: torch's; used where no setting is per member, and by `of`.
        formula: the same from tensors, where torch wants numbers: ``formula(output, y, **settings)``.
        settings: each one value, or `hfta_nb.per_member`.

    Raises:
        FusionError: a setting is out of bounds.
    """

    def __init__(self, function: Callable[..., Tensor], formula: Callable[..., Tensor], **settings: Any) -> None:
        self.function, self.formula = function, formula
        self.shared = {k: v for k, v in settings.items() if not isinstance(v, PerMember)}
        self.own = {k: torch.as_tensor(v.value) for k, v in settings.items() if isinstance(v, PerMember)}
        self.own = {k: v.double() if v.is_floating_point() else v for k, v in self.own.items()}

    def target_per_member(self, y: Any) -> Any:
        """The target together with each member's settings; called by `FusedArray.backward` and `evaluate`."""
        if not self.own or isinstance(y, Target):
            return y
        device = y.device if isinstance(y, Tensor) else y.value.device if isinstance(y, PerMember) else None
        return Target(y, {k: per_member(v.to(device)) for k, v in self.own.items()})

    def __call__(self, output: Tensor, target: Any) -> Tensor:
        if not self.own:
            return self.function(output, target, **self.shared)
        if not isinstance(target, Target):
            raise FusionError(
                "a loss with settings per member needs them with the target",
                where=self.function.__name__,
                got=type(target).__name__,
                remedy="call it through array.backward(loss, x, y) or array.evaluate(loss, x, y)",
            )
        return self.formula(output, target.y, **self.shared, **target.settings)

    def of(self, index: int) -> Callable[[Tensor, Tensor], Tensor]:
        """The loss of one member, as torch computes it."""
        return functools.partial(self.function, **self.shared, **{k: _plain(v[index]) for k, v in self.own.items()})

    def __repr__(self) -> str:
        return f"{self.function.__name__}({', '.join([*self.shared, *(f'{k} per member' for k in self.own)])})"


def cross_entropy(*, weight: Any = None, ignore_index: int = -100, label_smoothing: Any = 0.0) -> MemberLoss:
    """Cross entropy of logits ``[N, C, *rest]`` with class numbers, or with probabilities of the same shape.

    Args:
        weight: of the classes, ``[C]``, or per member ``[M, C]``.
        ignore_index: a class number that does not count.
        label_smoothing: from 0 to 1; one value, or per member ``[M]``.

    Raises:
        FusionError: a value is out of bounds.

    Example:
        >>> from hfta_nb import fuse
        >>> array = fuse([torch.nn.Linear(4, 3) for _ in range(2)])
        >>> loss = cross_entropy(label_smoothing=per_member([0.0, 0.1]), weight=per_member(torch.ones(2, 3)))
        >>> array.backward(loss, torch.ones(5, 4), torch.zeros(5, dtype=torch.long)).shape
        torch.Size([2])

    Source: `torch.nn.functional.cross_entropy` (reduction "mean"), member for member.
    """
    _bounded("label_smoothing", label_smoothing, 0.0, 1.0)
    settings = {"weight": _marked("weight", weight), "label_smoothing": _marked("label_smoothing", label_smoothing)}
    return MemberLoss(F.cross_entropy, _cross_entropy, ignore_index=ignore_index, **settings)


def nll_loss(*, weight: Any = None, ignore_index: int = -100) -> MemberLoss:
    """Negative log likelihood of log-probabilities ``[N, C, *rest]``; arguments as for `cross_entropy`.

    Source: `torch.nn.functional.nll_loss` (reduction "mean"), member for member.
    """
    return MemberLoss(F.nll_loss, _nll, ignore_index=ignore_index, weight=_marked("weight", weight))


def binary_cross_entropy_with_logits(*, weight: Any = None, pos_weight: Any = None) -> MemberLoss:
    """Binary cross entropy of logits.

    Args:
        weight: of the entries; a tensor that broadcasts to the target, or per member one with M in front.
        pos_weight: of positive entries; likewise.

    Source: `torch.nn.functional.binary_cross_entropy_with_logits` (reduction "mean"), member for member.
    """
    settings = {"weight": _marked("weight", weight), "pos_weight": _marked("pos_weight", pos_weight)}
    return MemberLoss(F.binary_cross_entropy_with_logits, _binary, **settings)


def huber_loss(*, delta: Any = 1.0) -> MemberLoss:
    """Squared error up to `delta` (above 0; one value, or per member ``[M]``), absolute error beyond.

    Raises:
        FusionError: a value is out of bounds.

    Source: `torch.nn.functional.huber_loss` (reduction "mean"), member for member.
    """
    _bounded("delta", delta, 0.0, float("inf"), above=True)
    return MemberLoss(F.huber_loss, _huber, delta=_marked("delta", delta))


def smooth_l1_loss(*, beta: Any = 1.0) -> MemberLoss:
    """Squared error up to `beta` (at least 0; one value, or per member ``[M]``), absolute error beyond.

    Raises:
        FusionError: a value is out of bounds.

    Source: `torch.nn.functional.smooth_l1_loss` (reduction "mean"), member for member.
    """
    _bounded("beta", beta, 0.0, float("inf"))
    return MemberLoss(F.smooth_l1_loss, _smooth_l1, beta=_marked("beta", beta))


# Formulas. Settings may be tensors, and zero needs no special case.


def _cross_entropy(output: Tensor, y: Tensor, *, weight: Any, ignore_index: int, label_smoothing: Any) -> Tensor:
    dim = 1 if output.ndim > 1 else 0
    classes = output.shape[dim]
    logs = F.log_softmax(output, dim)
    smoothing = _as(label_smoothing, logs)
    rates = _rates(weight, logs, dim)
    if y.is_floating_point():
        aim = y * (1 - smoothing) + smoothing / classes
        return -(logs * aim * rates).sum() / (logs.numel() / classes)
    counts = y != ignore_index
    place = torch.where(counts, y, 0).unsqueeze(dim)
    chosen = torch.where(counts, rates.expand_as(logs).gather(dim, place).squeeze(dim), 0)
    exact = -(torch.where(counts, logs.gather(dim, place).squeeze(dim), 0) * chosen).sum()
    even = -torch.where(counts, (logs * rates).sum(dim), 0).sum()
    return ((1 - smoothing) * exact + smoothing / classes * even) / chosen.sum()


def _nll(output: Tensor, y: Tensor, *, weight: Any, ignore_index: int) -> Tensor:
    dim = 1 if output.ndim > 1 else 0
    counts = y != ignore_index
    place = torch.where(counts, y, 0).unsqueeze(dim)
    chosen = torch.where(counts, _rates(weight, output, dim).expand_as(output).gather(dim, place).squeeze(dim), 0)
    return -(torch.where(counts, output.gather(dim, place).squeeze(dim), 0) * chosen).sum() / chosen.sum()


def _binary(output: Tensor, y: Tensor, *, weight: Any, pos_weight: Any) -> Tensor:
    positive = 1.0 if pos_weight is None else _as(pos_weight, output)
    losses = (1 - y) * output - (1 + (positive - 1) * y) * F.logsigmoid(output)
    return (losses if weight is None else losses * _as(weight, output)).mean()


def _huber(output: Tensor, y: Tensor, *, delta: Any) -> Tensor:
    limit = _as(delta, output)
    size = (output - y).abs()
    return torch.where(size <= limit, 0.5 * size * size, limit * (size - 0.5 * limit)).mean()


def _smooth_l1(output: Tensor, y: Tensor, *, beta: Any) -> Tensor:
    limit = _as(beta, output)
    size = (output - y).abs()
    safe = torch.where(limit > 0, limit, 1.0)  # a zero limit has no square part, nor a gradient of it
    return torch.where(size < limit, 0.5 * size * size / safe, size - 0.5 * limit).mean()


def _as(value: Any, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(like.dtype)
    return torch.full((), float(value), dtype=like.dtype, device=like.device)


def _rates(weight: Any, logs: Tensor, dim: int) -> Tensor:
    """Of the classes, so that they multiply `logs`."""
    if weight is None:
        return torch.ones((), dtype=logs.dtype, device=logs.device)
    shape = [-1 if axis == dim else 1 for axis in range(logs.ndim)]
    rates: Tensor = weight.to(logs.dtype).view(shape)
    return rates


def _marked(name: str, value: Any) -> Any:
    """A list is per member."""
    if isinstance(value, list):
        value = per_member(value)
    if isinstance(value, PerMember) and not isinstance(value.value, Tensor):
        try:
            return per_member(torch.tensor(value.value, dtype=torch.float64))
        except (TypeError, ValueError) as error:
            raise FusionError("not numbers", where=name, got=value.value) from error
    return value


def _bounded(name: str, value: Any, low: float, high: float, *, above: bool = False) -> None:
    marked = _marked(name, value)
    numbers = marked.value.tolist() if isinstance(marked, PerMember) else [marked]
    for i, number in enumerate(numbers):
        if not low <= number <= high or (above and number == low):
            where = f"{name}, member {i}" if isinstance(marked, PerMember) else name
            accepted = f"above {low:g}" if above else f"from {low:g} to {high:g}"
            raise FusionError("out of bounds", where=where, got=number, accepted=accepted)


def _plain(value: Tensor) -> Any:
    """A setting as torch's function takes it."""
    return value.item() if value.ndim == 0 else value
