"""Metrics that each member accumulates separately: torchmetrics objects and functions, and metrics that `vmap` can't
run.

Each member's accumulator is updated with that member's predictions, so the value is the one that the metric gives for
the member alone. It costs a Python loop over the members.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from hfta_nb.engine.broadcasts import called
from hfta_nb.errors import FamilyError, HftaError, MemberError
from hfta_nb.errors.user_frames import described

PACKAGE = "torchmetrics"


class Accumulator(Protocol):
    """The accumulated state of one metric of one member."""

    def update(self, prediction: Tensor, target: Any) -> None:
        """Add a batch: prediction ``[N, ...]``, target ``[N, ...]``."""

    def compute(self) -> Any:
        """The metric over everything since the beginning: a scalar."""

    def state(self) -> dict[str, Any]:
        """The state needed to resume: tensors, lists of tensors, numbers."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""


class Still(Accumulator, Protocol):
    """An accumulator that can keep its memory in place, as a captured step needs it."""

    @property
    def still(self) -> bool:
        """Whether it does."""

    def hold(self) -> list[Tensor] | None:
        """From now on, `update` and `reset` change these tensors in place; None where they can't."""

    def reset(self) -> None:
        """Begin anew."""


Factory = Callable[[torch.device], Accumulator]
"""Makes a fresh accumulator for a member, on a device."""


class OfObject:
    """A copy of a `torchmetrics.Metric` in its first state."""

    def __init__(self, metric: Any, device: torch.device) -> None:
        self.metric = metric.clone().to(device)
        self.metric.reset()
        self._buffers: dict[str, Tensor] = {}

    def update(self, prediction: Tensor, target: Any) -> None:
        several = type(self.metric).__name__.startswith("Multiclass")
        before = self._notes() if self._buffers else None
        try:
            with _unchecked(self.metric, prediction):
                self.metric.update(prediction, _largest(target) if several else target)
        finally:
            self._restore_storage()
        if before is not None and before != self._notes():  # it notes more than its states: that can't be captured
            self._buffers = {}

    @property
    def still(self) -> bool:
        """Whether `update` works on the same memory always, and on nothing else."""
        return bool(self._buffers)

    def compute(self) -> Any:
        if self._buffers:  # a captured step leaves no trace on the host
            self.metric._computed, self.metric._update_count = None, max(1, self.metric.update_count)
        return self.metric.compute()

    def hold(self) -> list[Tensor] | None:
        states = dict(self.metric.metric_state)
        single = len(list(self.metric.modules())) == 1  # else it has other metrics within
        if not states or not single or not all(isinstance(value, Tensor) for value in states.values()):
            return None  # it keeps all predictions, say
        self._buffers = {name: value.clone() for name, value in states.items()}
        self._restore_storage()
        return list(self._buffers.values())

    def reset(self) -> None:
        self.metric.reset()
        self._restore_storage()

    def _restore_storage(self) -> None:
        """Copy tensors that torchmetrics has replaced into their old memory."""
        for name, buffer in self._buffers.items():
            made = getattr(self.metric, name)
            if made is not buffer:
                setattr(self.metric, name, buffer)
                buffer.copy_(made)

    def _notes(self) -> dict[str, Any]:
        """The object's attributes besides its states and its count of updates."""
        own = {*self._buffers, "_update_count", "_computed", "_cache", "_forward_cache"}
        return {k: id(v) if isinstance(v, Tensor) else copy.copy(v) for k, v in vars(self.metric).items()
                if k not in own and isinstance(v, Tensor | int | float | str | list | None)}  # fmt: skip

    def state(self) -> dict[str, Any]:
        return {"states": dict(self.metric.metric_state), "updates": self.metric.update_count}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._buffers = {}
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
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.samples = torch.zeros((), dtype=torch.int64, device=device)

    def update(self, prediction: Tensor, target: Any) -> None:
        several = _options(self.function).get("task") == "multiclass"
        value = self.function(prediction, _largest(target) if several else target)
        self.total.add_(value * len(prediction))
        self.samples.add_(len(prediction))

    def compute(self) -> Any:
        return self.total / self.samples.clamp(min=1)

    still = True

    def hold(self) -> list[Tensor] | None:
        return [self.total, self.samples]

    def reset(self) -> None:
        self.total.zero_()
        self.samples.zero_()

    def state(self) -> dict[str, Any]:
        return {"total": self.total, "samples": self.samples}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.total.copy_(state["total"])
        self.samples.fill_(int(state["samples"]))


@contextmanager
def _unchecked(metric: Any, prediction: Tensor) -> Iterator[None]:
    """Skip validation during a capture, because validation reads values; earlier steps have validated them."""
    checks = getattr(metric, "validate_args", None)
    if not checks or not prediction.is_cuda or not torch.cuda.is_current_stream_capturing():
        yield
        return
    metric.validate_args = False
    try:
        yield
    finally:
        metric.validate_args = checks


def _options(function: Any) -> dict[str, Any]:
    """What a `functools.partial` gives by name."""
    return dict(function.keywords) if isinstance(function, functools.partial) else {}


def _largest(target: Any) -> Any:
    """Of shares of classes ``[N, classes]``, as mixing images makes them, the class with the largest."""
    shares = isinstance(target, Tensor) and target.is_floating_point() and target.ndim > 1
    return target.argmax(1) if shares else target


def of_torchmetrics(name: str, metric: Any) -> Factory | None:
    """How a metric of torchmetrics is accumulated; None if it is not one.

    Args:
        name: for errors.
        metric: a `torchmetrics.Metric`, or a function of `torchmetrics.functional` (or a `functools.partial` of one),
            which is taken batch by batch.

    Raises:
        FamilyError: it is a class.
    """
    if isinstance(metric, type) and _is_of(metric, "Metric"):
        raise FamilyError("a class", where=name, got=metric, remedy=f"make one: {metric.__name__}(...)")
    if _is_of(type(metric), "Metric"):
        return functools.partial(OfObject, metric)
    function = metric
    while isinstance(function, functools.partial):
        function = function.func
    if str(getattr(function, "__module__", "")).startswith(f"{PACKAGE}.functional"):
        return functools.partial(OfFunction, metric)
    return None


def collected(metric: Any) -> dict[str, Any] | None:
    """The metrics of a `torchmetrics.MetricCollection`, by name with its prefix and postfix; None of anything else."""
    return dict(metric.items()) if _is_of(type(metric), "MetricCollection") else None


def is_of_function(factory: Factory | None) -> bool:
    """Whether a function is what is taken, which any part of the data can be given to."""
    return isinstance(factory, functools.partial) and factory.func is OfFunction


def _is_of(kind: type, name: str) -> bool:
    return any(base.__name__ == name and base.__module__.startswith(PACKAGE) for base in kind.__mro__)


class Accumulators:
    """The accumulators of all metrics that have one, ``[members]`` each.

    Args:
        factories: by metric.
        members: M.
        device: of the members.
    """

    def __init__(self, factories: Mapping[str, Factory], members: int, device: torch.device) -> None:
        self.factories, self.members, self.device = dict(factories), members, device
        self._held: list[Tensor] | None = None
        self.reset()

    def hold(self) -> bool:
        """From now on, work on the same memory always (`tensors`); False where one of them can't."""
        held: list[Tensor] = []
        self._held = None
        for accumulator in (a for kept in self.kept.values() for a in kept):
            tensors = accumulator.hold() if hasattr(accumulator, "hold") else None
            if tensors is None:
                return False
            held += tensors
        self._held = held
        return True

    @property
    def still(self) -> bool:
        """Whether `record` works on the same memory always."""
        each = (a for kept in self.kept.values() for a in kept)
        return self._held is not None and all(cast(Still, a).still for a in each)

    def tensors(self) -> list[Tensor]:
        """What `record` changes, where it always works on the same memory."""
        return list(self._held or ())

    def reset(self) -> None:
        """Begin anew."""
        if self._held is not None and self.still:
            for kept in self.kept.values():
                for accumulator in kept:
                    cast(Still, accumulator).reset()
            return
        self.kept: dict[str, list[Accumulator]] = {
            name: [make(self.device) for _ in range(self.members)] for name, make in self.factories.items()
        }

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
                    called(accumulator.update, prediction, target, f"metric {name}", self.factories[name])
                except HftaError:
                    raise
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
            got = type(found).__name__
            raise FamilyError(
                "a metric that is not one number",
                where=f"metric {name}",
                got=got if value is None else f"a tensor {list(value.shape)}",
                accepted="one number per member",
                remedy='ask torchmetrics for a mean over classes, average="macro"; or give each number a name of its '
                f'own, by a function of the whole set: metrics={{"{name}_0": lambda output, y: m(output, y)[0], ...}}',
            )
        return value.reshape(())

    def select(self, keep: Sequence[int]) -> None:
        """Go on with these members."""
        self.members = len(keep)
        for name, kept in self.kept.items():  # a member that is there twice has two
            self.kept[name] = [copy.deepcopy(kept[i]) if i in keep[:n] else kept[i] for n, i in enumerate(keep)]
        if self._held is not None:
            self.hold()

    def state(self) -> dict[str, Any]:
        return {name: [a.state() for a in kept] for name, kept in self.kept.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for name, kept in self.kept.items():
            for accumulator, value in zip(kept, state[name], strict=True):
                accumulator.load_state(value)


def _of_member(y: Any, member: int) -> Any:
    if isinstance(y, tuple):
        parts = [_of_member(t, member) for t in y]
        return type(y)(*parts) if hasattr(y, "_fields") else tuple(parts)
    return {k: _of_member(t, member) for k, t in y.items()} if isinstance(y, dict) else y[member]


def _failed(name: str, member: int, error: Exception) -> MemberError:
    line = described(error)
    what = f"{type(error).__name__}: {error}" + (f"; {line}" if line else "")
    return MemberError(what, where=f"member {member}, metric {name}").of(member)
