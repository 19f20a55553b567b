"""Losses of existing outputs, which are computed, recorded and replayed like a model without parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from hfta_nb.engine.array.tensor_storage import take
from hfta_nb.engine.broadcasts import called
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.current_member import current
from hfta_nb.engine.eager.gradients import scalar, target_of
from hfta_nb.engine.eager.handlers import install
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.eager.user_warnings import warn
from hfta_nb.engine.members.identity import identity
from hfta_nb.engine.members.per_member import PerMember, per_member
from hfta_nb.engine.members.tree import flatten, tensor_map, versions
from hfta_nb.engine.replay.calls import Calls
from hfta_nb.errors import FusionError

_MOST = 8
"""The most losses whose recordings are kept."""


class OwnLoss(nn.Module):
    """A loss in the form of a model: without tensors, and the function is called beside it."""


class LossCalls:
    """Computes the losses of one function for every member.

    Args:
        function: computes the loss from one member's output and the target.
        outer: the calls of the array that the losses belong to.
    """

    def __init__(self, function: Callable[..., Any], outer: Calls) -> None:
        self.outer, self.function = outer, function
        self._checked = False
        state = ArrayState(outer.state.generators)
        state.functions, state.called = outer.state.functions, (function,)
        state.sums_reported = True  # what members share is an input of the model, of which the array tells
        take(state, OwnLoss(), {}, {})
        self.calls = Calls(state, outer.helpers)
        state.settings.strategy = outer.state.settings.strategy
        install(state)
        self.take_over()

    def take_over(self) -> None:
        """Take over the settings of the array."""
        settings, state = self.outer.state.settings, self.calls.state
        state.capture = self.outer.state.capture
        state.settings.fast_rng = state.engine.fast_rng = settings.fast_rng

    def computed(self, output: Any, y: Any) -> Tensor:
        """The losses of outputs.

        Args:
            output, y: of `FusedArray.losses`; y includes each member's settings of the loss.
        """
        calls, members = self.calls, len(self.calls.state)
        plain = isinstance(output, Tensor) and isinstance(y, Tensor) and output.ndim and len(output) == members
        if plain:
            call = calls.forward((PerMember(output), y), self._loss, Inputs((output, y), (True, False), tuple))
        else:
            call = calls.forward((marked(output), y), self._loss)
        if self._checked:
            return calls.run(call)  # type: ignore[no-any-return]
        before = self._marks(output)
        error: Exception | None = None
        try:
            losses = calls.run(call)
        except Exception as failure:
            error = failure
        self._check(before, self._marks(output), error)
        self._checked = True
        return losses  # type: ignore[no-any-return]

    def _marks(self, output: Any) -> tuple[list[int], list[Any]]:
        """What a loss must not change: the outputs, and the gradients of the array's parameters."""
        grads = [p.grad for p in self.outer.state.tensors.parameters()]
        return versions(flatten(output)[0]), [(id(g), 0 if g is None else g._version) for g in grads]

    def _check(self, before: Any, now: Any, error: Exception | None) -> None:
        """See that the first call of the loss has only computed.

        Raises:
            FusionError: it has written into the outputs, which are the members' together, or called a backward.
        """
        what = [
            (before[0] != now[0], "writes into the outputs that it gets", "write o = o / 2 in place of o /= 2"),
            (before[1] != now[1], "calls backward itself", "return a loss, and call losses.sum().backward()"),
        ]
        for changed, description, remedy in what:
            if changed:
                raise FusionError(
                    f"the loss {description}",
                    where="the loss of array.losses",
                    remedy=f"{remedy}; array.backward takes such a loss",
                ) from error
        if error is not None:
            raise error

    def _loss(self, module: nn.Module, given: tuple[Any, Any]) -> Tensor:
        output, target = given
        with current(None, self.outer.state, self.calls.state.engine.watching):
            return scalar(called(self.function, output, target))


class OwnLosses:
    """The implementation of `FusedArray.losses`.

    Args:
        calls: of the array that the losses belong to; they draw random numbers from its streams.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self._made: dict[Any, LossCalls] = {}
        self._last: tuple[Callable[..., Any], LossCalls] | None = None
        self._warned = False  # a gradient of losses was looked at

    def __call__(self, function: Callable[..., Any], outputs: Any, y: Any) -> Tensor:
        target = target_of(function, y)
        losses = self._of(function).computed(outputs, target)
        if not self._warned and losses.requires_grad:
            losses.register_hook(self._warn_of_mean)  # type: ignore[no-untyped-call]
        return losses

    def _warn_of_mean(self, grads: Tensor) -> None:
        """Warn, once, about a mean over members, which divides each member's gradient by their number."""
        members = len(grads)
        if self._warned or members < 2:
            return
        self._warned = True
        if bool((grads == 1 / members).all()):
            text = (
                f"each of the {members} members' losses is divided by {members}, as by losses.mean(), and so is its "
                "gradient: take losses.sum() to train members as they train alone"
            )
            warn(text)

    def __iter__(self) -> Iterator[LossCalls]:
        return iter(self._made.values())

    def clear(self) -> None:
        """Discard all recordings."""
        self._made.clear()
        self._last = None

    def _of(self, function: Callable[..., Any]) -> LossCalls:
        last = self._last
        if last is not None and last[0] is function and last[1].calls.state.capture is self.calls.state.capture:
            return last[1]
        key = identity(function)
        found = self._made.get(key)
        if found is None:
            while len(self._made) >= _MOST:
                del self._made[next(iter(self._made))]
            found = self._made[key] = LossCalls(function, self.calls)
        found.take_over()
        self._last = function, found
        return found


def marked(outputs: Any) -> Any:
    """Outputs of an array as inputs of another: each tensor has one entry per member."""
    if isinstance(outputs, Tensor | PerMember):
        return per_member(outputs)
    return tensor_map(per_member, outputs)
