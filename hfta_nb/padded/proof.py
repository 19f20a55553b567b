"""Proves, once per array, that members of different architectures give the results of their plain modules.

Rules cannot cover what a model computes from its sizes outside of tensors. Therefore the first call of each kind is
repeated for one member of every architecture alone, and the results are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hfta_nb.eager.blocks import leaf_blocks, member_block
from hfta_nb.eager.compare_outcomes import differences, mismatch
from hfta_nb.eager.divergence import first_divergence
from hfta_nb.eager.outcome import MemberOutcome, result_outcome, stream_outcome
from hfta_nb.eager.retry import ProbeResult
from hfta_nb.eager.state import ArrayState
from hfta_nb.members.views import narrowed
from hfta_nb.padded.mode import active
from hfta_nb.padded.runtime import PaddedArchitectures, architectures_of
from hfta_nb.padded.tags import box, tag_of

if TYPE_CHECKING:
    from hfta_nb.eager.engine import Block


def prove(state: ArrayState, probe: Callable[[Sequence[Block]], ProbeResult]) -> None:
    """Compare one member of every architecture with its plain module; members that have diverged to NaN are skipped.

    Args:
        probe: computes some blocks and discards the effects.

    Raises:
        Mismatch: the results differ.
    """
    architectures = architectures_of(state)
    assert architectures is not None  # the caller checks this
    restore = state.snapshot()
    try:
        together = probe(leaf_blocks(state))
        left = _left_behind(state, range(len(state)))
        for architecture in _representatives(architectures):
            for member in [i for i, a in enumerate(architectures.blueprint.of) if a == architecture]:
                restore()
                alone = _outcome(probe(member_block(state, member)), 0, member, _left_behind(state, [member]))
                if not _finite(alone):
                    continue
                own = _outcome(together, member, member, left, alone)
                off = differences(own, alone, lambda _: True)
                if off:
                    restore()
                    path = _first_divergence(state, probe, member, restore)
                    raise mismatch(member, off[0], own, alone, path)
                break
    finally:
        restore()


def _representatives(architectures: PaddedArchitectures) -> list[int]:
    """The architectures that are compared: of a roomy array, whose members all run at the full sizes, the smallest and
    the largest of each kind."""
    templates = architectures.blueprint.templates
    if not architectures.roomy:
        return list(range(len(templates)))
    kinds: dict[Any, list[int]] = {}
    for number in dict.fromkeys(architectures.blueprint.of):
        kinds.setdefault(tuple(type(m) for m in templates[number].modules()), []).append(number)
    sizes = [sum(p.numel() for p in t.parameters()) for t in templates]
    return [pick(of, key=sizes.__getitem__) for of in kinds.values() for pick in (min, max)]


def _outcome(
    found: ProbeResult, row: int, member: int, left: Mapping[int, MemberOutcome], like: MemberOutcome | None = None
) -> MemberOutcome:
    """A member's part of a probe's result and of the state left behind.

    Args:
        found: the result.
        row: of the member in it.
        member: its number.
        left: see `_left_behind`.
        like: an outcome without padding; that of the result is removed.
    """
    of = result_outcome(found[0], row)
    of |= {f"gradient of {name}": rows[member] for name, rows in found[1].items() if member in rows}
    for name, value in (like or {}).items():
        if name.startswith("gradient") and name in of:
            of[name] = narrowed(of[name], value.shape, 0)
    return of | left[member]


def _finite(outcome: MemberOutcome) -> bool:
    computed = [v for k, v in outcome.items() if k.startswith(("result", "gradient")) and isinstance(v, Tensor)]
    return all(bool(t.isfinite().all()) for t in computed if t.is_floating_point())


def _left_behind(state: ArrayState, members: Sequence[int]) -> dict[int, MemberOutcome]:
    """State that a call changes: buffers and random streams, by member."""
    buffers = dict(state.tensors.named_buffers())
    return {
        i: {f"buffer {name}": value[i].clone() for name, value in buffers.items()}
        | stream_outcome(state.generators.states[i])
        for i in members
    }


def _first_divergence(
    state: ArrayState, probe: Callable[[Sequence[Block]], ProbeResult], member: int, restore: Callable[[], None]
) -> str | None:
    architectures = architectures_of(state)
    assert architectures is not None
    architecture = architectures.blueprint.of[member]
    block = next(b for b in leaf_blocks(state) if b.start <= member < b.stop)
    own = architectures.blueprint.modules[architecture]

    def member_modules() -> dict[str, nn.Module]:
        restore()  # this discards the members' modules
        template = state.engine.member_module(member)
        return {own[path]: module for path, module in template.named_modules() if path in own}

    def rows(tensors: list[Tensor]) -> list[Tensor]:
        context = active().context
        row = list(context.indices).index(member)
        tags = [tag_of(t) for t in tensors]
        with context.outside():
            pairs = zip(tensors, tags, strict=True)
            return [narrowed(context.stacked(t)[row], box(t.shape, tag, row), 0) for t, tag in pairs]

    skeleton = dict(architectures.blueprint.skeleton.named_modules())
    alone = member_block(state, member)
    return first_divergence(skeleton, lambda: probe([block]), member_modules, lambda: probe(alone), rows)
