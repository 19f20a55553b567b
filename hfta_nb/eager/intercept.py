"""Running something else in place of a submodule's `forward` during a call of an array.

The engine uses it for submodules that `vmap` can't run; members whose submodules differ run through it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from hfta_nb.rules.base import Context, vmap_level

Handler = Callable[[Context, nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""``handler(context, module, forward, args, kwargs)``: what to return in place of ``forward(*args, **kwargs)``.

Called within the array's `vmap`, while the members' tensors are in the module; `forward` is the module's own.
"""


@contextmanager
def intercepted(root: nn.Module, handlers: Mapping[str, Handler], context: Context) -> Iterator[None]:
    """Within, the submodules of `root` at these paths are run by their handlers; hooks stay as they are."""
    with forwards_replaced(root, {p: partial(_bound, handler, context) for p, handler in handlers.items()}):
        yield


@contextmanager
def forwards_replaced(root: nn.Module, made: Mapping[str, Callable[[nn.Module], Callable[..., Any]]]) -> Iterator[None]:
    """Within, the submodules of `root` at these paths have a `forward` made of the module; afterwards their own."""
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
        if vmap_level() != context.level:  # within something that has left the array's `vmap` already
            return forward(*args, **kwargs)
        return handler(context, module, forward, args, kwargs)

    return run
