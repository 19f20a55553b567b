"""A step that is made ready once and then only run, for as long as nothing has changed that it depends on."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.access import thread_scope

_grad = operator.attrgetter("grad")
_COMPARED = (type(None), bool, int, float, str, tuple, list)


class BoundStep:
    """The calls of a step.

    Args:
        array: whose step it is.
        groups: the optimizer's, and which of their values count.
        kinds: names of the values.
        gradients: every parameter with the tensor that must be its gradient.
        calls: the step; each takes the members to leave out, on the device, or None.
        skips: whether the calls take such.
    """

    def __init__(
        self,
        array: FusedArray,
        groups: Sequence[Mapping[str, Any]],
        kinds: Sequence[str],
        gradients: Sequence[tuple[nn.Parameter, Tensor | None]],
        calls: Sequence[Callable[[Tensor | None], None]],
        skips: bool,
    ) -> None:
        self.calls, self.skips = tuple(calls), skips
        self.done = 0  # calls of the run under way
        self._array, self._arenas = array, array.arenas
        self._parameters, self._gradients = [p for p, _ in gradients], [grad for _, grad in gradients]
        self._count = len(groups)
        self._values = [(g, n, type(g[n]), copy.deepcopy(g[n])) for g in groups for n in kinds if _plain(g[n])]
        self._whole = len(self._values) == len(groups) * len(kinds)

    def is_bound(self, groups: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the calls are what a step would do now."""
        return self.is_valid() and self.same_values(groups)

    def is_valid(self) -> bool:
        """Whether parameters and gradients lie where they did."""
        if self._array.missing_grads or self._array.arenas is not self._arenas:
            return False
        return all(map(operator.is_, map(_grad, self._parameters), self._gradients))

    def same_values(self, groups: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the hyperparameters are what they were."""
        if not self._whole or len(groups) != self._count:
            return False
        try:
            for group, name, kind, value in self._values:
                now = group.get(name)
                if type(now) is not kind or now != value:
                    return False
        except (ValueError, RuntimeError):  # somebody has put an array into a list
            return False
        return True

    def run(self, skip: Tensor | None) -> None:
        """Step, on the threads that the array's steps run on."""
        with thread_scope(self._array.threads):
            for call in self.calls:
                call(skip)
                self.done += 1
        self.done = 0


def _plain(value: Any) -> bool:
    """Whether a value can be compared at no cost: tensors and numpy's arrays can't."""
    if isinstance(value, tuple | list):
        return all(_plain(v) for v in value)
    return isinstance(value, _COMPARED)
