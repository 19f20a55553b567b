"""Finds where a member of an array and its plain module begin to differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hfta_nb.engine.comparison import compare
from hfta_nb.engine.eager.compare_outcomes import tolerance
from hfta_nb.engine.members.tree import flatten
from hfta_nb.engine.rules.rule_mode import active_context

Rows = Callable[[list[Tensor]], list[Tensor]]


@dataclass
class _ModuleCall:
    path: str
    inputs: list[Tensor]
    outputs: list[Tensor]


def first_divergence(
    first: Mapping[str, nn.Module],
    together: Callable[[], object],
    second: Callable[[], Mapping[str, nn.Module]],
    alone: Callable[[], object],
    rows: Rows,
) -> str | None:
    """The path of the first submodule whose outputs differ for equal inputs; None if there is none.

    Args:
        first: by path, the modules that the array's members run through; `together` runs them.
        second: returns, by the same paths, the modules that the member runs through alone; `alone` runs them.
        rows: selects the member's own tensors from those of a block.
    """
    with _watched(first, rows) as several:
        together()
    with _watched(second(), _whole) as one:
        alone()
    waiting: dict[str, list[_ModuleCall]] = {}
    for seen in one:
        waiting.setdefault(seen.path, []).append(seen)
    for seen in several:
        if waiting.get(seen.path):
            other = waiting[seen.path].pop(0)
            if _alike(seen.inputs, other.inputs) and not _alike(seen.outputs, other.outputs):
                return seen.path
    return None


def rows_of(member: int) -> Rows:
    """A function that selects one member's tensors from those of a block of equal members."""

    def rows(tensors: list[Tensor]) -> list[Tensor]:
        context = active_context()
        if context is None:
            return tensors
        row = list(context.indices).index(member)
        with context.outside():
            return [context.stacked(t)[row] for t in tensors]

    return rows


def _whole(tensors: list[Tensor]) -> list[Tensor]:
    return tensors


@contextmanager
def _watched(modules: Mapping[str, nn.Module], rows: Rows) -> Iterator[list[_ModuleCall]]:
    """Record the inputs and outputs of modules within the context, innermost first."""
    seen: list[_ModuleCall] = []
    inputs: list[list[Tensor]] = []

    def own(tree: Any) -> list[Tensor]:
        tensors = [v for v in flatten(tree)[0] if isinstance(v, Tensor)]
        return [t.detach().clone() for t in rows(tensors)]

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs.append(own((args, kwargs)))

    def note(path: str) -> Any:
        def after(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            seen.append(_ModuleCall(path, inputs.pop(), own(result)))

        return after

    hooks = [m.register_forward_pre_hook(before, with_kwargs=True) for m in modules.values()]
    hooks += [m.register_forward_hook(note(path), with_kwargs=True) for path, m in modules.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _alike(several: list[Tensor], one: list[Tensor]) -> bool:
    found, expected = ({str(i): t for i, t in enumerate(tensors)} for tensors in (several, one))
    return len(found) == len(expected) and not compare(found, expected, tolerance)
