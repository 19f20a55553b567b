"""Replaces the `forward` of submodules during a call of an array.

The engine uses this for submodules that `vmap` cannot run, and for members whose submodules differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from hfta_nb.engine.rules.rule_mode import Context, vmap_level

Handler = Callable[[Context, nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""``handler(context, module, forward, args, kwargs)`` returns the result in place of ``forward(*args, **kwargs)``.

It is called under the array's `vmap`, while the members' tensors are in the module; `forward` is the module's own.
"""


@contextmanager
def intercepted(root: nn.Module, handlers: Mapping[str, Handler], context: Context) -> Iterator[None]:
    """Run the submodules of `root` at these paths by their handlers within the context; hooks run as usual."""
    with forwards_replaced(root, {p: partial(_bound, handler, context) for p, handler in handlers.items()}):
        yield


@contextmanager
def forwards_replaced(root: nn.Module, made: Mapping[str, Callable[[nn.Module], Callable[..., Any]]]) -> Iterator[None]:
    """Replace the `forward` of submodules of `root` within the context, by functions made from the submodules."""
    put: list[tuple[nn.Module, Any]] = []
    try:
        for path, make in made.items():
            module = root.get_submodule(path)
            forward = make(module)
            put.append((module, module.__dict__.get("forward")))
            module.__dict__["forward"] = forward
        yield
    finally:
        for module, before in reversed(put):
            if before is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = before


def _bound(handler: Handler, context: Context, module: nn.Module) -> Callable[..., Any]:
    forward = module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        if vmap_level() != context.level:  # a handler further out has already left the array's `vmap`
            return forward(*args, **kwargs)
        return handler(context, module, forward, args, kwargs)

    return run
