"""The function mode that keeps padding out of the members' results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.overrides import TorchFunctionMode

from hfta_nb.engine.padded.member_numbers import Varied
from hfta_nb.engine.padded.size_groups import PerMemberFunction, begin, by_groups, end, running
from hfta_nb.engine.padded.tags import Counts, Tag, tag_of, tagged
from hfta_nb.engine.rules import Context

Rule = Callable[["PaddedMode", Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""``rule(mode, function, args, kwargs)`` returns the result, tagged, or `NotImplemented` for an unsupported call."""


def active() -> PaddedMode:
    """The active mode."""
    mode = running()
    assert isinstance(mode, PaddedMode)  # no other class calls `begin`
    return mode


class PaddedMode(TorchFunctionMode):
    """Calls the padding rule of every function that receives a padded tensor or a varied number.

    All rules keep one invariant: padded entries are zero before and after. A function without a rule runs at true
    sizes, once per group of members with equal sizes.

    Args:
        context: of the members that run.
        rules: by function.
        architectures: per member that runs, the number of its architecture.
    """

    def __init__(self, context: Context, rules: dict[object, Rule], architectures: Sequence[int]) -> None:
        super().__init__()
        self.context, self.rules, self.architectures = context, rules, list(architectures)
        self._masks: dict[tuple[Counts, torch.device], Tensor] = {}

    def __enter__(self) -> PaddedMode:
        begin(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        end()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if functorch.maybe_current_level() != self.context.level or not _concerned((args, kwargs)):
            return func(*args, **kwargs)
        rule = self.rules.get(func)
        if rule is None and func.__name__ == "__get__":
            return self._attribute(func, args)
        result = NotImplemented if rule is None else rule(self, func, args, kwargs)
        return by_groups(self, func, args, kwargs) if result is NotImplemented else result

    def _attribute(self, func: Callable[..., Any], args: Any) -> Any:
        value = func(*args)
        return by_groups(self, func, args, {}) if isinstance(value, Tensor) else value

    def mask(self, counts: Counts, size: int, device: torch.device) -> Tensor:
        """Which entries of a dimension belong to the member: bool ``[size]``, as one member sees it."""
        key = (counts, device)
        if key not in self._masks:
            with self.context.outside():
                own = torch.arange(size, device=device) < torch.tensor(counts, device=device).unsqueeze(1)
                self._masks[key] = self.context.wrapped(own)
        return self._masks[key]

    def padding(self, shape: Sequence[int], tag: Tag, device: torch.device) -> Tensor:
        """Which entries of a tensor are padding: a bool tensor that broadcasts to `shape`."""
        outside: Tensor | None = None
        for d, counts in enumerate(tag):
            if counts is not None:
                own = self.mask(counts, shape[d], device)
                part = ~own.view(-1, *[1] * (len(tag) - 1 - d))
                outside = part if outside is None else outside | part
        assert outside is not None  # a tag contains counts
        return outside

    def filled(self, tensor: Tensor, tag: Tag | None, value: float) -> Tensor:
        """The tensor with `value` in the padding, which gets no gradient."""
        if tag is None or not any(tag):
            return tensor
        return tensor.masked_fill(self.padding(tensor.shape, tag, tensor.device), value)

    def result(self, tensor: Tensor, tag: Sequence[Counts | None] | None, *, zero: bool = False) -> Tensor:
        """A rule's result with its tag; with `zero`, its padding is set to zero."""
        if tag is not None and zero:
            tensor = self.filled(tensor, tuple(tag), 0)
        return tagged(tensor, tag)

    def numbers(self, counts: Sequence[float], like: Tensor) -> Tensor:
        """One number per member, as a scalar tensor of the dtype of `like`."""
        with self.context.outside():
            return self.context.wrapped(torch.tensor(counts, dtype=like.dtype, device=like.device))


def _concerned(tree: Any) -> bool:
    for value in tree:
        if isinstance(value, Tensor):
            if tag_of(value) is not None:
                return True
        elif isinstance(value, Varied | PerMemberFunction):
            return True
        elif isinstance(value, slice):
            if _concerned((value.start, value.stop, value.step)):
                return True
        elif isinstance(value, list | tuple):
            if _concerned(value):
                return True
        elif isinstance(value, dict) and _concerned(value.values()):
            return True
    return False


def varied(*trees: Any) -> bool:
    """True if the arguments contain varied numbers or functions, at any depth."""
    for value in trees:
        if isinstance(value, Varied | PerMemberFunction):
            return True
        if isinstance(value, slice):
            if varied(value.start, value.stop, value.step):
                return True
        elif isinstance(value, list | tuple):
            if varied(*value):
                return True
        elif isinstance(value, dict) and varied(*value.values()):
            return True
    return False
