"""Execution of a block of members of different architectures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.executable_module import BlockTensors, ExecutableModule
from hfta_nb.engine.eager.intercept import Handler
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.copying import copied_module
from hfta_nb.engine.members.tensor_slots import TensorSlots
from hfta_nb.engine.members.views import narrowed
from hfta_nb.engine.padded.blueprint import Blueprint, nearest
from hfta_nb.engine.padded.merge import Site
from hfta_nb.engine.padded.mode import PaddedMode, active
from hfta_nb.engine.padded.rules import PADDED
from hfta_nb.engine.padded.tags import Tag, box, rows_of, tag_of, tagged, views
from hfta_nb.engine.padded.unlike import Alternative, Unlike, in_groups
from hfta_nb.engine.rules import Context
from hfta_nb.errors import FusionError


class PaddedArchitectures:
    """Creates the modules that an engine runs.

    Members of one architecture run as their own plain module, at their true sizes. Members of several architectures run
    through the skeleton, padded to the largest of them.

    Attributes:
        separate_reason: why members of different architectures do not run together; empty if they do.
        preallocated: whether those that do run at the full sizes; see `preallocated`.
        separate: whether parts of the model run each architecture by itself.
    """

    def __init__(self, blueprint: Blueprint, slots: TensorSlots) -> None:
        self.blueprint, self.slots = blueprint, slots
        self.preallocated = False
        self.separate_reason = ""
        self._template_slots: dict[int, TensorSlots] = {}
        self._find_flags()
        self._handlers: dict[str, Handler] = {}
        self._masks: dict[tuple[str, tuple[int, ...], torch.device], Tensor] = {}

    def _find_flags(self) -> None:
        self._here = dict(self.blueprint.skeleton.named_modules())
        self._flags = [self._flags_of(a) for a in range(len(self.blueprint.templates))]

    def _flags_of(self, architecture: int) -> list[tuple[nn.Module, nn.Module]]:
        """The modules of a template, each with that of the skeleton whose mode it has."""
        paths, template = self.blueprint.modules[architecture], self.blueprint.templates[architecture]
        return [(module, nearest(self._here, paths[path])) for path, module in template.named_modules()]

    def _slots_of(self, architecture: int) -> TensorSlots:
        """The slots of a template; most are never asked for."""
        if architecture not in self._template_slots:
            self._template_slots[architecture] = TensorSlots(self.blueprint.templates[architecture])
        return self._template_slots[architecture]

    def set_preallocated(self, device: torch.device | None) -> None:
        """Let members run at the full sizes, with their tensors on this device; or no longer, without."""
        self.preallocated = device is not None
        for module in self.blueprint.skeleton.modules():
            if isinstance(module, Unlike):
                module.choice = None
                if device is not None:
                    module.choose(len(self.blueprint.templates), device)

    @property
    def separate(self) -> bool:
        return bool(self._handlers)

    def replaced(self, architecture: int) -> None:
        """An architecture has another template now."""
        self._template_slots.pop(architecture, None)
        self._flags[architecture] = self._flags_of(architecture)
        self._masks.clear()

    def executables(self, run: BlockTensors) -> list[ExecutableModule]:
        """The executable modules for members with tensors ``[k, *shape]``, or ``[*shape]`` for a single one."""
        self.copy_flags()
        of = [self.blueprint.of[i] for i in run.members]
        if run.single:
            return [self._like(run, [0], of[0], alone=True)]
        if (self.preallocated or len(set(of)) > 1) and not self.separate_reason:
            return [self._unlike(run, of)]
        groups: dict[int, list[int]] = {}
        for row, a in enumerate(of):
            groups.setdefault(a, []).append(row)
        return [self._like(run, rows, a, alone=len(rows) == 1) for a, rows in groups.items()]

    @property
    def templates(self) -> list[nn.Module]:
        """A plain module of each architecture."""
        return self.blueprint.templates

    @property
    def sites(self) -> list[Site]:
        """Attributes that are set for the members that run, or for which a replay reads tensors instead."""
        unlike = (m for m in self.blueprint.skeleton.modules() if isinstance(m, Unlike) and m.choice is not None)
        return [*self.blueprint.sites, *(Site(module, "kind_of", {}) for module in unlike)]

    def template(self, member: int) -> nn.Module:
        """The plain module of a member."""
        return self.blueprint.templates[self.blueprint.of[member]]

    def boxes(self, member: int) -> dict[str, tuple[int, ...]]:
        """The shapes of a member's own tensors, by name in the skeleton."""
        return self.blueprint.boxes(self.blueprint.of[member])

    def groups(self) -> list[list[int]]:
        """Members, of each group of which one is compared with its plain module: those of one architecture.

        In a preallocated array all members run at the full sizes: the smallest and the largest of each kind are
        compared.
        """
        of = self.blueprint.of
        if not self.preallocated:
            return [[i for i, a in enumerate(of) if a == architecture] for architecture in sorted(set(of))]
        kinds: dict[Any, list[int]] = {}
        for i, a in enumerate(of):
            kinds.setdefault(tuple(type(m) for m in self.templates[a].modules()), []).append(i)
        sizes = [sum(p.numel() for p in self.templates[a].parameters()) for a in of]
        found = [pick(members, key=sizes.__getitem__) for members in kinds.values() for pick in (min, max)]
        return [[member] for member in dict.fromkeys(found)]

    def slots_of(self, member: int) -> TensorSlots:
        """The slots of a member's plain module."""
        return self._slots_of(self.blueprint.of[member])

    def own(self, member: int, tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        """A member's tensors without padding, by its own names, from those of the skeleton."""
        a = self.blueprint.of[member]
        found = {own: tensors[target] for own, target in self.blueprint.names[a].items() if target in tensors}
        shapes = self.blueprint.shapes[a]
        return {own: None if t is None else narrowed(t, shapes[own], 0) for own, t in found.items()}

    def names(self, member: int) -> Mapping[str, str]:
        """From the names of a member's own tensors to those of the skeleton."""
        return self.blueprint.names[self.blueprint.of[member]]

    def paths(self, member: int) -> Mapping[str, str]:
        """From the paths of a member's own submodules to those of the skeleton."""
        return self.blueprint.modules[self.blueprint.of[member]]

    def rows(self, member: int) -> Callable[[list[Tensor]], list[Tensor]]:
        """A function that selects a member's tensors, without padding, from those of a block."""

        def rows(tensors: list[Tensor]) -> list[Tensor]:
            context = active().context
            row = list(context.indices).index(member)
            tags = [tag_of(t) for t in tensors]
            with context.outside():
                pairs = zip(tensors, tags, strict=True)
                return [narrowed(context.stacked(t)[row], box(t.shape, tag, row), 0) for t, tag in pairs]

        return rows

    def lacking(self, name: str) -> list[int]:
        """The members without a tensor of this name."""
        boxes = [self.blueprint.boxes(a) for a in range(len(self.blueprint.templates))]
        return [i for i, a in enumerate(self.blueprint.of) if name not in boxes[a]]

    def set_fallbacks(self, paths: Collection[str], separate_reason: str) -> None:
        """Set which submodules run each architecture separately; with a `separate_reason`, the whole model does."""
        self.separate_reason = separate_reason
        whole = {self._whole(path) for path in paths}
        self._handlers = {path: by_architecture(self.blueprint, path) for path in whole}

    def _whole(self, path: str) -> str:
        """The path, or that of the layer with an adapter around it which some architectures lack."""
        around = (outer for outer in self.blueprint.completed if path.startswith(f"{outer}."))
        return min(around, key=len, default=path)

    def member(self, index: int, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> nn.Module:
        """A member as its own plain module, with copies of its tensors."""
        a = self.blueprint.of[index]
        self.copy_flags()
        own: dict[str, Tensor] = {
            k: nn.Parameter(v.detach().clone(), requires_grad=v.requires_grad)
            for k, v in self.blueprint.own_tensors(index, parameters).items()
        }
        own |= {k: v.detach().clone() for k, v in self.blueprint.own_tensors(index, buffers).items()}
        with self.slots_of(index).filled(own):
            return copied_module(self.blueprint.templates[a])

    def state(self, index: int, array: nn.Module) -> dict[str, Tensor]:
        """Views of a member's tensors, by the keys of its own `state_dict`."""
        a = self.blueprint.of[index]
        tensors = {k: v.detach() for k, v in [*array.named_parameters(), *array.named_buffers()]}
        with self.slots_of(index).filled(self.blueprint.own_tensors(index, tensors)):
            return self.blueprint.templates[a].state_dict()

    def copy_flags(self) -> None:
        """Set train and eval flags of the plain modules to those of the skeleton."""
        for flags in self._flags:
            for module, here in flags:
                if module.training is not here.training:
                    module.training = here.training

    def _like(self, run: BlockTensors, rows: list[int], architecture: int, *, alone: bool) -> ExecutableModule:
        names, shapes = self.blueprint.names[architecture], self.blueprint.shapes[architecture]

        def part(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            given = {own: tensors[name] for own, name in names.items() if name in tensors}
            if alone:
                given = {own: t if run.single else t[rows[0]] for own, t in given.items()}
                return {own: narrowed(t, shapes[own], 0) for own, t in given.items()}
            return {own: narrowed(rows_of(t, rows), shapes[own]) for own, t in given.items()}

        parameters, buffers = part(run.parameters), part(run.buffers)
        in_place = alone or views(rows)

        def finish(replaced: Mapping[str, Tensor]) -> None:
            for own, value in buffers.items():
                if own in replaced:
                    value.copy_(replaced[own])
                if not in_place:
                    for i, row in enumerate(rows):
                        narrowed(run.buffers[names[own]][row], shapes[own], 0).copy_(value[i])

        return ExecutableModule(
            self.blueprint.templates[architecture],
            self._slots_of(architecture),
            parameters,
            buffers,
            rows,
            finish,
            copies=() if in_place else list(parameters),
            single=alone,
        )

    def _unlike(self, run: BlockTensors, of: list[int]) -> ExecutableModule:
        boxes = [{**self.blueprint.absent[a], **self.blueprint.boxes(a)} for a in of]
        tags: dict[str, Tag] = {}
        copies = []
        parts: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        for part, tensors in zip(parts, (run.parameters, run.buffers), strict=True):
            for name, tensor in tensors.items():
                if self.preallocated:
                    part[name] = tensor
                    continue
                own = [b.get(name) or (0,) * (tensor.ndim - 1) for b in boxes]
                shape = [max(n) for n in zip(*own, strict=True)]
                value = narrowed(tensor, shape)
                tags[name] = tuple(zip(*own, strict=True))
                if tensor.requires_grad and not tensor.is_leaf and any(c and len(set(c)) > 1 for c in tags[name]):
                    # Padding gets no gradient, not even from a member that has diverged to NaN. (The padding of leaves
                    # is cleared on delivery, in one pass over the arena.)
                    copies.append(name)
                    value = torch.where(self._mask(name, own, shape, value.device), value, value.new_zeros(()))
                part[name] = value
        parameters, buffers = parts

        @contextmanager
        def within(context: Context, state: Mapping[str, Tensor]) -> Iterator[None]:
            for site in self.blueprint.sites:
                site.set(of)
            for name, tensor in state.items():
                tagged(tensor, tags.get(name))
            with PaddedMode(context, PADDED, of):
                yield

        def finish(replaced: Mapping[str, Tensor]) -> None:
            for name, value in replaced.items():
                buffers[name].copy_(value)

        return ExecutableModule(
            self.blueprint.skeleton,
            self.slots,
            parameters,
            buffers,
            list(range(len(of))),
            finish,
            within,
            _unpadded,
            self._handlers,
            padded=True,
            copies=copies,
        )

    def _mask(self, name: str, own: list[tuple[int, ...]], shape: list[int], device: torch.device) -> Tensor:
        key = (name, tuple(n for b in own for n in b), device)
        if key not in self._masks:
            mask = torch.zeros(len(own), *shape, dtype=torch.bool, device=device)
            for row, box in zip(mask, own, strict=True):
                narrowed(row, box, 0).fill_(True)
            self._masks[key] = mask
        return self._masks[key]


def architectures_of(state: ArrayState) -> PaddedArchitectures | None:
    """Creates the executable modules of an array; None if all members have one architecture."""
    found = state.engine.architectures
    assert found is None or isinstance(found, PaddedArchitectures)  # the only implementation
    return found


def by_architecture(blueprint: Blueprint, path: str) -> Handler:
    """A handler that runs the submodule at a path of the skeleton at true sizes, each architecture separately."""
    place = TensorSlots(blueprint.skeleton.get_submodule(path))
    kinds: list[Alternative] = []
    kind_of: dict[int, int | None] = {}
    for a, template in enumerate(blueprint.templates):
        own = next((o for o, target in blueprint.modules[a].items() if target == path), None)
        kind_of[a] = None if own is None else len(kinds)
        if own is not None:
            module = template.get_submodule(own)
            slots = TensorSlots(module)
            targets = {n: blueprint.every_name[a][f"{own}.{n}"] for n in [*slots.parameters, *slots.buffers]}
            kinds.append(Alternative(module, slots, {n: t.removeprefix(f"{path}.") for n, t in targets.items()}))

    def handler(context: Context, module: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        return in_groups(active(), kinds, kind_of, place.current(), args, kwargs)

    return handler


def _unpadded(value: Tensor) -> None:
    """Check that a result is not padded.

    Raises:
        FusionError: members' results have different shapes.
    """
    if tag_of(value) is not None:
        raise FusionError(
            "members of different architecture give outputs of different shapes",
            where="the model's output",
            got=tag_of(value),
            remedy="give them a last layer of one size, or fuse them in separate arrays",
        )
