"""Metrics of whole validation sets: outputs and targets are kept until all batches are there."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.array.access import flatten, unflatten
from hfta_nb.errors import ArrayWarning, HftaError, MemberError
from hfta_nb.models.metrics import Metric
from hfta_nb.train.batches import Batch
from hfta_nb.train.step import OUTPUT, Scores, Step, measured_whole

MOST_BYTES = 2**26
"""So many bytes of outputs and targets are kept per member. The number does not depend on the machine or on how many
members there are, so that a member alone has the same metrics."""


class WholeSets:
    """The metrics of each member over all batches, each of whose functions is called once.

    Batches that are more than `MOST_BYTES`, or can't be put together because samples have different shapes or an
    output is not one of samples, are taken in parts; a metric is then the mean over the parts, weighted by samples.

    Args:
        metrics: of which those of whole sets are computed.
        step: of the members.
        device: of the members.
    """

    def __init__(self, metrics: Mapping[str, Metric], step: Step, device: torch.device) -> None:
        self.metrics = {name: metric for name, metric in metrics.items() if metric.whole}
        self.step, self.device = step, device
        self._totals = {name: torch.zeros(len(step), dtype=torch.float64) for name in self.metrics}
        self._samples = self._parts = 0
        self._begin()

    def _begin(self) -> None:
        self._kept: list[Batch] = []
        self._bytes = self._size = 0
        self._kind: Any = None

    def record(self, scores: Scores, batch: Batch) -> None:
        """Take the outputs of a batch out of its scores."""
        output = scores.pop(OUTPUT, None)
        if output is None:
            return
        kind, taken = _kind_of(output, batch), _bytes_of(output, batch, len(self.step))
        if self._kept and (kind is None or kind != self._kind or self._bytes + taken > MOST_BYTES):
            self._compute()
        self._kept.append(Batch(_to(output, "cpu"), _to(batch.y, "cpu"), batch.size, batch.own))
        self._kind, self._bytes, self._size = kind, self._bytes + taken, self._size + batch.size

    def computed(self) -> Scores:
        """Every metric over what was taken in, ``[M]``.

        Raises:
            MemberError: a metric can't be computed.
            FamilyError: it is not one number.
        """
        if self._kept:
            self._compute()
        if self._parts > 1 and self.metrics:
            _warn(sorted(self.metrics), self._parts)
        return {name: (total / max(1, self._samples)).to(self.device) for name, total in self._totals.items()}

    @torch.no_grad()
    def _compute(self) -> None:
        """The metrics of what is kept, which is let go."""
        outputs, of_output = _columns([batch.x for batch in self._kept])
        targets, of_target = _columns([batch.y for batch in self._kept])
        own = self._kept[0].own
        for member in range(len(self.step)):
            output = unflatten(of_output, [self._joined(column, member) for column in outputs])
            for name, metric in self.metrics.items():
                # Anew for each, as a function may write into it.
                target = unflatten(of_target, [self._joined(column, member if own else None) for column in targets])
                with self.step.measuring(member, metric.function):
                    value = self._value(name, member, metric, output, target)
                self._totals[name][member] += value.double().cpu() * self._size
        self._samples, self._parts = self._samples + self._size, self._parts + 1
        self._begin()

    def _value(self, name: str, member: int, metric: Metric, output: Any, target: Any) -> Tensor:
        try:
            return measured_whole(name, metric, output, target, self.device)
        except HftaError:
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            raise MemberError(message, where=f"member {member}, metric {name}").of(member) from error

    def _joined(self, column: Sequence[Any], member: int | None) -> Any:
        """A leaf of all batches, for one member."""
        if not isinstance(column[0], Tensor):
            return column[0]
        parts = [value if member is None else value[member] for value in column]
        whole = parts[0].clone() if len(parts) == 1 else torch.cat(parts)
        return whole.to(self.device)


def _columns(trees: Sequence[Any]) -> tuple[list[tuple[Any, ...]], Any]:
    """The leaves of the batches, those of one place together, and how to build a tree of them."""
    flat = [flatten(tree) for tree in trees]
    return list(zip(*(leaves for leaves, _ in flat), strict=True)), flat[0][1]


def _kind_of(output: Any, batch: Batch) -> Any:
    """What batches that can be put together have in common; None where a tensor is not one of samples."""
    found: list[Any] = []
    for tree, axis in ((output, 1), (batch.y, int(batch.own))):
        for leaf in flatten(tree)[0]:
            if not isinstance(leaf, Tensor):
                found.append(repr(leaf))
                continue
            if leaf.ndim <= axis or leaf.shape[axis] != batch.size:
                return None
            found.append((leaf.dtype, tuple(leaf.shape[axis + 1 :])))
    return found


def _bytes_of(output: Any, batch: Batch, members: int) -> int:
    """Of a member's output and target."""
    sizes = [(output, members), (batch.y, members if batch.own else 1)]
    return sum(v.nbytes // n for tree, n in sizes for v in flatten(tree)[0] if isinstance(v, Tensor))


def _to(tree: Any, device: str) -> Any:
    leaves, rebuild = flatten(tree)
    return unflatten(rebuild, [v.to(device) if isinstance(v, Tensor) else v for v in leaves])


def _warn(names: Sequence[str], parts: int) -> None:
    warnings.warn(
        f"metrics {', '.join(names)} are means over {parts} parts of the validation data, not of all of it: outputs of "
        f"its batches are more than {MOST_BYTES >> 20} MiB a member, or have different shapes. Objects of torchmetrics "
        "and hfta_nb.Metric(..., finish=...) have the value of the whole set; hfta_nb.Metric(..., additive=True) says "
        "that the mean is right",
        ArrayWarning,
        stacklevel=2,
    )
