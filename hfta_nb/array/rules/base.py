"""What rules share: the mode that calls them, and the way from a tensor under `vmap` to its member axis and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.overrides import TorchFunctionMode

from hfta_nb.array.generators import MemberGenerators


@dataclass
class Context:
    """What a rule may need to know of the call it is part of.

    Attributes:
        members: M of this call (a block of the array, or all of it).
        first: number of the first of them in the array.
        generators: of the whole array.
        level: of the array's `vmap`.
        used: function name to how it was fused, for `FusedArray.explain`; filled while `recording`.
    """

    members: int
    first: int
    generators: MemberGenerators
    level: int
    used: dict[str, str]
    recording: bool = False

    def batched(self, tensor: Tensor) -> bool:
        """Whether members have values of their own in it."""
        return bool(functorch.is_batchedtensor(tensor)) and functorch.maybe_get_level(tensor) == self.level

    def stacked(self, tensor: Tensor) -> Tensor:
        """The tensor with its member axis in front; a shared one is expanded, without memory of its own."""
        if not self.batched(tensor):
            return tensor.expand(self.members, *tensor.shape)
        value: Tensor = functorch.get_unwrapped(tensor)
        return value.movedim(functorch.maybe_get_bdim(tensor), 0)

    def wrapped(self, tensor: Tensor) -> Tensor:
        """A tensor ``[M, ...]`` as the model sees it, without its member axis."""
        result: Tensor = functorch._add_batch_dim(tensor, 0, self.level)
        return result

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Within, operations work on stacked tensors and are differentiated as usual: `vmap` is left for a moment."""
        with temporarily_pop_interpreter_stack():
            yield

    def note(self, function: Callable[..., Any], how: str) -> None:
        """Say how a function was fused."""
        if self.recording:
            self.used[function_name(function)] = how


Rule = Callable[[Context, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class RuleMode(TorchFunctionMode):
    """Sends every function that the model calls to its rule, where it has one."""

    def __init__(self, context: Context, rules: Mapping[object, Rule]) -> None:
        super().__init__()
        self.context, self.rules = context, rules

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = self.rules.get(func)
        context = self.context
        if rule is None or functorch.maybe_current_level() != context.level:  # a `vmap` of the model's own
            if context.recording and not function_name(func).startswith("__"):  # not reading an attribute
                context.used.setdefault(function_name(func), "vmap")
            return func(*args, **(kwargs or {}))
        return rule(context, func, args, kwargs or {})


def function_name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))


def arguments(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Positional and keyword arguments by name."""
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def vmap_level() -> int:
    """The level of the innermost `vmap` under way."""
    return int(torch._C._functorch.maybe_current_level() or 0)
