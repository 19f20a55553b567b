"""The description of an array's members of different architectures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.members.arena import is_held_once
from hfta_nb.engine.members.copying import copied_module
from hfta_nb.engine.members.flattening import prevent_flattening
from hfta_nb.engine.members.in_common import in_common
from hfta_nb.engine.members.views import narrowed
from hfta_nb.engine.padded.compare import difference
from hfta_nb.engine.padded.merge import Merger
from hfta_nb.engine.padded.unlike import Unlike


class Blueprint:
    """Members, their architectures, and the skeleton that contains all of them.

    Args:
        templates: one plain module per architecture; copied unless `spent`.
        of: by member, the number of its architecture.
        spent: nobody else uses the templates.

    Attributes:
        skeleton: the union of the members; its tensors have no memory.
        templates, of: as given.
        names: by architecture, from the member's names of parameters and buffers to those of the skeleton.
        every_name: the same with all names of a tied tensor.
        modules: by architecture, from its own paths of modules to those of the skeleton.
        shapes: by architecture and own name, the shape.
        absent, completed: see `Merger`.
        preallocated: whether member i has architecture i, and that alone; see `padded.preallocated`.
        rooms: the modules that the skeleton was merged from: there is room for each.

    Raises:
        FusionError: they cannot be fused.
    """

    def __init__(self, templates: Sequence[nn.Module], of: Sequence[int], spent: bool = False) -> None:
        own = templates if spent else [copied_module(t, _without_memory(t), where="fuse") for t in templates]
        self.templates = [prevent_flattening(t) for t in own]
        self.of = list(of)
        self.preallocated = False
        self.rooms, self._room_of = list(self.templates), list(range(len(templates)))
        self._merge([self.of.index(a) if a in self.of else 0 for a in range(len(templates))])

    def _merge(self, members: Sequence[int]) -> None:
        """Merge the rooms, always in the same order: the skeleton has the same modules and names each time.

        Args:
            members: by room, one of its members; for messages.
        """
        merger = Merger(self.rooms, members)
        self.skeleton, room_of, self._room_modules = merger.merge(), self._room_of, merger.modules
        self.names, self.modules = [dict(merger.names[r]) for r in room_of], [merger.modules[r] for r in room_of]
        self.every_name = [merger.every_name[r] for r in room_of]
        self.absent = [merger.absent[r] for r in room_of]
        self.completed, self.sites = merger.completed, merger.sites
        for keyed in [*(s.values for s in merger.sites), *(u.kind_of for u in merger.unlikes)]:
            by_room: dict[int, Any] = dict(keyed)
            keyed.clear()
            keyed.update({a: by_room[r] for a, r in enumerate(room_of) if r in by_room})
        self.shapes = [_shapes(m) for m in self.templates]
        self._boxes = [
            {target: shapes[own] for own, target in names.items()}
            for names, shapes in zip(self.names, self.shapes, strict=True)
        ]
        self.union = _shapes(self.skeleton)

    @classmethod
    def for_modules(cls, modules: Sequence[nn.Module], preallocated: bool = False) -> Blueprint:
        """The blueprint of these members; with `preallocated`, each has an architecture of its own, which may be
        replaced, and the modules are used up."""
        if preallocated:
            made = cls(modules, range(len(modules)), spent=True)
            made.preallocated = True
            return made
        templates: list[nn.Module] = []
        of: list[int] = []
        for module in modules:
            found = next((i for i, t in enumerate(templates) if t is module or difference(t, module) is None), None)
            if found is None:
                found = len(templates)
                templates.append(module)
            of.append(found)
        return cls(templates, of)

    def select(self, indices: Sequence[int]) -> Blueprint:
        """The blueprint of some of the members, with the same skeleton, so that every tensor keeps its layout."""
        if not self.preallocated:
            return Blueprint(self.templates, [self.of[i] for i in indices])
        copies = {id(room): copied_module(room, where="fuse") for room in self.rooms}
        here = dict(self.skeleton.named_modules())
        for room, paths in zip(self.rooms, self._room_modules, strict=True):
            for path, module in copies[id(room)].named_modules():  # nobody has kept up the mode of all rooms
                module.training = nearest(here, paths[path]).training
        made = object.__new__(Blueprint)
        made.rooms = [prevent_flattening(copies[id(room)]) for room in self.rooms]
        made._room_of, made.of, made.preallocated = [self._room_of[i] for i in indices], list(range(len(indices))), True
        # A room is the template of one member at most.
        own = [self.templates[i] for i in indices]
        chosen = [copies.pop(id(t)) if id(t) in copies else copied_module(t) for t in own]
        made.templates = [prevent_flattening(template) for template in chosen]
        made._merge([0] * len(made.rooms))
        for a, i in enumerate(indices):
            if self.templates[i] is not self.rooms[self._room_of[i]]:
                made.replace(a, made.templates[a])
        return made

    def replace(self, architecture: int, template: nn.Module) -> None:
        """Let an architecture have other sizes, for which there is room in the skeleton; see `preallocated.admits`."""
        self.templates[architecture] = prevent_flattening(template)
        self.shapes[architecture] = _shapes(template)
        names, modules = self.names[architecture], self.modules[architecture]
        self._boxes[architecture] = {target: self.shapes[architecture][own] for own, target in names.items()}
        here = {id(module): path for path, module in self.skeleton.named_modules()}
        own_path = {target: own for own, target in modules.items()}
        for path, unlike in self.skeleton.named_modules():
            if isinstance(unlike, Unlike) and unlike.bare:
                unlike.put(architecture, unlike.kind_like(template.get_submodule(own_path[path])) or 0)
        for site in self.sites:
            own = own_path.get(here.get(id(site.module), ""))
            if own is not None and id(site.module) in here and architecture in site.values:
                held = template.get_submodule(own).__dict__  # which an added adapter is not in
                site.values[architecture] = held.get(site.name, site.values[architecture])

    def boxes(self, architecture: int) -> dict[str, tuple[int, ...]]:
        """An architecture's shapes, by name in the skeleton."""
        return self._boxes[architecture]

    def stacked(self, modules: Sequence[nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The members' parameters and buffers, padded with zeros to ``[M, *shape]``, by name in the skeleton; what they
        can hold once, and none pads, is expanded from the first member's."""
        found: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        once = {} if self.preallocated else in_common(
            [{self.names[a][n]: p for n, p in m.named_parameters()} for m, a in zip(modules, self.of, strict=True)]
        )  # fmt: skip
        for result, get in zip(found, (nn.Module.named_parameters, nn.Module.named_buffers), strict=True):
            for name, tensor in get(self.skeleton):
                if name in once and once[name].shape == tensor.shape:
                    result[name] = once[name].detach().expand(len(modules), *tensor.shape)
                    continue
                device = next(t.device for m in modules for t in [*m.parameters(), *m.buffers()])
                result[name] = torch.zeros(len(modules), *tensor.shape, dtype=tensor.dtype, device=device)
            for i, module in enumerate(modules):
                for name, tensor in get(module):
                    target = result[self.names[self.of[i]][name]][i]
                    if is_held_once(result[self.names[self.of[i]][name]]):
                        continue
                    narrowed(target, tensor.shape, 0).copy_(tensor.detach())
        return found

    def owned(self) -> Iterator[tuple[str, Tensor]]:
        """For every tensor with padding, which entries belong to the members: bool ``[M, *shape]``."""
        boxes = [self.boxes(a) for a in range(len(self.templates))]
        for name, shape in self.union.items():
            if all(boxes[a].get(name) == shape for a in self.of):
                continue
            own = torch.zeros(len(self.of), *shape, dtype=torch.bool)
            for i, a in enumerate(self.of):
                if name in boxes[a]:
                    narrowed(own[i], boxes[a][name], 0).fill_(True)
            yield name, own

    def owned_row(self, member: int) -> Iterator[tuple[str, Tensor]]:
        """For every tensor, which entries are a member's own: bool ``[*shape]``."""
        boxes = self.boxes(self.of[member])
        for name, shape in self.union.items():
            own = torch.zeros(shape, dtype=torch.bool)
            if name in boxes:
                narrowed(own, boxes[name], 0).fill_(True)
            yield name, own

    def waste(self) -> float:
        """The fraction of the parameters that is padding."""
        names = [n for n, _ in self.skeleton.named_parameters()]
        total = len(self.of) * sum(math.prod(self.union[n]) for n in names)
        used = sum(math.prod(self.boxes(a).get(n, (0,))) for a in self.of for n in names)
        return 1 - used / total if total else 0.0

    def own_tensors(self, member: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A member's own tensors, by its own names, from tensors ``[M, *shape]`` of the skeleton."""
        a = self.of[member]
        return {
            own: narrowed(tensors[target][member], self.shapes[a][own], 0)
            for own, target in self.names[a].items()
            if target in tensors
        }

    def unpad(self, member: int) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """A function from one member's row of the skeleton's `state_dict` to the `state_dict` of its plain module."""
        a = self.of[member]
        shapes = {k: getattr(value, "shape", None) for k, value in self.templates[a].state_dict().items()}
        names = self.every_name[a]

        def narrow(row: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {
                key: row[key] if shape is None else narrowed(row[names[key]], tuple(shape), 0)  # an extra state
                for key, shape in shapes.items()
                if shape is not None or key in row
            }

        return narrow


def _without_memory(module: nn.Module) -> dict[int, Any]:
    """What takes the place of frozen parameters in a copy whose values nobody reads, by their ids."""
    frozen = [p for p in module.parameters() if type(p) is nn.Parameter and not p.requires_grad]
    return {id(p): nn.Parameter(p.detach().new_zeros(()).expand(p.shape), requires_grad=False) for p in frozen}


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {n: tuple(t.shape) for n, t in [*module.named_parameters(), *module.named_buffers()]}


def nearest(modules: Mapping[str, nn.Module], path: str) -> nn.Module:
    """The module at a path, or the innermost one above it."""
    while path not in modules:
        path = path.rpartition(".")[0]
    return modules[path]
