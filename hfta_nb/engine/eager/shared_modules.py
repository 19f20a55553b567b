"""Warnings about what members share when they are fused, of which each member gets a copy; errors
about memory that attributes of one member share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hfta_nb.engine.eager.attributes import OWN, is_cache, is_ordinary
from hfta_nb.engine.eager.mutable_values import is_mutable
from hfta_nb.engine.eager.shared_memory import overlapping, parts, view_error, views_of
from hfta_nb.engine.eager.state import ArrayState, Snapshot
from hfta_nb.engine.eager.user_warnings import warn

_MEANINGS = (
    "If copies are meant, build each member with copy.deepcopy(...) of it; an array can't train one that all members "
    "share (train one module with several heads instead); one that is never trained is frozen by requires_grad_(False)"
)


def warn_of_shared(members: Sequence[nn.Module]) -> set[str]:
    """Warn of what members share and train.

    Args:
        members: the modules that are fused.

    Returns:
        The names, in the first member that has them, of what members share and do not train: tensors, and attributes
        that a call may change, such as lists.
    """
    holders: dict[int, list[tuple[int, str, Tensor]]] = {}
    for i, module in enumerate(members):
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if not is_lazy(tensor) and tensor.device.type != "meta" and tensor.numel():
                holders.setdefault(tensor.data_ptr(), []).append((i, name, tensor))
    shared = [held for held in holders.values() if len({i for i, _, _ in held}) > 1]
    trained = [held for held in shared if any(tensor.requires_grad for _, _, tensor in held)]
    found: dict[str, list[int]] = {}
    for held in trained:
        first, name, _ = held[0]
        found.setdefault(_outermost(members, first, name), sorted({i for i, _, _ in held}))
    if found:
        of = "; ".join(f"members {', '.join(map(str, numbers))} share `{path}`" for path, numbers in found.items())
        warn_of_copies(of)
    kept: dict[int, dict[int, str]] = {}
    for i, module in enumerate(members):
        for name, value in _attributes(module).items():
            if is_mutable(value):
                kept.setdefault(id(value), {}).setdefault(i, name)
    attributes = {next(iter(names.values())) for names in kept.values() if len(names) > 1}
    return attributes | {held[0][1] for held in shared if not any(tensor.requires_grad for _, _, tensor in held)}


def warn_of_copies(shared: str) -> None:
    """Warn that members share what they train, which is told in a sentence."""
    warn(f"{shared}: each gets a copy of its own, which it trains alone. {_MEANINGS}")


def warn_of_changing(name: str) -> None:
    """Warn that a call changes what members share."""
    warn(
        f"members share `{name}`, which the model changes when it is called: each changes a copy of its own, as often "
        f"as it is called alone. {_MEANINGS} and must not be changed by a call (eval() for batch norm)"
    )


def warn_of_changes(state: ArrayState, before: Snapshot) -> None:
    """Warn, once, if a call has changed what members shared and do not train."""
    if not state.shared:
        return
    set_by_calls = {".".join(filter(None, place)) for place in state.engine.attributes.values}
    changed = [*before.changed(state.shared), *sorted(state.shared & set_by_calls)]
    if changed:
        state.shared = frozenset()
        warn_of_changing(changed[0])


def views_in(module: nn.Module) -> dict[str, list[str]]:
    """The attributes, parameters and buffers of a module that are views of others, by name."""
    tensors = {name: t for name, t in [*module.named_parameters(), *module.named_buffers()] if not is_lazy(t)}
    overlap = {name for name, _ in overlapping(parts(tensors))}
    shared = {name: tensors.pop(name) for name in list(tensors) if name in overlap}
    return views_of({**_attributes(module), **shared}, tensors)


def _attributes(module: nn.Module) -> dict[str, Any]:
    """What a module and its submodules hold beside tensors, hooks and submodules, by name."""
    return {
        f"{path}.{name}" if path else name: value
        for path, inner in module.named_modules()
        for name, value in vars(inner).items()
        if name not in OWN and is_ordinary(name) and not is_cache(inner, name)
    }


def refuse_views(state: ArrayState, before: Snapshot) -> None:
    """Refuse a call that has written into what an attribute is a view of: members have copies of both.

    Raises:
        FusionError: it has; or an attribute is a view of a parameter that is trained, and the call has not set it anew.
    """
    engine = state.engine
    kept = {place: others for place, others in engine.views.items() if others and place not in engine.anew}
    for place in [place for place, others in kept.items() if before.changed(others)]:
        warn(
            f"the model has kept a view of a buffer, {', '.join(kept[place])}, and this call writes into that: "
            f"{'.'.join(filter(None, place))} has the values from before; take the view in each call: self.buffer[0]"
        )
        engine.views[place] = []
    if not state.viewed:
        return
    trained = {name for name, p in state.tensors.named_parameters() if p.requires_grad}
    written = {".".join(filter(None, place)) for place in state.engine.attributes.values}
    changed = written.union(before.changed({name for others in state.viewed.values() for name in others}))
    for name, others in state.viewed.items():
        apart = set(others) - trained
        if (apart and name in written) or (name not in written and (len(apart) < len(others) or changed & apart)):
            raise view_error("the model", ", ".join([name, *others]))


def _outermost(members: Sequence[nn.Module], member: int, name: str) -> str:
    """The path of the outermost module around a tensor that another member has too; else the tensor's name."""
    others: Collection[int] = {id(m) for i, module in enumerate(members) if i != member for m in module.modules()}
    parts = name.split(".")
    for length in range(1, len(parts)):
        path = ".".join(parts[:length])
        if id(members[member].get_submodule(path)) in others:
            return path
    return name
