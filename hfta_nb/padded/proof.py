"""Seeing, once, that members of different architecture come to what their own plain modules come to.

No rule can be written for what a model computes from its sizes outside of tensors. So the first time that such an array
does something, one member of every architecture does the same alone, and the results are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hfta_nb.eager.attempt import Found
from hfta_nb.eager.blocks import leaf_blocks, member_block
from hfta_nb.eager.closeness import close, size
from hfta_nb.eager.parting import Mismatch, parting
from hfta_nb.eager.state import ArrayState
from hfta_nb.members.tree import flatten
from hfta_nb.members.views import narrowed
from hfta_nb.padded.mode import active
from hfta_nb.padded.runtime import Across, across_of
from hfta_nb.padded.tags import box, tag_of

if TYPE_CHECKING:
    from hfta_nb.eager.engine import Block


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
        for architecture in _representatives(across):
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


def _representatives(across: Across) -> list[int]:
    """The architectures that are compared: of a roomy array, where all run at the full sizes, the smallest and the
    largest of each kind."""
    templates = across.blueprint.templates
    if not across.roomy:
        return list(range(len(templates)))
    kinds: dict[Any, list[int]] = {}
    for number in dict.fromkeys(across.blueprint.of):
        kinds.setdefault(tuple(type(m) for m in templates[number].modules()), []).append(number)
    sizes = [sum(p.numel() for p in t.parameters()) for t in templates]
    return [pick(of, key=sizes.__getitem__) for of in kinds.values() for pick in (min, max)]


def _finite(found: Found) -> bool:
    tensors = [v for v in flatten(found[0])[0] if isinstance(v, Tensor)]
    tensors += [g for rows in found[1].values() for g in rows.values()]
    return all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point())


def _different(together: Found, alone: Found, member: int) -> str:
    """What differs: "result", "gradient of ..." or nothing."""
    left, right = (flatten(found[0])[0] for found in (together, alone))
    for a, b in zip(left, right, strict=True):
        if isinstance(a, Tensor) and not close(a[member], b[0], size(b)):
            return "result"
    largest = max((size(rows[member]) for rows in alone[1].values() if member in rows), default=0.0)
    for name, rows in alone[1].items():
        own = together[1].get(name, {}).get(member)
        if member in rows and (own is None or not close(narrowed(own, rows[member].shape, 0), rows[member], largest)):
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
    names = (name for name, value in alone.items() if not close(together[name], value, size(value)))
    return next(names, "")


def _parting(
    state: ArrayState, probe: Callable[[Sequence[Block]], Found], member: int, restore: Callable[[], None]
) -> str | None:
    across = across_of(state)
    assert across is not None
    architecture = across.blueprint.of[member]
    block = next(b for b in leaf_blocks(state) if b.start <= member < b.stop)
    own = across.blueprint.modules[architecture]

    def own_modules() -> dict[str, nn.Module]:
        restore()  # which forgets them
        template = state.engine.own_module(member)
        return {own[path]: module for path, module in template.named_modules() if path in own}

    def rows(tensors: list[Tensor]) -> list[Tensor]:
        context = active().context
        row = list(context.indices).index(member)
        tags = [tag_of(t) for t in tensors]
        with context.outside():
            pairs = zip(tensors, tags, strict=True)
            return [narrowed(context.stacked(t)[row], box(t.shape, tag, row), 0) for t, tag in pairs]

    skeleton = dict(across.blueprint.skeleton.named_modules())
    alone = member_block(state, member)
    return parting(skeleton, lambda: probe([block]), own_modules, lambda: probe(alone), rows)
