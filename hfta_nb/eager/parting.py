"""Where a member of an array and the plain module alone begin to differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from hfta_nb.eager.closeness import close, size
from hfta_nb.members.tree import flatten
from hfta_nb.rules.base import Context, RuleMode


@dataclass
class _Seen:
    path: str
    inputs: list[Tensor]
    outputs: list[Tensor]


def parting(
    skeleton: nn.Module, together: Callable[[], None], plain: nn.Module, alone: Callable[[], None], member: int
) -> str | None:
    """The path of the first submodule that makes other outputs of the same inputs; None if there is none.

    Args:
        skeleton: what the array's members run through, and `together` does that.
        plain: the same as one module, and `alone` runs it.
        member: to look at.
    """
    with _watched(skeleton, member) as first:
        together()
    with _watched(plain, None) as second:
        alone()
    waiting: dict[str, list[_Seen]] = {}
    for seen in second:
        waiting.setdefault(seen.path, []).append(seen)
    for seen in first:
        if waiting.get(seen.path):
            other = waiting[seen.path].pop(0)
            if _alike(seen.inputs, other.inputs) and not _alike(seen.outputs, other.outputs):
                return seen.path
    return None


@contextmanager
def _watched(root: nn.Module, member: int | None) -> Iterator[list[_Seen]]:
    """Within, what goes into and comes out of modules is noted, innermost first."""
    seen: list[_Seen] = []
    inputs: list[list[Tensor]] = []

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs.append(_own((args, kwargs), member))

    def note(path: str) -> Any:
        def after(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            seen.append(_Seen(path, inputs.pop(), _own(result, member)))

        return after

    modules = dict(root.named_modules())
    hooks = [m.register_forward_pre_hook(before, with_kwargs=True) for m in modules.values()]
    hooks += [m.register_forward_hook(note(path), with_kwargs=True) for path, m in modules.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _own(tree: Any, member: int | None) -> list[Tensor]:
    tensors = [v for v in flatten(tree)[0] if isinstance(v, Tensor)]
    context = _context()
    if member is None or context is None:
        return [t.detach().clone() for t in tensors]
    row = list(context.indices).index(member)
    with context.outside():
        return [context.stacked(t)[row].detach().clone() for t in tensors]


def _context() -> Context | None:
    """The context of the array's call under way."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return next((mode.context for mode in reversed(modes) if isinstance(mode, RuleMode)), None)


def _alike(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(close(x, y, size(y)) for x, y in zip(a, b, strict=True))
