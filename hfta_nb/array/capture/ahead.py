"""The backward of losses that are sure to be differentiated, run as soon as they are there.

Where training steps have gone the same way (`array(x)`, `array.losses` of nothing but its output, a plain `.backward()`
from ones into gradients that are None), the next one's backward is run when its losses are asked for, and autograd only
delivers it. Forward, loss and backward are then one stretch, as in `FusedArray.backward`: between a forward and a
backward autograd's engine finds nothing of its own in the cache, which costs as much as a small model does.
Whatever goes another way then computes the forward again, as a second backward does, and it is not done ahead any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from hfta_nb.array.capture.delivery import written

if TYPE_CHECKING:
    from hfta_nb.array.capture.node import Ticket

_OFTEN = 3
"""Steps that have to go the same way before."""


@dataclass
class Habit:
    """How the outputs of a kind of forward are used.

    Attributes:
        loss: the kind of loss that the last steps have had.
        times: how many of them in a row; below 0 where it is not to be counted on any more.
        waiting: a backward was run ahead that nobody has asked for yet.
    """

    loss: object = None
    times: int = 0
    waiting: bool = False

    def over(self) -> None:
        """Run nothing ahead any more."""
        self.times, self.waiting = -1, False

    def seen(self, loss: object, same: bool) -> None:
        """Note a step with this kind of loss, and whether it went the way that can be run ahead."""
        if self.times >= 0:
            self.times = self.times + 1 if same and loss is self.loss else int(same)
            self.loss = loss


class Ran(NamedTuple):
    """A backward that was run ahead.

    Attributes:
        slope: the gradient of the output, from losses that count once each.
        version: of that, in which it was handed on.
        upstream: gradients of the inputs.
        writing: of the array, how often gradients had been written to its arenas.
    """

    slope: Tensor
    version: int
    upstream: list[Tensor]
    writing: int


def run_ahead(forward: Ticket, loss: Ticket) -> None:
    """Run the backward of a loss, and of the forward that it is of, if that is sure to be wanted.

    Args:
        forward: of an array's output.
        loss: of the losses of that output and nothing else.
    """
    if forward.spent or not (forward.made.alone and loss.made.alone and loss.made.passes == (True,)):
        return
    loss.into, habit = forward, forward.seen.habit
    if habit.times < _OFTEN or habit.loss is not loss.seen:
        return
    if habit.waiting:  # the last one was for nothing
        habit.over()
        return
    array, made = forward.array, forward.made
    if array.generators.device.type != "cpu" or any(t.parameter.grad is not None for t in made.targets):
        return
    loss.made.grads[0].fill_(1)
    (slope,) = loss.made.halves.backward()
    made.grads[0].copy_(slope)
    upstream = written(made.targets, made.halves.backward, array)
    loss.slope, forward.ran, habit.waiting = slope, Ran(slope, slope._version, upstream, array.writing), True


def from_ones(grad: Tensor, room: Tensor) -> bool:
    """Whether the gradient of losses is one for each; `room` is overwritten with ones."""
    return grad.device.type == "cpu" and torch.equal(grad, room.fill_(1))
