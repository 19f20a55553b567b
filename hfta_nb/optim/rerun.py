"""Steps with a closure of optimizers of any class, evaluated for all members together.

A member's step is run until it wants an evaluation that is not known, and begun again when it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hfta_nb.optim.member_optimizers import MemberOptimizer
from hfta_nb.optim.resting import EvaluationNeededError, Resting, losses_of


class _Rerun:
    """The step of one member.

    Args:
        optimizer: of the array.
        index: the member.
    """

    def __init__(self, optimizer: MemberOptimizer, index: int) -> None:
        self.optimizer, self.index, self.member = optimizer, index, optimizer.members[index]
        self.rows, self.streams = optimizer._rows[index], optimizer.array.generators
        optimizer._set_grads(index)
        optimizer._pull(index)
        self._memo = {id(p): p for p in self.rows.values()} | {id(self.member): self.member}
        self._before = copy.deepcopy(vars(self.member), dict(self._memo))
        self._values = {n: p.detach().clone() for n, p in self.rows.items()}
        self._grads = self._gradients()
        self._stream = dict(self.streams.states[index])
        self._known: list[tuple[Tensor, dict[str, Tensor | None], Any]] = []

    def run(self) -> bool:
        """Run the step from its beginning; whether it has come to its end. Else it wants an evaluation."""
        vars(self.member).update(copy.deepcopy(self._before, dict(self._memo)))
        for name, p in self.rows.items():
            p.copy_(self._values[name])
        self._set(self._grads)
        self.streams.keep(self.index, self._stream)
        known = iter(self._known)

        def closure() -> Tensor:
            found = next(known, None)
            if found is None:
                raise EvaluationNeededError
            self._set(found[1])
            self.streams.keep(self.index, found[2])
            self.streams.enter(self.index)
            return found[0]

        with self.streams.member(self.index):
            try:
                with self.optimizer._diverging(self.index):
                    self.member.step(closure)  # type: ignore[arg-type]
            except EvaluationNeededError:
                return False
            finally:
                self.optimizer._push(self.index)
        return True

    def learn(self, loss: float, like: Any) -> None:
        """Take the evaluation that was wanted."""
        self.optimizer._set_grads(self.index)
        value = like[self.index].detach() if isinstance(like, Tensor) else torch.tensor(loss)
        self._known.append((value, self._gradients(), dict(self.streams.states[self.index])))

    def _gradients(self) -> dict[str, Tensor | None]:
        return {n: None if p.grad is None else p.grad.clone() for n, p in self.rows.items()}

    def _set(self, grads: dict[str, Tensor | None]) -> None:
        for name, p in self.rows.items():
            grad = grads[name]
            p.grad = None if grad is None else grad.clone()


@torch.no_grad()
def evaluated(optimizer: MemberOptimizer, closure: Callable[[], Any], skip: set[int]) -> Any:
    """Step all members but those in `skip`; what the closure has returned first, None if nobody has called it.

    Raises:
        OptimError: the closure returns something else than one loss per member.
    """
    runs = {i: _Rerun(optimizer, i) for i in range(len(optimizer.members)) if i not in skip}
    resting = {i: Resting(optimizer, i) for i in skip}
    first = None
    while True:
        for i in list(runs):
            if runs[i].run():
                del runs[i]
                resting[i] = Resting(optimizer, i)
        if not runs:
            return first
        with torch.enable_grad():
            losses = closure()
        values = losses_of(losses, len(optimizer.members), f"{type(optimizer).__name__}.step, closure")
        first = losses if first is None else first
        for rest in resting.values():
            rest.restore()
        for i, run in runs.items():
            run.learn(values[i], losses)
