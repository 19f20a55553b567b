"""`array(x)`, `array.losses`, `.sum()` and `.backward()` put off until the last of them, and then one step."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from hfta_nb.eager.blocks import graph_blocks
from hfta_nb.eager.engine import Inputs
from hfta_nb.eager.gradients import Arguments
from hfta_nb.errors import FusionError
from hfta_nb.members import threads
from hfta_nb.members.per_member import per_member
from hfta_nb.members.tree import flatten, unflatten
from hfta_nb.replay.deferred import Forwards, Step, like
from hfta_nb.replay.kinds import room_like, settings, watched
from hfta_nb.replay.node import MODIFIED, SPENT, Run, versions
from hfta_nb.replay.seen_forward import Losses, SeenForward
from hfta_nb.replay.steps import Asked, SeenStep


class GivenTarget(NamedTuple):
    """The target of the losses.

    Attributes:
        given: by the caller, taken apart; None of a tensor alone.
        leaves: of it.
        versions: of these then.
        copied: what they were then.
    """

    given: Inputs | None
    leaves: tuple[Any, ...]
    versions: list[int]
    copied: tuple[Any, ...]

    def standing(self) -> bool:
        """Whether it is as it was."""
        return versions(self.leaves) == self.versions

    def value(self) -> Any:
        """As it was."""
        if self.given is None:
            return self.leaves[0] if self.standing() else self.copied[0].clone()
        return _tree(self.given if self.standing() else _copied(self.given, self.copied))


class Whole(Protocol):
    """What runs all four calls as one `array.backward`."""

    def settled(self, block_size: int, threads: str) -> bool:
        """Whether `backward` runs in this way from now on."""

    def replay(self, step: SeenStep) -> tuple[Any, Any] | None:
        """Losses and output of a step that is replayed, its inputs filled in; None if it must run as ever."""

    def find(self, asked: Asked) -> SeenStep | None:
        """What is known of this kind of `backward`."""

    def backward(self, asked: Asked) -> tuple[Tensor, Any]:
        """Losses and output."""


class Postponing(Forwards, Protocol):
    """The forwards of an array whose calls are put off; see `CapturedForwards`."""

    postponed: Postponed | None
    whole: Whole

    def replay(self, seen: SeenForward, inputs: Inputs, run: Run) -> tuple[Any] | None:
        """The outputs in a tuple; None if this call must run as ever."""


class Postponed(Step):
    """The four calls put off.

    Args:
        forwards: of the array that was called.
        seen: the kind of call.
        inputs: of the call.
        run: computes the outputs as ever.
        how: torch's settings.
    """

    __slots__ = (
        *("_buffers", "_effects", "_given", "_late", "_only", "_over", "_parameters", "_reads", "_rooms", "_run"),
        *("_settings", "_states", "_step", "_target", "_versions", "seen"),
    )

    forwards: Postponing

    def __init__(self, forwards: Postponing, seen: SeenForward, inputs: Inputs, run: Run, how: tuple[Any, ...]) -> None:
        made, step = seen.made, seen.habit.step
        assert made is not None  # as the caller has seen
        super().__init__(forwards, seen.habit)
        state = forwards.state
        self.seen, self._given, self._run, self._reads = seen, inputs, run, seen.reads
        self._parameters = made.learning, state.arenas
        self._versions = [p._version for p in made.learning], versions(inputs.leaves)
        self._states = None if made.halves.program.generators is None else list(state.generators.states)
        self._settings = how
        self._effects = self._states is not None or bool(made.buffers)
        self._target: GivenTarget | None = None
        self._only: tuple[str, ...] | None = None
        self._late: Tensor | None = None
        self._over = False
        # The inputs may be written to before they are looked at, so they are copied to where the step will read them.
        self._step = step if step is not None and step.ready else None
        if self._step is not None and self._step.inputs is not None:
            self._rooms = self._step.inputs.leaves
        else:
            self._rooms = tuple(room_like(v) for v in inputs.leaves)
        for room, value in zip(self._rooms, inputs.leaves, strict=False):
            if isinstance(room, Tensor):
                room.copy_(value)
        self._buffers = made.buffers
        for buffer in self._buffers:  # who looks at one sees what the forward would have written
            self._hide(buffer)
        forwards.postponed = self

    def output(self) -> Any:
        """What `array(x)` returns."""
        if self.habit.structure is None:
            return self._new(0, self.habit.outputs[0])
        return self.seen.told([self._new(i, like) for i, like in enumerate(self.habit.outputs)])

    def losses(self, output: Any, inner: Losses, function: Callable[..., Any], y: Any) -> Tensor:
        """What `array.losses` returns of the output."""
        habit = self.habit
        if not (inner is habit.inner and self._target is None and like(y) == habit.target):
            self.settle()
            return inner.computed(output, y)
        given = None if type(y) is Tensor else Inputs.of(y, len(self.forwards.state))
        leaves = (y,) if given is None else given.leaves
        rooms = self._rooms[len(self._given.leaves) :] or tuple(room_like(v) for v in leaves)
        for room, value in zip(rooms, leaves, strict=True):
            if isinstance(room, Tensor):
                room.copy_(value)
        self._target = GivenTarget(given, leaves, versions(leaves), rooms)
        return self._new("losses", habit.losses)

    def summed(self, losses: Tensor) -> Tensor:
        """Their sum."""
        return self._new("total", self.habit.losses)

    def run(self, only: tuple[str, ...] | None) -> bool:
        """Do all at once; whether that could be done.

        Raises:
            RuntimeError: it has been done, or the model has changed.
        """
        if self._over:
            raise RuntimeError(SPENT)
        if not self._unchanged():
            raise RuntimeError(MODIFIED)
        self._only = only
        if settings() == self._settings:
            found = self._whole()
        else:
            with self._as_then():
                found = self._whole()
        if found is None:
            self.settle()
            return False
        losses, output = found
        if self.habit.structure is None:
            self._give(0, output)
        else:
            for i, leaf in enumerate(flatten(output)[0]):
                self._give(i, leaf)
        self._give("losses", losses)
        self._late = losses  # the sum is seldom looked at
        return True

    def _whole(self) -> tuple[Tensor, Any] | None:
        """Losses and output of `array.backward`; None if that is not what the calls are now."""
        whole, habit, target, only = self.forwards.whole, self.habit, self._target, self._only
        if target is None or not self._as_called(target):
            return None
        self._over, self.forwards.postponed = True, None  # for `backward`, which makes up for what is put off
        self._show()
        try:
            step = self._step
            same = step is not None and step.ready and only == habit.only
            if same and step is not None and whole.settled(step.block_size, step.threads):
                with threads.scope(step.threads):
                    found = whole.replay(step)
                if found is not None:
                    return found
            asked = Asked(habit.whole, (_arguments(self._given), target.value()), True, None, only)
            found = whole.backward(asked)
        except BaseException:
            self._again()
            raise
        running = self.forwards.state.settings
        if whole.settled(running.block_size, running.threads):
            habit.ran(whole.find(asked), only)
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
                remedy="use the output before, or set state.capture = False",
            )
        self._over, self.forwards.postponed = True, None
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
        self._over, self.forwards.postponed = False, self
        for buffer in self._buffers:
            self._hide(buffer)

    def _make_up(self) -> None:
        leaves, rebuild = flatten(self._computed())
        output = unflatten(rebuild, [self._fill(i, leaf) for i, leaf in enumerate(leaves)])
        if self._target is not None:
            assert self.habit.inner is not None  # as there are losses
            losses = self.habit.inner.computed(output, self._target.value())
            total = self._fill("losses", losses).sum()
            self._fill("total", total)

    def _fill(self, name: int | str, computed: Tensor) -> Tensor:
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
        self._over, self.forwards.postponed = True, None
        self.habit.miss()

    def _computed(self) -> Any:
        inputs = self._given
        if versions(inputs.leaves) != self._versions[1]:
            inputs = _copied(inputs, self._rooms)
        replayed = self.forwards.replay(self.seen, inputs, self._run)
        return self._run(inputs, graph_blocks(self.forwards.state)) if replayed is None else replayed[0]

    def _possible(self) -> bool:
        """Whether the calls can still be made up for."""
        return self._unchanged() and self._reads is not None and self._reads.hold()

    def _unchanged(self) -> bool:
        """Whether what the calls depend on is as it was, but for the inputs."""
        state, (parameters, arenas) = self.forwards.state, self._parameters
        same = arenas is state.arenas and [p._version for p in parameters] == self._versions[0]
        return same and (self._states is None or all(map(operator.is_, self._states, state.generators.states)))

    def _as_called(self, target: GivenTarget) -> bool:
        """Whether `array.backward` does now what the calls would have."""
        if not target.standing() or versions(self._given.leaves) != self._versions[1] or watched():
            return False
        return not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in self._parameters[0])

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

    def _new(self, name: int | str, like: Any) -> Tensor:
        return self._mark(name, like.data, self._gone if self._effects else None)

    def _give(self, name: int | str, value: Tensor) -> None:
        tensor = self._unmark(name)
        if tensor is not None:
            tensor.data = value

    def _gone(self, _: Any) -> None:
        """A tensor is no more: if none is, random numbers are still to be drawn, and buffers written."""
        if self._over or sys.is_finalizing() or any(r() is not None for r in self._tensors.values()):
            return
        self._show()
        self.settle() if self._possible() else self.discard()


def _copied(inputs: Inputs, rooms: Sequence[Any]) -> Inputs:
    """The inputs with tensors like those in the rooms."""
    leaves = [v.clone() if isinstance(v, Tensor) else v for v, _ in zip(rooms, inputs.leaves, strict=False)]
    return replace(inputs, leaves=tuple(leaves))


def _tree(inputs: Inputs) -> Any:
    """The inputs as they were given."""
    marked = zip(inputs.leaves, inputs.per_member, strict=True)
    return inputs.structure([per_member(v) if m else v for v, m in marked])


def _arguments(inputs: Inputs) -> Any:
    """The inputs of `array(x)` as `array.backward` takes them."""
    given, named = _tree(inputs)
    if named:
        return Arguments(given, named)
    return given[0] if len(given) == 1 and isinstance(given[0], Tensor) else given
