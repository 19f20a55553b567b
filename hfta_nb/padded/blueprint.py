"""The description of an array's members of different architectures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from hfta_nb.members.copying import copied_module
from hfta_nb.members.flattening import prevent_flattening
from hfta_nb.members.views import narrowed
from hfta_nb.padded.compare import difference
from hfta_nb.padded.merge import Merger


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
        roomy: whether member i has architecture i, and that alone; see `padded.roomy`.
        spare: of such, templates of no member, for whose sizes there is room.

    Raises:
        FusionError: they cannot be fused.
    """

    def __init__(self, templates: Sequence[nn.Module], of: Sequence[int], spent: bool = False) -> None:
        own = templates if spent else [copied_module(t, where="fuse") for t in templates]
        self.templates = [prevent_flattening(t) for t in own]
        self.of = list(of)
        self.spare: list[nn.Module] = []
        self.roomy = False
        merger = Merger(self.templates, [self.of.index(a) if a in self.of else 0 for a in range(len(templates))])
        self.skeleton = merger.merge()
        self.names, self.modules, self.sites = merger.names, merger.modules, merger.sites
        self.every_name = merger.every_name
        self.shapes = [
            {n: tuple(t.shape) for n, t in [*m.named_parameters(), *m.named_buffers()]} for m in self.templates
        ]
        self._boxes = [
            {target: shapes[own] for own, target in names.items()}
            for names, shapes in zip(self.names, self.shapes, strict=True)
        ]
        self.union = {n: tuple(t.shape) for n, t in [*self.skeleton.named_parameters(), *self.skeleton.named_buffers()]}

    @classmethod
    def for_modules(cls, modules: Sequence[nn.Module], roomy: bool = False) -> Blueprint:
        """The blueprint of these members; with `roomy`, each has an architecture of its own, which may be replaced, and
        the modules are used up."""
        if roomy:
            made = cls(modules, range(len(modules)), spent=True)
            made.roomy = True
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
        if not self.roomy:
            return Blueprint(self.templates, [self.of[i] for i in indices])
        chosen = [self.templates[self.of[i]] for i in indices]
        others = [t for t in [*self.templates, *self.spare] if not any(t is own for own in chosen)]
        modes = {path: module.training for path, module in chosen[0].named_modules()}
        for other in others:  # nobody has kept up the mode of those that are spare
            for path, module in other.named_modules():
                module.training = modes.get(path, chosen[0].training)
        made = Blueprint([*chosen, *_needed(chosen, others)], range(len(chosen)))
        made.spare, made.roomy = made.templates[len(chosen) :], True
        return made

    def replace(self, architecture: int, template: nn.Module) -> None:
        """Let an architecture have other sizes, for which there is room in the skeleton."""
        self.templates[architecture] = prevent_flattening(template)
        self.shapes[architecture] = {
            n: tuple(t.shape) for n, t in [*template.named_parameters(), *template.named_buffers()]
        }
        names = self.names[architecture]
        self._boxes[architecture] = {target: self.shapes[architecture][own] for own, target in names.items()}

    def boxes(self, architecture: int) -> dict[str, tuple[int, ...]]:
        """An architecture's shapes, by name in the skeleton."""
        return self._boxes[architecture]

    def stacked(self, modules: Sequence[nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The members' parameters and buffers, padded with zeros to ``[M, *shape]``, by name in the skeleton."""
        found: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        for result, get in zip(found, (nn.Module.named_parameters, nn.Module.named_buffers), strict=True):
            for name, tensor in get(self.skeleton):
                device = next(t.device for m in modules for t in [*m.parameters(), *m.buffers()])
                result[name] = torch.zeros(len(modules), *tensor.shape, dtype=tensor.dtype, device=device)
            for i, module in enumerate(modules):
                for name, tensor in get(module):
                    target = result[self.names[self.of[i]][name]][i]
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

    def narrower(self, member: int) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """A function from one member's row of the skeleton's `state_dict` to the `state_dict` of its plain module."""
        a = self.of[member]
        shapes = {key: tuple(value.shape) for key, value in self.templates[a].state_dict().items()}
        names = {key: self.every_name[a][key] for key in shapes}

        def narrow(row: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {key: narrowed(row[names[key]], shape, 0) for key, shape in shapes.items()}

        return narrow


def _needed(chosen: Sequence[nn.Module], others: Sequence[nn.Module]) -> list[nn.Module]:
    """Those of the others without which a tensor would be smaller."""
    largest: dict[str, list[int]] = {}
    found = []
    for module in [*chosen, *sorted(others, key=lambda m: -sum(p.numel() for p in m.parameters()))]:
        more = False
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            known = largest.setdefault(name, [0] * tensor.ndim)
            if any(n > m for n, m in zip(tensor.shape, known, strict=True)):
                largest[name] = [max(n, m) for n, m in zip(tensor.shape, known, strict=True)]
                more = True
        if more and not any(module is one for one in chosen):
            found.append(module)
    return found
