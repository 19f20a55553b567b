"""Members of other sizes in the places of an array that runs already.

In a *preallocated* array all members run at the full padded sizes, with no note of what is whose. That is right for
models that keep zeros at zero (linear layers, convolutions, ReLU, ...), of which the proof by execution sees to it;
what is recorded of such an array holds for members of any sizes that find room.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from hfta_nb.engine.members.copying import copied_module
from hfta_nb.engine.padded.compare import INTERNAL, Comparison
from hfta_nb.engine.padded.runtime import PaddedArchitectures
from hfta_nb.engine.padded.unlike import Unlike


def admits(architectures: PaddedArchitectures, member: int, module: nn.Module) -> bool:
    """Whether a module can take a member's place, and all that was recorded stays good: it differs in sizes alone."""
    blueprint = architectures.blueprint
    a = blueprint.of[member]
    if (
        not architectures.preallocated
        or architectures.separate_reason
        or architectures.separate
        or blueprint.of.count(a) != 1
    ):
        return False
    old = blueprint.templates[a]
    shapes = {n: tuple(t.shape) for n, t in [*module.named_parameters(), *module.named_buffers()]}
    if shapes.keys() != blueprint.shapes[a].keys():
        return False
    for name, shape in shapes.items():
        room = blueprint.union[blueprint.names[a][name]]
        if len(room) != len(shape) or any(n > m for n, m in zip(shape, room, strict=True)):
            return False
    return _alike(architectures, a, old, module)


def _alike(architectures: PaddedArchitectures, a: int, old: nn.Module, new: nn.Module) -> bool:
    """Whether two modules differ in nothing but whole numbers that differ between members already."""
    mine, theirs = dict(old.named_modules()), dict(new.named_modules())
    if mine.keys() != theirs.keys():
        return False
    skeleton = dict(architectures.blueprint.skeleton.named_modules())
    varied = {(id(site.module), site.name) for site in architectures.blueprint.sites}
    inside = {id(site.module) for site in architectures.blueprint.sites}
    for path, module in mine.items():
        other = theirs[path]
        comparison = Comparison(old, new)
        here = skeleton.get(architectures.blueprint.modules[a][path])
        if isinstance(here, Unlike) and here.choice is not None:
            if here.kind_like(other) is None or any(id(kind) in inside for kind in here.kinds):
                return False
            continue
        if not comparison.same_type(type(module), type(other)):
            return False
        left, right = (_attributes(m) for m in (module, other))
        if left.keys() != right.keys():
            return False
        for name, value in left.items():
            if comparison.same(value, right[name]):
                continue
            numbers = type(value) is int and type(right[name]) is int
            if not numbers or (id(here), name) not in varied:
                return False
    return True


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {k: v for k, v in module.__dict__.items() if k not in INTERNAL and k != "training"}


def admit(architectures: PaddedArchitectures, member: int, module: nn.Module, spent: bool = False) -> None:
    """Let a module that `admits` has nothing against be a member's architecture.

    Args:
        spent: nobody else uses the module, so that no copy is needed.
    """
    a = architectures.blueprint.of[member]
    architectures.blueprint.replace(a, module if spent else copied_module(module))
    architectures.replaced(a)
