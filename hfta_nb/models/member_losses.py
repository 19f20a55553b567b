"""Losses of `torch.nn.functional` with settings per member."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.engine.array import PerMember, per_member
from hfta_nb.errors import FusionError
from hfta_nb.models.masks import classes_of, mean_of_known, mean_of_labelled, numbers_of


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
            return self._mean(output, target, {})
        if not isinstance(target, Target):
            raise FusionError(
                "a loss with settings per member needs them with the target",
                where=self.function.__name__,
                got=type(target).__name__,
                remedy="call it through array.backward(loss, x, y) or array.evaluate(loss, x, y)",
            )
        return self._mean(output, target.y, target.settings)

    def _mean(self, output: Tensor, target: Any, own: dict[str, Any]) -> Tensor:
        """Over the targets that are known; by torch's own function where no setting is per member."""
        settings = {**self.shared, **own}
        if self.function not in (F.cross_entropy, F.nll_loss):
            numbers, known = numbers_of(target, output, self.function is F.binary_cross_entropy_with_logits)
            losses = self.formula if own else functools.partial(self.function, reduction="none")
            return mean_of_known(losses(output, numbers, **settings), known)
        y = classes_of(target, settings["ignore_index"])
        if own or settings["weight"] is not None or settings.get("label_smoothing"):
            return self.formula(output, y, **settings)
        return mean_of_labelled(self.function, output, y, settings["ignore_index"])

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


# Formulas, of numbers for each entry. Settings may be tensors, and zero needs no special case.


def _cross_entropy(output: Tensor, y: Tensor, *, weight: Any, ignore_index: int, label_smoothing: Any) -> Tensor:
    dim = 1 if output.ndim > 1 else 0
    classes = output.shape[dim]
    logs = F.log_softmax(output, dim)
    smoothing = _as(label_smoothing, logs)
    rates = _rates(weight, logs, dim)
    if y.is_floating_point():
        known = (y == y).all(dim, keepdim=True)
        aim = torch.where(known, y, 0) * (1 - smoothing) + smoothing / classes
        return mean_of_known(-(logs * aim * rates).sum(dim), known.squeeze(dim))
    counts = y != ignore_index
    place = torch.where(counts, y, 0).unsqueeze(dim)
    chosen = torch.where(counts, rates.expand_as(logs).gather(dim, place).squeeze(dim), 0)
    exact = -(torch.where(counts, logs.gather(dim, place).squeeze(dim), 0) * chosen).sum()
    even = -torch.where(counts, (logs * rates).sum(dim), 0).sum()
    return ((1 - smoothing) * exact + smoothing / classes * even) / _some(chosen.sum())


def _nll(output: Tensor, y: Tensor, *, weight: Any, ignore_index: int) -> Tensor:
    dim = 1 if output.ndim > 1 else 0
    counts = y != ignore_index
    place = torch.where(counts, y, 0).unsqueeze(dim)
    chosen = torch.where(counts, _rates(weight, output, dim).expand_as(output).gather(dim, place).squeeze(dim), 0)
    exact = -(torch.where(counts, output.gather(dim, place).squeeze(dim), 0) * chosen).sum()
    return exact / _some(chosen.sum())


def _binary(output: Tensor, y: Tensor, *, weight: Any, pos_weight: Any) -> Tensor:
    positive = 1.0 if pos_weight is None else _as(pos_weight, output)
    losses = (1 - y) * output - (1 + (positive - 1) * y) * F.logsigmoid(output)
    return losses if weight is None else losses * _as(weight, output)


def _huber(output: Tensor, y: Tensor, *, delta: Any) -> Tensor:
    limit = _as(delta, output)
    size = (output - y).abs()
    return torch.where(size <= limit, 0.5 * size * size, limit * (size - 0.5 * limit))


def _smooth_l1(output: Tensor, y: Tensor, *, beta: Any) -> Tensor:
    limit = _as(beta, output)
    size = (output - y).abs()
    safe = torch.where(limit > 0, limit, 1.0)  # a zero limit has no square part, nor a gradient of it
    return torch.where(size < limit, 0.5 * size * size / safe, size - 0.5 * limit)


def _as(value: Any, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(like.dtype)
    return torch.full((), float(value), dtype=like.dtype, device=like.device)


def _some(weights: Tensor) -> Tensor:
    """The sum of the weights that losses are divided by; 1 where no target counts."""
    return torch.where(weights > 0, weights, 1)


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
