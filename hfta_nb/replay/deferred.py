"""`array(x)`, `array.losses`, `.sum()` and `.backward()`, one after another, as the one step that they make up.

Where the same four calls have followed each other several times, the next ones are put off: `array(x)` returns a tensor
whose values come when somebody wants them. If that is `.backward()`, all is one `array.backward`, with members in
blocks, side by side, and nothing of autograd. If it is anything else, the calls are made up for, in their order, from
what the inputs were, and the tensors are then as they would have been.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hfta_nb.eager.state import ArrayState
from hfta_nb.members.tree import flatten
from hfta_nb.replay.kinds import form, settings
from hfta_nb.replay.record import NotRecordableError
from hfta_nb.replay.seen_forward import Habit, Losses


class Deferred(Tensor):
    """A tensor that some calls of a step return: a plain one as soon as anything but the next of them is done to it."""

    _step: Step

    def sum(self, *args: Any, **kwargs: Any) -> Tensor:
        step = self._step if type(self) is Deferred else None
        if step is not None and not (args or kwargs) and self is step.of("losses"):
            return step.summed(self)
        settled((self,))
        return Tensor.sum(self, *args, **kwargs)

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        step = step_of(self)
        inputs = tuple(inputs) if isinstance(inputs, Iterator) else inputs  # `parameters()`, gone through once
        plain = gradient is None and not retain_graph and not create_graph
        if step is not None and plain and self is step.of("total"):
            given = (inputs,) if isinstance(inputs, Tensor) else inputs
            only = None if given is None else step.forwards.names_of(given)
            if only == ():
                step.settle()
            elif step.run(only):
                return
        else:
            settled((self,))
        Tensor.backward(self, gradient, retain_graph, create_graph, inputs)  # type: ignore[no-untyped-call]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.sum and len(args) == 1 and not kwargs:
            return args[0].sum()
        for found in _within((args, kwargs)):
            found._step.settle()
        with torch._C.DisableTorchFunctionSubclass():  # any that were hidden are treated as what they are
            return func(*args, **kwargs)


def step_of(tensor: Tensor) -> Step | None:
    """Of a tensor that may have become a plain one while the arguments were computed."""
    return tensor._step if type(tensor) is Deferred else None


def settled(values: Sequence[Any]) -> None:
    """Make plain tensors of those among the values that are not yet."""
    for value in values:
        if type(value) is Deferred:
            value._step.settle()


def _within(tree: Any) -> Iterator[Deferred]:
    if type(tree) is Deferred:
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _within(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _within(value)


class Forwards(Protocol):
    """The forwards of the array that was called, as far as its four calls ask; see `CapturedForwards`."""

    state: ArrayState

    def names_of(self, inputs: Sequence[Tensor]) -> tuple[str, ...]:
        """Of parameters that learn; none where one of the tensors is anything else, or is there twice."""

    def outstanding(self) -> bool:
        """Whether a backward is to come that needs what lies in memory."""


class Step:
    """The tensors of one run of the four calls.

    Args:
        forwards: of the array that was called.
        habit: what is known of the calls.
    """

    __slots__ = ("__weakref__", "_tensors", "forwards", "habit")

    forwards: Forwards

    def __init__(self, forwards: Forwards, habit: Habit) -> None:
        self.forwards, self.habit = forwards, habit
        self._tensors: dict[int | str, weakref.ref[Tensor]] = {}

    def settle(self) -> None:
        """Make plain tensors of all: something else has been done to one of them."""
        raise NotImplementedError

    def losses(self, output: Any, inner: Losses, function: Callable[..., Any], y: Any) -> Tensor:
        """What `array.losses` returns of the output."""
        raise NotImplementedError

    def summed(self, losses: Tensor) -> Tensor:
        """Their sum."""
        raise NotImplementedError

    def run(self, only: tuple[str, ...] | None) -> bool:
        """Do the backward, if it can be done for all four calls at once; whether it was."""
        raise NotImplementedError

    def of(self, name: int | str) -> Tensor | None:
        """The tensor, while the caller has it: the number of an output, "losses" or "total"."""
        found = self._tensors.get(name)
        return None if found is None else found()

    def holds(self, output: Any) -> bool:
        """Whether this is what `array(x)` has returned."""
        if type(output) is Deferred:
            return self.habit.structure is None and self.of(0) is output
        leaves = flatten(output)[0]
        if len(leaves) != len(self.habit.outputs) or structure(output) != self.habit.structure:
            return False
        return all(self.of(i) is leaf for i, leaf in enumerate(leaves))

    def _mark(self, name: int | str, tensor: Tensor, told: Callable[[Any], None] | None = None) -> Tensor:
        tensor.__class__ = Deferred
        tensor.__dict__["_step"] = self
        self._tensors[name] = weakref.ref(tensor, told)
        return tensor

    def _unmark(self, name: int | str) -> Tensor | None:
        """The tensor as a plain one, if the caller has it."""
        found = self.of(name)
        if found is not None:
            self._bare(found)
        return found

    def _hide(self, tensor: Tensor) -> None:
        """Have this step told when anything is done to a tensor."""
        tensor.__class__ = Deferred
        tensor.__dict__["_step"] = self

    @staticmethod
    def _bare(tensor: Tensor) -> None:
        """Make it a plain tensor again."""
        if type(tensor) is Deferred:
            tensor.__class__ = Tensor  # type: ignore[assignment]
            del tensor.__dict__["_step"]


class Watched(Step):
    """The four calls as ever, to see whether they follow each other and nothing comes in between."""

    __slots__ = ()

    def output(self, computed: Any) -> Any:
        """What `array(x)` returns."""
        leaves = flatten(computed)[0]
        self.habit.outputs, self.habit.structure = tuple(map(_empty, leaves)), structure(computed)
        for i, leaf in enumerate(leaves):
            self._mark(i, leaf)
        return computed

    def settle(self) -> None:
        """Something else has been done to one of the tensors."""
        self._plain()
        self.habit.miss()

    def losses(self, output: Any, inner: Losses, function: Callable[..., Any], y: Any) -> Tensor:
        """What `array.losses` returns of the output."""
        habit, kind = self.habit, like(y)
        if self.of("losses") is not None or not kind:
            self.settle()
            return inner.computed(output, y)
        self._plain()
        found = inner.computed(output, y)
        for i, leaf in enumerate(flatten(output)[0]):
            self._mark(i, leaf)
        if inner is not habit.inner or kind != habit.target:
            habit.inner, habit.target, habit.whole, habit.step = inner, kind, with_output(function), None
            habit.times = 0
        habit.losses = _empty(found)
        return self._mark("losses", found)

    def summed(self, losses: Tensor) -> Tensor:
        """Their sum."""
        self._unmark("losses")
        found = losses.sum()
        self._mark("losses", losses)
        return self._mark("total", found)

    def run(self, only: tuple[str, ...] | None) -> bool:
        """Whether the backward has been done; never, but it is noted that it followed."""
        self._plain()
        habit, inner = self.habit, self.habit.inner
        # No other backward has gone through the output: what takes it past torch's functions is not seen here.
        if inner is not None and inner.outstanding() and self.forwards.outstanding():
            habit.follow()
        return False

    def _plain(self) -> None:
        for name in self._tensors:
            self._unmark(name)


def with_output(function: Callable[..., Any]) -> Callable[..., Any]:
    """A loss that hands on the output, which the caller may look at."""

    def both(output: Any, target: Any) -> tuple[Any, Any]:
        return function(output, target), output

    return both


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device)


def like(y: Any) -> tuple[Any, ...]:
    """What tells kinds of calls of `losses` apart, beside the output; nothing where they are not put off."""
    try:
        return form(y), settings()
    except NotRecordableError:
        return ()


def structure(tree: Any) -> Any:
    """What tells trees of tensors apart, but for the tensors; None of a tensor alone.

    Trees that hold anything beside tuples, lists, dicts and tensors are like no other.
    """
    if isinstance(tree, Tensor):
        return None
    if type(tree) in (tuple, list) or (isinstance(tree, tuple) and hasattr(tree, "_fields")):
        return type(tree), tuple(map(structure, tree))
    if type(tree) is dict:
        return dict, tuple((k, structure(v)) for k, v in tree.items())
    return object()
