"""LBFGS."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import torch
from torch import Tensor

from hfta_nb.engine.array import not_compiled
from hfta_nb.errors import OptimError
from hfta_nb.optim.hooks import with_step_hooks
from hfta_nb.optim.hyperparameters import COUNT, LR, NUMBER, HostColumn, Kind
from hfta_nb.optim.member_optimizers import MemberOptimizer
from hfta_nb.optim.resting import EvaluationNeededError, Resting, losses_of
from hfta_nb.optim.torch_arguments import TorchOptimizer


class LBFGS(TorchOptimizer, MemberOptimizer):
    """L-BFGS, each hyperparameter with one value, or one per member.

    Args:
        params: an array, or its parameters, in one group.
        lr: learning rate, at least 0.
        max_iter: iterations of one step.
        max_eval: evaluations of one step; None: five quarters of `max_iter`.
        tolerance_grad, tolerance_change: where a step ends early.
        history_size: how many past updates are remembered.
        line_search_fn: None or "strong_wolfe".

    Raises:
        OptimError: a value is out of bounds, a list has not one value per member, or there are several groups.

    ``step(closure)`` needs the closure: it computes gradients (``array.backward``) and returns the losses ``[M]``. The
    members ask for their evaluations together, so that a step calls it as often as the member that asks most. What a
    member has not asked for leaves it as it was: its values, gradients, buffers and random streams.

    Source: `torch.optim.LBFGS`, which runs here, one member at a time.
    """

    torch_class = torch.optim.LBFGS
    kinds: ClassVar[Mapping[str, Kind]] = {
        "lr": LR,
        "max_iter": COUNT,
        "max_eval": Kind("a whole number, or None", words=(None,), convert=int),
        "tolerance_grad": NUMBER,
        "tolerance_change": NUMBER,
        "history_size": Kind("a whole number, at least 1", lambda v: v >= 1 and v == int(v), convert=int),
        "line_search_fn": Kind('None or "strong_wolfe"', words=(None, "strong_wolfe"), convert=str),
    }

    def check(self, values: Mapping[str, HostColumn], parameters: Mapping[str, Tensor], where: str) -> None:
        if self.param_groups:
            raise OptimError("has one group of parameters only", where=where)

    def _values_of(self, values: Mapping[str, HostColumn], index: int) -> dict[str, Any]:
        return self.torch_values(super()._values_of(values, index))

    def torch_values(self, values: dict[str, Any]) -> dict[str, Any]:
        most = values["max_eval"]
        return {**values, "max_eval": values["max_iter"] * 5 // 4 if most is None else most}

    @not_compiled
    @with_step_hooks
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, skip: Sequence[int] | Tensor = ()) -> Any:
        """See `ArrayOptimizer.step`; the closure is needed.

        Raises:
            OptimError: there is no closure. An exception of the closure leaves values and state as before the step.
        """
        if closure is None:
            raise OptimError("needs a closure", where="LBFGS.step", accepted="a function that returns the losses [M]")
        self.take_written()
        self._sync_values(self.read())
        for i in range(len(self.members)):
            self._pull(i)
        before = [a.data.clone() for a in self.array.arenas], [_snapshot(m) for m in self.members]
        try:
            left = skip.nonzero().flatten().tolist() if isinstance(skip, Tensor) else skip
            return self._step(closure, set(left))
        except BaseException:
            for arena, data in zip(self.array.arenas, before[0], strict=True):
                arena.data.copy_(data)
            for member, state in zip(self.members, before[1], strict=True):
                _reinstate(member, state)
            raise
        finally:
            self._clear_grads()

    def _step(self, closure: Callable[[], Any], skip: set[int]) -> Tensor:
        running = {i: _steps(m) for i, m in enumerate(self.members) if i not in skip}
        resting = {i: Resting(self, i) for i in skip}
        for run in running.values():
            next(run)
        first = None
        while running:
            with torch.enable_grad():
                losses = closure()
            values = losses_of(losses, len(self.members), "LBFGS.step, closure")
            first = losses if first is None else first
            for rest in resting.values():
                rest.restore()
            for i in list(running):
                self._set_grads(i)
                goes_on = False
                with suppress(StopIteration), self._diverging(i):
                    running[i].send(float(values[i]))
                    goes_on = True
                if not goes_on:
                    del running[i]
                    resting[i] = Resting(self, i)
                self._push(i)
        return first  # type: ignore[return-value]


def _steps(optimizer: torch.optim.Optimizer) -> Generator[None, float, None]:
    """One step of torch's LBFGS, that stops wherever it wants an evaluation and is sent the loss.

    Each iteration is a step of torch's with ``max_iter=1``. Within a line search it is begun again with the evaluations
    known so far; between iterations torch's conditions for going on are checked here.
    """
    group = optimizer.param_groups[0]
    wanted = {k: group[k] for k in ("max_iter", "max_eval")}
    params = group["params"]
    loss = yield
    grads = _grads(params)
    state = optimizer.state[params[0]]
    total = state.get("func_evals", 0)
    count = 1
    try:
        for iteration in range(1, wanted["max_iter"] + 1):
            if iteration == 1 and _flat(grads, params).abs().max() <= group["tolerance_grad"]:
                state.setdefault("n_iter", 0)
                break
            group["max_iter"], group["max_eval"] = 1, wanted["max_eval"] - count + 1
            known = yield from _iterate(optimizer, params, (loss, grads))
            state = optimizer.state[params[0]]
            if _flat(grads, params).dot(state["d"]) > -group["tolerance_change"]:
                break
            if group["line_search_fn"] is not None:
                count += len(known) - 1
                loss, grads = next((v, g) for x, v, g in reversed(known) if all(map(_same, x, params)))
            elif iteration != wanted["max_iter"]:
                loss = yield
                grads = _grads(params)
                count += 1
            moved = state["d"].mul(state["t"]).abs().max()
            small = _flat(grads, params).abs().max() <= group["tolerance_grad"] or moved <= group["tolerance_change"]
            if count >= wanted["max_eval"] or small or abs(loss - state["prev_loss"]) < group["tolerance_change"]:
                break
    finally:
        group.update(wanted)
        state["func_evals"] = total + count


_Known = list[tuple[list[Tensor], float, list[Tensor | None]]]


def _iterate(
    optimizer: torch.optim.Optimizer, params: list[Tensor], start: tuple[float, list[Tensor | None]]
) -> Generator[None, float, _Known]:
    """One iteration; returns what was evaluated: where, and the loss and gradients there."""
    origin = [p.clone() for p in params]
    known: _Known = [(origin, *start)]
    before = _snapshot(optimizer)
    while True:
        answers = iter(known)

        def closure(answers: Iterator[Any] = answers) -> float:
            found = next(answers, None)
            if found is None:
                raise EvaluationNeededError
            for p, g in zip(params, found[2], strict=True):
                p.grad = g
            return float(found[1])

        try:
            optimizer.step(closure)
            return known
        except EvaluationNeededError:
            place = [p.clone() for p in params]
            loss = yield
            known.append((place, loss, _grads(params)))
            _reinstate(optimizer, before)
            for p, value in zip(params, origin, strict=True):
                p.copy_(value)


def _snapshot(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of torch's LBFGS; of its tensors only the last gradient is written to."""
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    copied: dict[str, Any] = {k: list(v) if isinstance(v, list) else v for k, v in state.items()}
    if copied.get("prev_flat_grad") is not None:
        copied["prev_flat_grad"] = copied["prev_flat_grad"].clone()
    return copied


def _reinstate(optimizer: torch.optim.Optimizer, snapshot: dict[str, Any]) -> None:
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    state.clear()
    state.update({k: list(v) if isinstance(v, list) else v for k, v in snapshot.items()})
    if state.get("prev_flat_grad") is not None:
        state["prev_flat_grad"] = state["prev_flat_grad"].clone()


def _same(x: Tensor, y: Tensor) -> bool:
    return bool(torch.isclose(x, y, rtol=0, atol=0, equal_nan=True).all())


def _grads(params: Sequence[Tensor]) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in params]


def _flat(grads: Sequence[Tensor | None], params: Sequence[Tensor]) -> Tensor:
    """As torch's LBFGS lays them out: in a row, complex ones as pairs, zero where there is none."""
    rows = [torch.zeros_like(p) if g is None else g for g, p in zip(grads, params, strict=True)]
    return torch.cat([(torch.view_as_real(r) if r.is_complex() else r).reshape(-1) for r in rows])
