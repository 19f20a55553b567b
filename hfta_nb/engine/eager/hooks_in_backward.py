"""Hooks and `array.backward`, which runs members in blocks and writes gradients itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.execution_settings import ExecutionSettings
from hfta_nb.engine.eager.function_states import FunctionStates
from hfta_nb.errors import ArrayWarning, FusionError

T = TypeVar("T")


def warn_of_hooks(array: nn.Module, settings: ExecutionSettings) -> None:
    """Tell, once, of hooks that see the outputs of all members, which `backward` never has at once."""
    if not (array._forward_hooks or array._forward_pre_hooks):
        return
    text = "hooks that are registered on the array see the outputs of array(x), and have no effect on backward"
    if settings.remark(text):
        warnings.warn(f"{text}; register them on the modules before fusing", ArrayWarning, stacklevel=3)


@contextmanager
def unseen_by_hooks(*models: nn.Module) -> Iterator[None]:
    """The context of a backward that only compares: what the backward hooks of modules keep is as before after it.

    Not so the models' own state, which is compared, and put back by who compares. What can't be copied stays as the
    hooks leave it.
    """
    contexts = [FunctionStates(1, shows=False).of_one(hooks, model) for model in models if (hooks := _hooks_of(model))]
    for context in contexts:
        context.__enter__()
    try:
        yield
    finally:
        for context in reversed(contexts):
            with suppress(FusionError):
                context.__exit__(None, None, None)


def _hooks_of(model: nn.Module) -> tuple[Callable[..., Any], ...]:
    """The backward hooks of all modules of a model."""
    held = (hooks for m in model.modules() for hooks in (m._backward_hooks, m._backward_pre_hooks))
    return tuple(hook for hooks in held for hook in hooks.values())


def with_hooks(parameters: Sequence[Tensor], call: Callable[[], T]) -> T:
    """Make a call, and call the hooks of parameters with the gradients that it delivers to ``.grad``.

    As in autograd, hooks of the tensor see, and may replace, what is added to ``.grad``; those for accumulated
    gradients follow. Parameters without a new gradient are left out.
    """
    hooked = [p for p in parameters if p._backward_hooks or p._post_accumulate_grad_hooks]
    if not hooked:
        return call()
    before = [(p.grad, None if p.grad is None else p.grad.clone()) for p in hooked]
    for p in hooked:
        p.grad = None
    try:
        found = call()
    except BaseException:
        for p, (grad, value) in zip(hooked, before, strict=True):
            p.grad = _restored(grad, value)
        raise
    for p, (grad, value) in zip(hooked, before, strict=True):
        if p.grad is None:
            p.grad = _restored(grad, value)
        else:
            _call_hooks(p, p.grad, grad, value)
    return found


def _call_hooks(p: Tensor, new: Tensor, grad: Tensor | None, value: Tensor | None) -> None:
    """Call the hooks of a parameter; add to the gradient that it had, of this value."""
    for hook in tuple((p._backward_hooks or {}).values()):
        other = hook(new)
        if other is not None:
            new.copy_(other)
    if grad is not None and value is not None:
        total = new + value  # both may be stored in the same place
        p.grad = grad.copy_(total)
    for hook in tuple((p._post_accumulate_grad_hooks or {}).values()):
        hook(p)


@torch.no_grad()
def _restored(grad: Tensor | None, value: Tensor | None) -> Tensor | None:
    return grad if grad is None or value is None else grad.copy_(value)
