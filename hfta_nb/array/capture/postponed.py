"""`array(x)`, `array.losses`, `.sum()` and `.backward()` put off until the last of them, and then one step."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hfta_nb.array import threads
from hfta_nb.array.capture.deferred import Step, like
from hfta_nb.array.capture.kinds import settings, watched
from hfta_nb.array.capture.node import MODIFIED, SPENT, Run
from hfta_nb.array.capture.steps import Asked
from hfta_nb.array.engine import Inputs
from hfta_nb.array.tree import Rebuild
from hfta_nb.errors import FusionError

if TYPE_CHECKING:
    from hfta_nb.array.capture.forward import SeenForward
    from hfta_nb.array.fused import FusedArray


class Postponed(Step):
    """The four calls put off.

    Args:
        array: that was called.
        seen: the kind of call.
        tensors: the inputs, shared by all members.
        rebuild: from these to the arguments.
        run: computes the outputs as ever.
    """

    __slots__ = (
        *("_buffers", "_effects", "_given", "_late", "_over", "_parameters", "_reads", "_rebuild", "_rooms", "_run"),
        *("_settings", "_states", "_step", "_target", "_versions", "seen"),
    )

    def __init__(
        self, array: FusedArray, seen: SeenForward, tensors: Sequence[Tensor], rebuild: Rebuild, run: Run
    ) -> None:
        made, step = seen.made, seen.habit.step
        assert made is not None  # as the caller has seen
        super().__init__(array, seen.habit)
        self.seen, self._given, self._rebuild, self._run, self._reads = seen, tensors, rebuild, run, seen.reads
        self._parameters = made.learning, array.arenas
        self._versions = [p._version for p in made.learning], [v._version for v in tensors]
        self._states = None if made.halves.program.generators is None else list(array.generators.states)
        self._settings = settings()
        self._effects = self._states is not None or bool(made.buffers)
        self._target: tuple[Tensor, int, Tensor] | None = None
        self._late: Tensor | None = None
        self._over = False
        # The inputs may be written to before they are looked at, so they are copied to where the step will read them.
        self._step = step if step is not None and step.ready else None
        if self._step is not None and self._step.inputs is not None:
            self._rooms = self._step.inputs.leaves
        else:
            self._rooms = (*(torch.empty_like(v) for v in tensors), None)
        for room, value in zip(self._rooms, tensors, strict=False):
            room.copy_(value)
        self._buffers = made.buffers
        for buffer in self._buffers:  # who looks at one sees what the forward would have written
            self._hide(buffer)
        array._forwards.postponed = self

    def output(self) -> Tensor:
        """What `array(x)` returns."""
        return self._new("output", self.habit.likes[0])

    def losses(self, output: Tensor, inner: FusedArray, function: Callable[..., Any], y: Any) -> Tensor:
        """What `array.losses` returns of the output."""
        habit = self.habit
        if not (inner is habit.inner and self._target is None and like(y) == habit.target):
            self.settle()
            return self.array.losses(function, output, y)
        room = self._rooms[-1]
        self._target = y, y._version, y.clone() if room is None else room.copy_(y)
        return self._new("losses", habit.likes[1])

    def summed(self, losses: Tensor) -> Tensor:
        """Their sum."""
        return self._new("total", self.habit.likes[1])

    def run(self) -> bool:
        """Do all at once; whether that could be done.

        Raises:
            RuntimeError: it has been done, or the model has changed.
        """
        if self._over:
            raise RuntimeError(SPENT)
        if not self._unchanged():
            raise RuntimeError(MODIFIED)
        if settings() == self._settings:
            found = self._whole()
        else:
            with self._as_then():
                found = self._whole()
        if found is None:
            self.settle()
            return False
        losses, output = found
        self._give("output", output)
        self._give("losses", losses)
        self._late = losses  # the sum is seldom looked at
        return True

    def _whole(self) -> tuple[Tensor, Tensor] | None:
        """Losses and output of `array.backward`; None if that is not what the calls are now."""
        array, habit, target = self.array, self.habit, self._target
        if target is None or not self._as_called(target):
            return None
        self._over, array._forwards.postponed = True, None  # for `backward`, which makes up for what is put off
        self._show()
        try:
            if self._step is not None and self._step.ready:
                with threads.scope(array.settings.threads):
                    found = array._steps.run(self._step)
                if found is not None:
                    return found
            x = self._given[0] if len(self._given) == 1 else tuple(self._given)
            found = array.backward(habit.whole, x, target[0], has_aux=True)  # type: ignore[arg-type, assignment]
        except BaseException:
            self._again()
            raise
        habit.ran(array._steps.find(Asked(habit.whole, (x, target[0]), True, None, None)))
        return found

    def settle(self) -> None:
        """Make up for the calls.

        Raises:
            FusionError: a parameter or a random stream has changed since.
        """
        if self._over:
            if self._late is not None:
                self._give("total", self._late.sum())
            return
        self._show()
        if not self._possible():
            raise FusionError(
                "the output was left to be computed with the backward, but since then the model has changed",
                where="array(x)",
                remedy="use the output before, or set array.capture = False",
            )
        self._over, self.array._forwards.postponed = True, None
        try:
            with self._as_then():
                self._make_up()
        except BaseException:
            self._again()
            raise
        self.habit.miss()

    def _show(self) -> None:
        for buffer in self._buffers:
            self._bare(buffer)

    def _again(self) -> None:
        """After an error all is to be done yet."""
        self._over, self.array._forwards.postponed = False, self
        for buffer in self._buffers:
            self._hide(buffer)

    def _make_up(self) -> None:
        output = self._fill("output", self._computed())
        if self._target is not None:
            y, version, copied = self._target
            assert self.habit.inner is not None
            loss = self.habit.inner._skeleton.__dict__["function"]
            losses = self.array.losses(loss, output, y if y._version == version else copied.clone())
            total = self._fill("losses", losses).sum()
            self._fill("total", total)

    def _fill(self, name: str, computed: Tensor) -> Tensor:
        """The tensor that the caller has, as part of the graph; what was computed if the caller has none."""
        tensor = self._unmark(name)
        if tensor is None:
            return computed
        tensor.data = torch.empty_like(computed, requires_grad=False)
        return tensor.copy_(computed)

    def wanted(self) -> bool:
        """Whether it makes a difference that the calls are made up for."""
        return self._effects or any(r() is not None for r in self._tensors.values())

    def discard(self) -> None:
        """Leave it at that."""
        self._show()
        self._over, self.array._forwards.postponed = True, None
        self.habit.miss()

    def _computed(self) -> Tensor:
        given = tuple(self._given)
        if [v._version for v in given] != self._versions[1]:
            given = tuple(room.clone() for room, _ in zip(self._rooms, given, strict=False))
        inputs = Inputs(given, (False,) * len(given), self._rebuild)
        replayed = self.array._forwards.replay(self.seen, inputs, self._run)
        found: Tensor = self._run(inputs, self.array._blocks.graph()) if replayed is None else replayed[0]
        return found

    def _possible(self) -> bool:
        """Whether the calls can still be made up for."""
        return self._unchanged() and self._reads is not None and self._reads.hold()

    def _unchanged(self) -> bool:
        """Whether what the calls depend on is as it was, but for the inputs."""
        array, (parameters, arenas) = self.array, self._parameters
        same = arenas is array.arenas and [p._version for p in parameters] == self._versions[0]
        return same and (self._states is None or all(map(operator.is_, self._states, array.generators.states)))

    def _as_called(self, target: tuple[Tensor, int, Tensor]) -> bool:
        """Whether `array.backward` does now what the calls would have."""
        return (
            target[0]._version == target[1]
            and [v._version for v in self._given] == self._versions[1]
            and not watched()
            and not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in self._parameters[0])
        )

    @contextmanager
    def _as_then(self) -> Iterator[None]:
        """With the settings of autograd and autocast with which the calls were made."""
        before = self._settings
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            for kind, (on, dtype) in zip(("cpu", "cuda"), before[3] or ((False, None), (False, None)), strict=True):
                if torch.is_autocast_enabled(kind) or on:
                    stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=on))
            yield

    def _new(self, name: str, like: Tensor) -> Tensor:
        return self._mark(name, like.data, self._gone if self._effects else None)

    def _give(self, name: str, value: Tensor) -> None:
        tensor = self._unmark(name)
        if tensor is not None:
            tensor.data = value

    def _gone(self, _: Any) -> None:
        """A tensor is no more: if none is, random numbers are still to be drawn, and buffers written."""
        if self._over or sys.is_finalizing() or any(r() is not None for r in self._tensors.values()):
            return
        self._show()
        self.settle() if self._possible() else self.discard()
