"""Where a program's kernels are chosen by time, and the switches that this needs between its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hfta_nb.array.capture.kernels import KERNELS
from hfta_nb.array.capture.record import Call, Place
from hfta_nb.array.strategy import precision
from hfta_nb.array.strategy.formulations import PRODUCTS, Operand
from hfta_nb.array.strategy.measuring import Choice, choose, write


class Chooser:
    """Chooses for one program.

    Args:
        on: choose; else every call stays what it is.
        device: of the program's tensors.

    Attributes:
        choices: made so far, each kind once.
    """

    def __init__(self, on: bool, device: torch.device) -> None:
        self.on, self.device = on, device
        self.choices: dict[str, Choice] = {}
        self._before = self._now = precision.get()
        self._wanted = self._before

    def best(self, call: Call, called: Callable[..., Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """What to call for a kernel: `called`, or what does the same faster; `switches` belongs before it.

        Args:
            call: as recorded.
            called: takes the arguments of the call.
            kwargs: in place of the call's.
        """
        indifferent = call.function in KERNELS and call.function not in PRODUCTS
        self._wanted = self._now if indifferent else self._before
        if not self.on or call.draws:
            return called
        args = [_operand(a) for a in call.args]
        choice = choose(call.function, called, args, {k: _operand(v) for k, v in kwargs.items()}, self.device)
        if choice is None:
            return called
        self.choices[choice.what] = choice
        if choice.chosen.setting is not None:
            self._wanted = choice.chosen.setting
        return choice.chosen.make(called)

    def switches(self) -> list[Callable[[], Any]]:
        """Steps before the kernel chosen last."""
        if self._wanted == self._now:
            return []
        self._now = self._wanted
        return [precision.switch(self._now)]

    def done(self) -> str | None:
        """Keep what was measured; the setting to be put back after each run, None where none changes."""
        if self.choices:
            write(self.device)
        switched = any(c.chosen.setting is not None for c in self.choices.values())
        return self._before if switched else None


def _operand(value: Any) -> Any:
    if isinstance(value, Place):
        return Operand(value.size, value.stride, value.dtype)
    if isinstance(value, Tensor):
        return Operand(tuple(value.shape), value.stride(), value.dtype)
    if isinstance(value, list | tuple):
        return [_operand(v) for v in value]
    return value
