"""Metrics that are kept for each member by itself, from batch to batch: torchmetrics' objects and functions, and
whatever `vmap` can't run.

The members' predictions come out of the array, and each member's own accumulator takes its own: what is computed is
what the metric gives for that member alone. It costs a loop over the members in Python.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hfta_nb.errors import FamilyError, MemberError

PACKAGE = "torchmetrics"


class Accumulator(Protocol):
    """What is kept of one metric of one member."""

    def update(self, prediction: Tensor, target: Any) -> None:
        """Take in a batch: prediction ``[N, ...]``, target ``[N, ...]``."""

    def compute(self) -> Any:
        """The metric over everything since the beginning: a scalar."""

    def state(self) -> dict[str, Any]:
        """All that is needed to carry on: tensors, lists of tensors, numbers."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take what `state` gave."""


Factory = Callable[[torch.device], Accumulator]
"""Makes a fresh accumulator for a member, on a device."""


class OfObject:
    """A copy of a `torchmetrics.Metric` in its first state."""

    def __init__(self, metric: Any, device: torch.device) -> None:
        self.metric = metric.clone().to(device)
        self.metric.reset()

    def update(self, prediction: Tensor, target: Any) -> None:
        several = type(self.metric).__name__.startswith("Multiclass")
        self.metric.update(prediction, _largest(target) if several else target)

    def compute(self) -> Any:
        return self.metric.compute()

    def state(self) -> dict[str, Any]:
        return {"states": dict(self.metric.metric_state), "updates": self.metric.update_count}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.metric.reset()
        for name, value in state["states"].items():
            there = self.metric.device
            moved = [v.to(there) for v in value] if isinstance(value, list) else value.to(there)
            setattr(self.metric, name, moved)
        self.metric._update_count = int(state["updates"])


class OfFunction:
    """The mean over samples of a function of a batch."""

    def __init__(self, function: Callable[[Any, Any], Any], device: torch.device) -> None:
        self.function = function
        self.total, self.samples = torch.zeros((), dtype=torch.float64, device=device), 0

    def update(self, prediction: Tensor, target: Any) -> None:
        several = _options(self.function).get("task") == "multiclass"
        value = self.function(prediction, _largest(target) if several else target)
        self.total = self.total + value * len(prediction)
        self.samples += len(prediction)

    def compute(self) -> Any:
        return self.total / max(1, self.samples)

    def state(self) -> dict[str, Any]:
        return {"total": self.total, "samples": self.samples}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.total, self.samples = state["total"].to(self.total.device), int(state["samples"])


def _options(function: Any) -> dict[str, Any]:
    """What a `functools.partial` gives by name."""
    return dict(function.keywords) if isinstance(function, functools.partial) else {}


def _largest(target: Any) -> Any:
    """Of shares of classes ``[N, classes]``, as mixing images makes them, the class with the largest."""
    shares = isinstance(target, Tensor) and target.is_floating_point() and target.ndim > 1
    return target.argmax(1) if shares else target


def of_torchmetrics(name: str, metric: Any) -> tuple[Factory, bool] | None:
    """How a metric of torchmetrics is accumulated, and whether more of it is better; None where it is not one.

    Args:
        name: for errors.
        metric: a `torchmetrics.Metric`, or a function of `torchmetrics.functional` (or a `functools.partial` of one),
            which is taken batch by batch.

    Raises:
        FamilyError: it is a collection of several.
    """
    if isinstance(metric, type) and _is_of(metric, "Metric"):
        raise FamilyError("a class", where=name, got=metric, remedy=f"make one: {metric.__name__}(...)")
    if _is_of(type(metric), "MetricCollection"):
        raise FamilyError("several metrics", where=name, got=list(metric), remedy="give each of them by its own name")
    if _is_of(type(metric), "Metric"):
        return functools.partial(OfObject, metric), metric.higher_is_better is not False
    function = metric
    while isinstance(function, functools.partial):
        function = function.func
    if str(getattr(function, "__module__", "")).startswith(f"{PACKAGE}.functional"):
        return functools.partial(OfFunction, metric), _more_is_better(function)
    return None


def _is_of(kind: type, name: str) -> bool:
    return any(base.__name__ == name and base.__module__.startswith(PACKAGE) for base in kind.__mro__)


def _more_is_better(function: Any) -> bool:
    """As the class says that computes the same."""
    import torchmetrics

    name = function.__name__.replace("_", "").lower()
    kinds = {n.lower(): getattr(torchmetrics, n) for n in torchmetrics.__all__}
    found = kinds.get(name) or next((kind for n, kind in kinds.items() if n.endswith(name)), None)
    return getattr(found, "higher_is_better", True) is not False


class Accumulators:
    """The accumulators of all metrics that have one, ``[members]`` each.

    Args:
        factories: by metric.
        members: M.
        device: of the members.
    """

    def __init__(self, factories: Mapping[str, Factory], members: int, device: torch.device) -> None:
        self.factories, self.members, self.device = dict(factories), members, device
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.kept = {n: [make(self.device) for _ in range(self.members)] for n, make in self.factories.items()}

    def record(self, scores: Mapping[str, Tensor], y: Any, own: bool) -> None:
        """Take in a batch.

        Args:
            scores: of a step; under a metric's name are the predictions ``[M, N, ...]``.
            y: the targets ``[N, ...]``, or ``[M, N, ...]`` where `own`.
            own: whether members have targets of their own.

        Raises:
            MemberError: a metric can't take a member's predictions.
        """
        for name, kept in self.kept.items():
            for i, (accumulator, prediction) in enumerate(zip(kept, scores[name], strict=True)):
                target = _of_member(y, i) if own else y
                try:
                    accumulator.update(prediction, target)
                except Exception as error:
                    raise _failed(name, i, error) from error

    def computed(self) -> dict[str, Tensor]:
        """Every metric over what was taken in, ``[M]``.

        Raises:
            MemberError: a metric can't be computed.
            FamilyError: it is not one number.
        """
        return {name: torch.stack([self._value(name, i, a) for i, a in enumerate(k)]) for name, k in self.kept.items()}

    def _value(self, name: str, member: int, accumulator: Accumulator) -> Tensor:
        try:
            found = accumulator.compute()
        except Exception as error:
            raise _failed(name, member, error) from error
        many = isinstance(found, Mapping | Sequence)
        value = None if many else torch.as_tensor(found, dtype=torch.float64, device=self.device)
        if value is None or value.numel() != 1:
            got = type(found).__name__ if value is None else tuple(value.shape)
            raise FamilyError("a metric that is not one number", where=name, got=got, accepted="a scalar")
        return value.reshape(())

    def select(self, keep: Sequence[int]) -> None:
        """Go on with these members."""
        self.members = len(keep)
        self.kept = {name: [kept[i] for i in keep] for name, kept in self.kept.items()}

    def state(self) -> dict[str, Any]:
        return {name: [a.state() for a in kept] for name, kept in self.kept.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for name, kept in self.kept.items():
            for accumulator, value in zip(kept, state[name], strict=True):
                accumulator.load_state(value)


def _of_member(y: Any, member: int) -> Any:
    if isinstance(y, tuple):
        return tuple(t[member] for t in y)
    return {k: t[member] for k, t in y.items()} if isinstance(y, dict) else y[member]


def _failed(name: str, member: int, error: Exception) -> MemberError:
    return MemberError(f"{type(error).__name__}: {error}", where=f"member {member}, metric {name}")
