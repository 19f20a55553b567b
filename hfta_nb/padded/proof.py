"""Seeing, once, that members of different architecture come to what their own plain modules come to.

No rule can be written for what a model computes from its sizes outside of tensors. So the first time that such an array
does something, one member of every architecture does the same alone, and the results are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hfta_nb.eager.attempt import Found
from hfta_nb.eager.blocks import leaf_blocks, member_block
from hfta_nb.eager.state import ArrayState
from hfta_nb.members.tree import flatten
from hfta_nb.members.views import narrowed
from hfta_nb.padded.mode import active
from hfta_nb.padded.runtime import across_of
from hfta_nb.padded.tags import box, tag_of
from hfta_nb.rules import Disagreement

if TYPE_CHECKING:
    from hfta_nb.eager.engine import Block

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 5e-2}


class Mismatch(Disagreement):
    """A member came to something else than alone.

    Attributes:
        path: of the submodule where they part; None if that can't be told.
    """

    def __init__(self, message: str, path: str | None) -> None:
        super().__init__(message)
        self.path = path


def prove(state: ArrayState, probe: Callable[[Sequence[Block]], Found]) -> None:
    """Compare one member of every architecture with itself alone; members that are lost to NaN are passed over.

    Args:
        probe: computes for some blocks and keeps nothing.

    Raises:
        Mismatch: they differ.
    """
    across = across_of(state)
    assert across is not None  # else there is nothing to prove
    restore = state.snapshot()
    try:
        together = probe(leaf_blocks(state))
        left = _left_behind(state, range(len(state)))
        for architecture in range(len(across.blueprint.templates)):
            for member in [i for i, a in enumerate(across.blueprint.of) if a == architecture]:
                restore()
                alone = probe(member_block(state, member))
                if not _finite(alone):
                    continue
                what = _different(together, alone, member) or _state(
                    left[member], _left_behind(state, [member])[member]
                )
                if what:
                    restore()
                    path = _parting(state, probe, member, restore)
                    place = f" from `{path}` on" if path else ""
                    raise Mismatch(f"member {member} comes to another {what} than alone{place}", path)
                break
    finally:
        restore()


def _finite(found: Found) -> bool:
    tensors = [v for v in flatten(found[0])[0] if isinstance(v, Tensor)]
    tensors += [g for rows in found[1].values() for g in rows.values()]
    return all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point())


def _different(together: Found, alone: Found, member: int) -> str:
    """What differs: "result", "gradient of ..." or nothing."""
    left, right = (flatten(found[0])[0] for found in (together, alone))
    for a, b in zip(left, right, strict=True):
        if isinstance(a, Tensor) and not _close(a[member], b[0], _size(b)):
            return "result"
    largest = max((_size(rows[member]) for rows in alone[1].values() if member in rows), default=0.0)
    for name, rows in alone[1].items():
        own = together[1].get(name, {}).get(member)
        if member in rows and (own is None or not _close(narrowed(own, rows[member].shape, 0), rows[member], largest)):
            return f"gradient of {name}"
    return ""


def _left_behind(state: ArrayState, members: Sequence[int]) -> dict[int, dict[str, Tensor]]:
    """What a call changes beside its result: buffers and random streams, by member."""
    buffers = dict(state.tensors.named_buffers())
    return {
        i: {name: value[i].clone() for name, value in buffers.items()}
        | {f"the random numbers ({kind})": value for kind, value in state.generators.states[i].items()}
        for i in members
    }


def _state(together: Mapping[str, Tensor], alone: Mapping[str, Tensor]) -> str:
    names = (name for name, value in alone.items() if not _close(together[name], value, _size(value)))
    return next(names, "")


def _size(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() and tensor.is_floating_point() else 0.0


def _close(a: Tensor, b: Tensor, size: float) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return bool(torch.equal(a, b))
    # Under autocast a float32 result may come of values of 16 bits.
    tolerance = _TOLERANCE[torch.bfloat16 if torch._C._is_any_autocast_enabled() else a.dtype]
    return bool(torch.isclose(a, b, rtol=0, atol=tolerance * max(size, 1e-3), equal_nan=True).all())


# Where they part.


@dataclass
class _Seen:
    path: str
    inputs: list[Tensor]
    outputs: list[Tensor]


def _parting(
    state: ArrayState, probe: Callable[[Sequence[Block]], Found], member: int, restore: Callable[[], None]
) -> str | None:
    across = across_of(state)
    assert across is not None
    architecture = across.blueprint.of[member]
    block = next(b for b in leaf_blocks(state) if b.start <= member < b.stop)
    own = across.blueprint.modules[architecture]
    with _watched(dict(across.blueprint.skeleton.named_modules()), member) as together:
        probe([block])
    restore()
    template = state.engine.own_module(member)
    with _watched({own[path]: m for path, m in template.named_modules() if path in own}, None) as alone:
        probe(member_block(state, member))
    waiting: dict[str, list[_Seen]] = {}
    for seen in alone:
        waiting.setdefault(seen.path, []).append(seen)
    for seen in together:
        if waiting.get(seen.path):
            other = waiting[seen.path].pop(0)
            if _alike(seen.inputs, other.inputs) and not _alike(seen.outputs, other.outputs):
                return seen.path
    return None


def _alike(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(_close(x, y, _size(y)) for x, y in zip(a, b, strict=True))


@contextmanager
def _watched(modules: Mapping[str, nn.Module], member: int | None) -> Iterator[list[_Seen]]:
    """Within, what goes into and comes out of modules is noted, of one member."""
    seen: list[_Seen] = []
    inputs: list[list[Tensor]] = []

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs.append(_own((args, kwargs), member))

    def note(path: str) -> Any:
        def after(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            seen.append(_Seen(path, inputs.pop(), _own(result, member)))

        return after

    hooks = [m.register_forward_pre_hook(before, with_kwargs=True) for m in modules.values()]
    hooks += [m.register_forward_hook(note(path), with_kwargs=True) for path, m in modules.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _own(tree: Any, member: int | None) -> list[Tensor]:
    tensors = [v for v in flatten(tree)[0] if isinstance(v, Tensor)]
    if member is None:
        return [t.detach().clone() for t in tensors]
    context = active().context
    row = list(context.indices).index(member)
    tags = [tag_of(t) for t in tensors]
    with context.outside():
        return [
            narrowed(context.stacked(t)[row], box(t.shape, tag, row), 0).detach().clone()
            for t, tag in zip(tensors, tags, strict=True)
        ]
