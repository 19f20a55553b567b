"""Losses of outputs that the caller has, which are computed, recorded and replayed as a model without parameters is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hfta_nb.array.capture import calls
from hfta_nb.array.capture.deferred import settled, step_of
from hfta_nb.array.capture.kinds import identity
from hfta_nb.array.engine import Call, Inputs
from hfta_nb.array.gradients import call_module, target_of
from hfta_nb.array.per_member import PerMember, per_member
from hfta_nb.array.tree import flatten, tensor_map
from hfta_nb.errors import FusionError

if TYPE_CHECKING:
    from hfta_nb.array.fused import FusedArray

_MOST = 8
"""Losses whose recordings are kept."""


class OwnLoss(nn.Module):
    """A loss in the place of a model.

    Args:
        function: from one member's output and the target to its loss.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["function"] = function  # what it has of parameters and buffers is shared by all members

    def value(self, output: Any, target: Any) -> Tensor:
        """One member's loss.

        Raises:
            FusionError: it is no scalar.
        """
        return scalar(self.__dict__["function"](output, target))


class OwnLosses:
    """What `FusedArray.losses` runs.

    Args:
        array: whose members the losses are of; they draw their random numbers from its streams.
    """

    def __init__(self, array: FusedArray) -> None:
        self.array = array
        self._made: dict[Any, FusedArray] = {}
        self._last: tuple[Callable[..., Any], FusedArray] | None = None

    def __call__(self, function: Callable[..., Any], outputs: Any, y: Any) -> Tensor:
        array = self._of(function)
        y = target_of(function, y)
        leaves = [outputs] if isinstance(outputs, Tensor) else flatten(outputs)[0]
        step = step_of(leaves[0]) if leaves else None
        if step is not None and step.array is self.array and step.holds(outputs):
            return step.losses(outputs, array, function, y)
        settled(leaves)
        return self.computed(array, outputs, y)

    def computed(self, array: FusedArray, outputs: Any, y: Any) -> Tensor:
        """The losses of plain outputs.

        Args:
            array: what computes them, as `Step` knows it.
            outputs, y: of `losses`, y with each member's settings of the loss beside it.
        """
        self.array.flush()
        plain = isinstance(outputs, Tensor) and isinstance(y, Tensor)
        if plain:
            again = array._forwards.again((outputs, y), (True, False), tuple, partial(calls.over, array, _loss))
            if again is not None:
                return again  # type: ignore[no-any-return]
        given = _marked(outputs), y
        inputs = Inputs.of(given, len(array))

        def call(module: nn.Module, leaves: list[Any]) -> Any:
            return _loss(module, inputs.structure(leaves))

        return calls.forward(array, given, inputs, call, (outputs, y) if plain else ())  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[FusedArray]:
        return iter(self._made.values())

    def clear(self) -> None:
        """Forget all."""
        self._made.clear()
        self._last = None

    def _of(self, function: Callable[..., Any]) -> FusedArray:
        last = self._last
        if last is not None and last[0] is function and last[1]._steps.on is self.array._steps.on:
            return last[1]
        key = identity(function)
        found = self._made.get(key)
        if found is None:
            while len(self._made) >= _MOST:
                del self._made[next(iter(self._made))]
            found = self._made[key] = type(self.array)(OwnLoss(function), {}, {}, self.array.generators)
            found.strategy = self.array.strategy
        found.capture = self.array.capture
        if found.fast_rng != self.array.fast_rng:
            found.fast_rng = self.array.fast_rng
        self._last = function, found
        return found


def _loss(module: nn.Module, leaves: Sequence[Any]) -> Tensor:
    assert isinstance(module, OwnLoss)  # as it was made
    return module.value(*leaves)


def loss_call(loss_fn: Callable[..., Any], inputs: Inputs, has_aux: bool) -> Call:
    """What `FusedArray.backward` computes for a member: its loss and what comes with that.

    Args:
        loss_fn: from one member's output and the target to its loss; with `has_aux`, to the loss and any tree beside.
        inputs: the arguments of the model and the target.
        has_aux: what `loss_fn` returns.
    """

    def call(module: nn.Module, leaves: list[Any]) -> Any:
        given, target = inputs.structure(leaves)
        result = loss_fn(call_module(module, given), target)
        loss, aux = result if has_aux else (result, None)
        return scalar(loss), aux

    return call


def scalar(loss: Any) -> Tensor:
    """A member's loss, seen to be one number.

    Raises:
        FusionError: it is not.
    """
    if not isinstance(loss, Tensor) or loss.ndim:
        shown = f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else loss
        raise FusionError("the loss of a member must be a scalar tensor", where="loss_fn", got=shown)
    return loss


def _marked(outputs: Any) -> Any:
    if isinstance(outputs, Tensor | PerMember):
        return per_member(outputs)
    return tensor_map(per_member, outputs)
