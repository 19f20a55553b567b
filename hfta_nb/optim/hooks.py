"""Hooks of an optimizer of an array, as torch's optimizers have them."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch.utils.hooks import RemovableHandle

from hfta_nb.errors import OptimError

Hook = Callable[..., Any]
Method = TypeVar("Method", bound=Callable[..., Any])


class Hooks:
    """The part of an optimizer that calls a person's hooks around steps and saving; see `torch.optim.Optimizer`."""

    _hooks: dict[str, OrderedDict[int, Hook]] | None = None  # by when they are called; None in most optimizers
    _hooked = False  # within a step, which may call another class's step

    def register_step_pre_hook(self, hook: Hook) -> RemovableHandle:
        """``hook(optimizer, args, kwargs)`` before each step; it may return other args and kwargs."""
        return self._register("before step", hook)

    def register_step_post_hook(self, hook: Hook) -> RemovableHandle:
        """``hook(optimizer, args, kwargs)`` after each step."""
        return self._register("after step", hook)

    def register_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """``hook(optimizer)`` before `state_dict`."""
        return self._register("before state_dict", hook, prepend)

    def register_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """``hook(optimizer, state_dict)`` after `state_dict`; it may return another one."""
        return self._register("after state_dict", hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """``hook(optimizer, state_dict)`` before `load_state_dict`; it may return another one."""
        return self._register("before load_state_dict", hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """``hook(optimizer)`` after `load_state_dict`."""
        return self._register("after load_state_dict", hook, prepend)

    def _register(self, when: str, hook: Hook, prepend: bool = False) -> RemovableHandle:
        if not callable(hook):
            raise OptimError("not a function", where=f"{type(self).__name__}, hook {when}", got=hook)
        if self._hooks is None:
            self._hooks = {}
        own = self._hooks.setdefault(when, OrderedDict())
        handle = RemovableHandle(own)
        own[handle.id] = hook
        if prepend:
            own.move_to_end(handle.id, last=False)
        return handle

    def _hooks_of(self, when: str) -> list[Hook]:
        return list((self._hooks or {}).get(when, {}).values())


def with_step_hooks(step: Method) -> Method:
    """A step around which hooks are called, once where it calls that of a base class."""

    @functools.wraps(step)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._hooks is None or self._hooked:
            return step(self, *args, **kwargs)
        given: tuple[Any, ...] = (self, *args)
        self._hooked = True
        try:
            for hook in self._hooks_of("before step"):
                changed = hook(self, given, kwargs)
                if changed is not None:
                    given, kwargs = _pair(changed, type(self).__name__)
            found = step(*given, **kwargs)
            for hook in self._hooks_of("after step"):
                hook(self, given, kwargs)
            return found
        finally:
            self._hooked = False

    return hooked  # type: ignore[return-value]


def _pair(changed: Any, optimizer: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not isinstance(changed, tuple) or len(changed) != 2:
        raise OptimError("returns no arguments of a step", where=f"{optimizer}, hook before step", got=changed,
                         accepted="None, or a tuple of args and kwargs")  # fmt: skip
    return changed


def with_saving_hooks(state_dict: Method) -> Method:
    """`state_dict`, around which hooks are called."""

    @functools.wraps(state_dict)
    def hooked(self: Any) -> Any:
        for hook in self._hooks_of("before state_dict"):
            hook(self)
        found = state_dict(self)
        for hook in self._hooks_of("after state_dict"):
            changed = hook(self, found)
            found = found if changed is None else changed
        return found

    return hooked  # type: ignore[return-value]


def with_loading_hooks(load: Method) -> Method:
    """`load_state_dict`, around which hooks are called."""

    @functools.wraps(load)
    def hooked(self: Any, state_dict: Mapping[str, Any]) -> None:
        for hook in self._hooks_of("before load_state_dict"):
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        load(self, state_dict)
        for hook in self._hooks_of("after load_state_dict"):
            hook(self)

    return hooked  # type: ignore[return-value]
