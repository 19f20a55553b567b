"""The basis of all rules: the mode that calls them, and access to the member axis of a tensor under `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.engine.members.process_streams import ProcessStreams
from hfta_nb.engine.rules.autocast import Kept, cast
from hfta_nb.engine.rules.call_path import CallPath
from hfta_nb.errors import out_of_memory


class Disagreement(RuntimeError):  # noqa: N818  (a reason to go another way, not a failure)
    """Members would take different code paths, which `vmap` does not support. The array then runs the submodule member
    by member."""


class SharedWrite(Disagreement):
    """Members would write different values into a shared tensor."""


class HeldOnceWrite(Disagreement):
    """A call changes a parameter that all members hold once: each needs its own.

    Args:
        address: of its memory.
    """

    def __init__(self, address: int) -> None:
        super().__init__("the model changes a parameter that members hold once")
        self.address = address


@dataclass
class Usage:
    """Which members' results depend on which parameters, for members that ran one by one.

    In a plain module, an unused parameter has no gradient; in stacked tensors, its row contains zeros.
    """

    touched: set[tuple[str, int]] = field(default_factory=set)
    used: set[tuple[str, int]] = field(default_factory=set)

    def clear(self) -> None:
        self.touched.clear()
        self.used.clear()

    def unused(self) -> dict[str, list[int]]:
        """By parameter, the members that did not use it."""
        found: dict[str, list[int]] = {}
        for name, index in sorted(self.touched - self.used):
            found.setdefault(name, []).append(index)
        return found


@dataclass
class Context:
    """Information about the active call, for rules.

    Attributes:
        indices: the numbers, in the array, of the members of this call (a block of the array, or all of it).
        generators: of the whole array.
        level: of the array's `vmap`.
        used: by function name, how it was fused, for `FusedArray.explain`; filled while `recording`.
        private: members get their own copies of empty tensors that the model creates, to write into.
        fast_rng: draw all members' random numbers at once.
        usage: parameters that were used by members that ran one by one.
        casts: of weights, under autocast.
        plain: call the kernels that the plain module calls, if there is a choice.
        attributes: attributes that members have set on themselves.
        watching: find out whether the model changes values that it holds.
        process_streams: random streams of Python and NumPy.
        keeping: hooks or losses may keep values for each member.
        path: receives the functions that the model calls; None if nobody asks.
        copies: addresses of the memory of parameters that are copies, which what the model writes there would be lost
            with.
        once: addresses of the memory of parameters that members hold once.
        apart: a metric has run once per member, all of them with the same kept values.
        sparse: addresses of parameters whose gradients may be sparse.
    """

    indices: Sequence[int]
    generators: MemberGenerators
    level: int
    used: dict[str, str]
    recording: bool = False
    private: bool = False
    fast_rng: bool = False
    usage: Usage = field(default_factory=Usage)
    modes: list[TorchFunctionMode] = field(default_factory=list)
    casts: Kept = field(default_factory=dict)
    plain: bool = False
    attributes: Any = None
    watching: bool = False
    process_streams: ProcessStreams = field(default_factory=ProcessStreams)
    keeping: bool = False
    path: CallPath | None = None
    copies: set[int] = field(default_factory=set)
    once: set[int] = field(default_factory=set)
    apart: bool = False
    sparse: set[int] = field(default_factory=set)

    @property
    def members(self) -> int:
        """M of this call."""
        return len(self.indices)

    def batched(self, tensor: Tensor) -> bool:
        """True if members have different values in it."""
        return bool(functorch.is_batchedtensor(tensor)) and functorch.maybe_get_level(tensor) == self.level

    def stacked(self, tensor: Tensor) -> Tensor:
        """The tensor with its member axis in front; a shared tensor is expanded without a copy."""
        if not self.batched(tensor):
            return tensor.expand(self.members, *tensor.shape)
        value: Tensor = functorch.get_unwrapped(tensor)
        axis = functorch.maybe_get_bdim(tensor)
        return value.movedim(axis, 0) if axis else value

    def wrapped(self, tensor: Tensor) -> Tensor:
        """A tensor ``[M, ...]`` as the model sees it, without its member axis."""
        result: Tensor = functorch._add_batch_dim(tensor, 0, self.level)
        return result

    def takes_sparse(self, table: Tensor) -> bool:
        """True if the gradient of a stacked parameter may be sparse."""
        return bool(self.sparse) and table.data_ptr() in self.sparse

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Leave `vmap` and the rules within the context: operations use stacked tensors and are differentiated as
        usual."""
        with temporarily_pop_interpreter_stack(), _without(self.modes):
            yield

    def note(self, function: Callable[..., Any], how: str) -> None:
        """Record how a function was fused."""
        if self.recording:
            self.used[function_name(function)] = how


@contextmanager
def _without(modes: Sequence[TorchFunctionMode]) -> Iterator[None]:
    """Disable these modes, and those entered after them, within the context: torch runs as in plain modules."""
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    first = next((i for i, mode in enumerate(stack) if any(mode is m for m in modes)), len(stack))
    taken = [torch._C._pop_torch_function_stack() for _ in stack[first:]]
    try:
        yield
    finally:
        for mode in reversed(taken):
            torch._C._push_on_torch_function_stack(mode)


_REQUIRES_GRAD: Any = Tensor.requires_grad
_DATA: Any = Tensor.data
_RESIZING = ("resize_", "resize_as_", "set_")

Rule = Callable[[Context, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
Fallback = Callable[[Context, Callable[..., Any], tuple[Any, ...], dict[str, Any], Exception], Any]
"""What to do with a function that `vmap` cannot run, given the error."""


class RuleMode(TorchFunctionMode):
    """Calls the rule of every function that the model calls, if it has one."""

    def __init__(self, context: Context, rules: Mapping[object, Rule], fallback: Fallback) -> None:
        super().__init__()
        self.context, self.rules, self.fallback = context, rules, fallback
        context.modes.append(self)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        context, kwargs = self.context, kwargs or {}
        if functorch.maybe_current_level() != context.level:  # a `vmap` of the model itself
            return func(*args, **kwargs)
        if context.path is not None:
            context.path.add(func, args, kwargs)
        written = (context.copies or context.once) and args and (writes_in_place(func) or func.__name__ == "__set__")
        if written and not _leaves_frozen(func, args, kwargs):
            self._refuse_writes(args[0])
        if torch._C._is_any_autocast_enabled():
            args, kwargs = cast(function_name(func), args, kwargs, context.casts)
        rule = self.rules.get(func)
        if rule is not None:
            return rule(context, func, args, kwargs)
        name = function_name(func)
        if name == "__get__":  # access to an attribute
            return self._attribute(func, args, kwargs)
        if name == "__set__":
            return self._set(func, *args)
        if name in _RESIZING and context.batched(args[0]):
            raise Disagreement(f"{name} changes a tensor's memory")
        if context.recording and not name.startswith("__"):
            context.used.setdefault(name, "vmap")
        # Torch's own loop over members, for functions without a batching rule, could not be noticed; our fallback
        # records it.
        functorch._set_vmap_fallback_enabled(False)  # type: ignore[attr-defined]
        try:
            return func(*args, **kwargs)
        except Disagreement:
            raise
        except Exception as error:
            if out_of_memory(error):
                raise
            return self.fallback(context, func, args, kwargs, error)
        finally:
            functorch._set_vmap_fallback_enabled(True)  # type: ignore[attr-defined]

    def _refuse_writes(self, written: Any) -> None:
        """Raise an error if a tensor, or one in a list, is a parameter that is held once, or of which members run on
        copies."""
        for tensor in written if isinstance(written, list | tuple) else [written]:
            value = functorch.get_unwrapped(tensor) if functorch.is_batchedtensor(tensor) else tensor
            address = value.untyped_storage().data_ptr() if isinstance(value, Tensor) else 0
            if address in self.context.once:
                raise HeldOnceWrite(address)
            if address in self.context.copies:
                raise Disagreement("the model writes to parameters, of which these members run on copies")

    def _attribute(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(func, "__self__", None) is _REQUIRES_GRAD and self.context.batched(args[0]):
            return functorch.get_unwrapped(args[0]).requires_grad  # a tensor wrapped by `vmap` always says False
        if getattr(func, "__self__", None) is _DATA and self.context.batched(args[0]):
            with self.context.outside():
                alias = self.context.stacked(args[0]).data
            return self.context.wrapped(alias)
        return func(*args, **kwargs)

    def _set(self, func: Callable[..., Any], tensor: Tensor, value: Any) -> None:
        """``tensor.data = value`` for all members, whose memory stays in place; ``tensor.requires_grad = value``."""
        context, name = self.context, getattr(getattr(func, "__self__", None), "__name__", "attribute")
        if getattr(func, "__self__", None) is _REQUIRES_GRAD:
            with context.outside():
                (functorch.get_unwrapped(tensor) if context.batched(tensor) else tensor).requires_grad_(value)
            return
        if getattr(func, "__self__", None) is not _DATA:
            raise Disagreement(f"the model sets {name} of a tensor")
        if value.shape != tensor.shape or value.dtype != tensor.dtype:
            raise Disagreement("the model gives a tensor data of another shape or dtype")
        if not context.batched(tensor):
            raise SharedWrite("the model sets the data of a tensor that the members share")
        with context.outside():
            context.stacked(tensor).data.copy_(context.stacked(value))


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """The axes of a member's part of ``[M, ...]`` from the slowest to the fastest; dropout draws in this order.

    Images of one channel are contiguous or channels last by the stride of that channel, as in torch.
    """
    strides = tensor.stride()[1:]
    sizes = tensor.shape[1:]
    return tuple(sorted(range(len(strides)), key=lambda i: (-strides[i], sizes[i] == 1, i)))


def without_gaps(tensor: Tensor) -> bool:
    """True if the entries of a tensor are adjacent in memory, in any order of its axes."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def stored_as(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """``[M, ...]`` stored with the members' axes in this order, from the slowest to the fastest."""
    if memory_order(tensor) == order:
        return tensor
    forward = (0, *(i + 1 for i in order))
    back = [forward.index(i) for i in range(tensor.ndim)]
    return tensor.permute(forward).contiguous().permute(back)


def function_name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))


def writes_in_place(function: Callable[..., Any]) -> bool:
    """True if a function writes into its first argument."""
    name = function_name(function)
    return name in ("__setitem__", "__delitem__") or (name.endswith("_") and not name.endswith("__"))


def _leaves_frozen(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True for a function that freezes its first argument."""
    name = function_name(function)
    if name == "requires_grad_":
        return not (args[1] if len(args) > 1 else kwargs.get("requires_grad", True))
    if name == "detach_":
        return True
    return getattr(function, "__self__", None) is _REQUIRES_GRAD and not args[1]


def arguments(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Positional and keyword arguments by name."""
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def vmap_level() -> int:
    """The level of the innermost active `vmap`."""
    return int(torch._C._functorch.maybe_current_level() or 0)


def active_context() -> Context | None:
    """The context of the active call of an array; None outside, and where a member runs alone."""
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return next((mode.context for mode in reversed(stack) if isinstance(mode, RuleMode)), None)
