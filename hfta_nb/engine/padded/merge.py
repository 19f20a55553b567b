"""Merges modules of different architectures into one.

The *skeleton* is the union of the members: each dimension is as large as the largest member's, each sequence of modules
as long as the longest. Numbers that differ (sizes, head counts, rates) become varied numbers, functions that differ
become `PerMemberFunction`s. Submodules that some members lack, or that differ in other ways, become `Unlike` modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.members.held_losses import losses_of
from hfta_nb.engine.members.marks import marked
from hfta_nb.engine.padded.absent_adapters import is_low_rank, with_rank_zero
from hfta_nb.engine.padded.align import aligned
from hfta_nb.engine.padded.attribute_values import reconcilable, reconciled
from hfta_nb.engine.padded.compare import INTERNAL, Comparison
from hfta_nb.engine.padded.records import keeps_records, recorded, unread
from hfta_nb.engine.padded.unlike import Holder, Unlike
from hfta_nb.engine.padded.why import REMEDY, Why, ends_apart
from hfta_nb.errors import FusionError

Mods = Mapping[int, nn.Module]
"""The modules at one position, by architecture."""


class Site:
    """An attribute of the skeleton whose value depends on the architecture."""

    def __init__(self, module: nn.Module, name: str, values: Mapping[int, Any]) -> None:
        self.module, self.name, self.values = module, name, dict(values)

    def set(self, architectures: Sequence[int]) -> None:
        """Set the attribute to the values of these members, without those that lack the module."""
        present = [self.values[a] for a in architectures if a in self.values]
        if present:
            together = recorded if keeps_records(self.module) else reconciled
            self.module.__dict__[self.name] = together(present)


class ApartError(FusionError):
    """Two members have nothing in common to fuse.

    Attributes:
        why: the difference between them.
    """

    def __init__(self, why: Why, first: int, other: int) -> None:
        super().__init__(f"differs from member {first}: {why}", where=f"fuse, member {other}", remedy=why.remedy)
        self.why = why


@dataclass
class _Place:
    """A module of the skeleton during construction.

    Attributes:
        shell: the module.
        mods: the modules that it represents, by architecture.
        own: by architecture, the module's path in the member.
        path: the same in the skeleton.
        base: the architecture whose module `shell` is a copy of.
        replaced: replacements in `shell` of tensors and children of `base`, by their `id`.
    """

    shell: nn.Module
    mods: Mods
    own: Mapping[int, str]
    path: str
    base: int
    replaced: dict[int, Any] = field(default_factory=dict)


class Merger:
    """Builds the skeleton of some architectures.

    Args:
        templates: one plain module per architecture.
        members: by architecture, one of its members; for messages.

    Attributes:
        sites: attributes to set for the members that run.
        names: by architecture, from its own names of parameters and buffers to those of the skeleton.
        every_name: the same, with all names of a tied tensor.
        modules: by architecture, from its own paths of modules to paths of the skeleton.
        unlikes: all `Unlike` modules, those within others too.
        completed: paths in the skeleton of layers with an adapter that some architectures lack.
        absent: by architecture, the shapes of the tensors of adapters that it lacks, by name in the skeleton.

    Raises:
        FusionError: from `merge`, if the modules have nothing in common to fuse.
    """

    def __init__(self, templates: Sequence[nn.Module], members: Sequence[int]) -> None:
        self.templates, self.members = templates, members
        self.sites: list[Site] = []
        self.unlikes: list[Unlike] = []
        self.names: list[dict[str, str]] = [{} for _ in templates]
        self.modules: list[dict[str, str]] = [{} for _ in templates]
        self.completed: set[str] = set()
        self.absent: list[dict[str, tuple[int, ...]]] = [{} for _ in templates]
        self._twins: dict[tuple[int, int], Tensor] = {}
        self._added: dict[int, nn.Module] = {}

    def merge(self) -> nn.Module:
        mods = dict(enumerate(self.templates))
        for other in range(1, len(mods)):
            found = self.apart(mods[0], mods[other]) or ends_apart(mods[0], mods[other])
            if found:
                raise ApartError(found, self.members[0], self.members[other])
        skeleton = self._shell(mods, dict.fromkeys(mods, ""), "")
        self.every_name = [dict(names) for names in self.names]
        for template, names in zip(self.templates, self.names, strict=True):
            _untie(template, names, skeleton)
        return skeleton

    # Which modules can be merged.

    def apart(self, a: nn.Module, b: nn.Module, path: str = "") -> Why | None:
        """The difference that prevents two modules from being one with varied numbers; their children may differ."""
        comparison = Comparison(a, b)
        if not comparison.same_type(type(a), type(b)):
            return Why.of(path, f"{type(a).__name__} and {type(b).__name__}", "build both from one class")
        left, right = ({k: v for k, v in m.__dict__.items() if k not in INTERNAL} for m in (a, b))
        for key in [*left, *(k for k in right if k not in left)]:
            where = _dotted(path, key)
            if key not in left or key not in right:
                which = "first" if key in left else "second"
                return Why.of(where, f"only the {which} has this attribute", "give it to both, or to neither")
            if _holds_own(left[key]) and _holds_own(right[key]):
                continue
            if keeps_records(a) and unread(left[key], right[key]):
                continue
            if not reconcilable(left[key], right[key], comparison):
                text = f"{_brief(left[key])} and {_brief(right[key])}"
                return Why.of(where, text, "make it the same: only numbers and functions may differ here")
        return _tensors_apart(a, b, path, comparison) or _children_apart(a, b, path)

    # Construction.

    def _merged(self, mods: Mods, absent: Sequence[int], own: dict[int, str], path: str) -> nn.Module:
        """The module for one position: a merged copy if all architectures have one that can be merged, otherwise
        `Unlike`."""
        mods = self._completed(mods, path)
        groups: list[list[int]] = []
        for a in mods:
            home = next((g for g in groups if self.apart(mods[g[0]], mods[a]) is None), None)
            if home is None:
                groups.append([a])
            else:
                home.append(a)
        if len(groups) == 1 and not absent:
            return self._shell(mods, own, path)
        kinds = []
        kind_of: dict[int, int | None] = dict.fromkeys(absent)
        for index, group in enumerate(groups):
            kinds.append(self._shell({a: mods[a] for a in group}, own, path))
            kind_of |= dict.fromkeys(group, index)
        unlike = Unlike(kinds, kind_of)
        for kind in kinds:
            _register(unlike, kind, path)
        unlike.index_tensors()
        self.unlikes.append(unlike)
        return unlike

    def _completed(self, mods: Mods, path: str) -> Mods:
        """The modules, with an adapter of rank 0 around each that is another's without an adapter."""
        adapters = [m for m in mods.values() if is_low_rank(m)]
        if not adapters:
            return mods
        found = dict(mods)
        for a, module in mods.items():
            fits = (m for m in adapters if self.apart(m._modules["base_layer"], module, path) is None)  # type: ignore[arg-type]
            if not is_low_rank(module) and (adapter := next(fits, None)) is not None:
                found[a] = shell = with_rank_zero(adapter, module)
                others = {*module.modules(), *adapter.modules()}
                self._added |= {id(part): part for part in shell.modules() if part not in others}
                self.completed.add(path)
        return found

    def _shell(self, mods: Mods, own: Mapping[int, str], path: str) -> nn.Module:
        """A copy of the largest module, with padded tensors and merged children."""
        base = max(mods, key=lambda a: (len(mods[a]._modules), -a))
        shell: nn.Module = object.__new__(type(mods[base]))
        shell.__dict__.update(mods[base].__dict__)
        for name in ("_parameters", "_buffers", "_modules"):
            shell.__dict__[name] = {}
        for name in [k for k in shell.__dict__ if k.endswith("_hooks")]:
            shell.__dict__[name] = shell.__dict__[name].copy()
        for a in mods:
            self.modules[a].setdefault(own[a], path)  # a plain layer within an added adapter stands for both
        place = _Place(shell, mods, own, path, base)
        self._add_tensors(place)
        self._add_children(place)
        self._add_attributes(place)
        return shell

    def _add_tensors(self, place: _Place) -> None:
        for kind in ("_parameters", "_buffers"):
            for key, tensor in getattr(place.mods[place.base], kind).items():
                if tensor is None:
                    getattr(place.shell, kind)[key] = None
                    continue
                new = self._union({a: getattr(m, kind)[key] for a, m in place.mods.items()})
                getattr(place.shell, kind)[key] = place.replaced[id(tensor)] = new
                target = _dotted(place.path, key)
                for a, module in place.mods.items():
                    if id(module) in self._added:
                        self.absent[a][target] = tuple(getattr(module, kind)[key].shape)
                    else:
                        self.names[a][_dotted(place.own[a], key)] = target

    def _union(self, each: Mapping[int, Tensor]) -> Tensor:
        """A tensor that is large enough for every architecture; the same object for tensors that are tied in all of
        them."""
        known = {self._twins.get((a, id(t))) for a, t in each.items()}
        if len(known) > 1:
            raise FusionError("a parameter is tied to another in some members only", where="fuse", remedy=REMEDY)
        twin = known.pop()
        if twin is None:
            first = next(iter(each.values()))
            shape = [max(n) for n in zip(*(t.shape for t in each.values()), strict=True)]
            twin = torch.empty(shape, dtype=first.dtype, device="meta")
            if isinstance(first, nn.Parameter):
                twin = marked(nn.Parameter(twin, requires_grad=first.requires_grad), first)
        for a, t in each.items():
            self._twins[a, id(t)] = twin
        return twin

    def _add_children(self, place: _Place) -> None:
        mods, shell = place.mods, place.shell
        for name, slot in _slots(mods):
            children = {a: mods[a]._modules[child] for a, child in slot.items()}
            each = {a: m for a, m in children.items() if m is not None}
            if not each:
                shell._modules[name] = None
                continue
            paths = {
                a: place.own[a] if id(mods[a]) in self._added else _dotted(place.own[a], child)
                for a, child in slot.items()
            }
            absent = [a for a in mods if a not in each]
            new = self._merged(each, absent, paths, _dotted(place.path, name))
            shell._modules[name] = new
            if place.base in each:
                place.replaced[id(each[place.base])] = new

    def _add_attributes(self, place: _Place) -> None:
        first = place.mods[place.base]
        for key, value in first.__dict__.items():
            if key in INTERNAL:
                continue
            if _holds_own(value):
                place.shell.__dict__[key] = type(value)(place.replaced.get(id(v), v) for v in value)
                continue
            if id(value) in place.replaced:
                place.shell.__dict__[key] = place.replaced[id(value)]
                continue
            values = {a: m.__dict__[key] for a, m in place.mods.items()}
            if any(not Comparison(first, m).same(value, values[a]) for a, m in place.mods.items()):
                self.sites.append(Site(place.shell, key, values))


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _register(unlike: Unlike, kind: nn.Module, path: str) -> None:
    """Register the tensors of a kind in an unlike module, under their names."""
    known: dict[int, Tensor] = {}
    named = [*kind.named_parameters(remove_duplicate=False), *kind.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        home: nn.Module = unlike
        *parts, key = name.split(".")
        for part in parts:
            if part not in home._modules:
                home._modules[part] = Holder()
            home = home._modules[part]  # type: ignore[assignment]
        mine: Any = home._parameters if isinstance(tensor, nn.Parameter) else home._buffers
        if key in mine:
            mine[key] = _wider(mine[key], tensor, f"{path}.{name}")
        else:
            mine[key] = known.setdefault(id(tensor), _copy(tensor, tensor.shape))
        if key in kind.get_submodule(".".join(parts))._non_persistent_buffers_set:
            home._non_persistent_buffers_set.add(key)


def _untie(template: nn.Module, names: dict[str, str], skeleton: nn.Module) -> None:
    """Keep the first name of each tied tensor, in the members and in the skeleton.

    Raises:
        FusionError: tensors that are tied in the member are not tied in the skeleton.
    """
    place: dict[str, int] = {}
    first: dict[int, str] = {}
    named = [*skeleton.named_parameters(remove_duplicate=False), *skeleton.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        place[name] = id(tensor)
        first.setdefault(id(tensor), name)
    seen: dict[int, str] = {}
    own = [*template.named_parameters(remove_duplicate=False), *template.named_buffers(remove_duplicate=False)]
    for name, tensor in own:
        target = first[place[names[name]]]
        if seen.setdefault(id(tensor), target) != target:
            raise FusionError("a tied parameter, where members differ", where=f"fuse, {name}", remedy=REMEDY)
        names[name] = target
    for name in names.keys() - {n for n, _ in [*template.named_parameters(), *template.named_buffers()]}:
        del names[name]


def _wider(a: Tensor, b: Tensor, where: str) -> Tensor:
    if a.ndim != b.ndim or a.dtype != b.dtype or a.requires_grad != b.requires_grad:
        raise FusionError(
            "members have different modules here, with tensors of one name that can't be one",
            where=where,
            got=[list(a.shape), list(b.shape)],
            remedy=REMEDY,
        )
    return _copy(a, [max(m, n) for m, n in zip(a.shape, b.shape, strict=True)])


def _copy(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    new = torch.empty(tuple(shape), dtype=tensor.dtype, device="meta")
    return nn.Parameter(new, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new


def _holds_own(value: Any) -> bool:
    """True if an attribute is a list of the module's own tensors or modules, as in an LSTM."""
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(v, Tensor | nn.Module) for v in value)


def _tensors_apart(a: nn.Module, b: nn.Module, path: str, comparison: Comparison) -> Why | None:
    for left, right in ((a._parameters, b._parameters), (a._buffers, b._buffers)):
        for key in [*left, *(k for k in right if k not in left)]:
            found = _tensor_apart(left.get(key), right.get(key), _dotted(path, key))
            if found or (key in left) != (key in right):
                return found or Why.of(path, f"only one of them has {key}", "give it to both, or to neither")
            marks = comparison.marks_difference(left.get(key), right.get(key))
            if marks:
                return Why.of(_dotted(path, key), marks, "give the parameters of all members equal attributes")
    if a._non_persistent_buffers_set != b._non_persistent_buffers_set:
        return Why.of(path, "persistent buffers that differ")
    return None


def _tensor_apart(x: Tensor | None, y: Tensor | None, where: str) -> Why | None:
    if x is None or y is None:
        text = "only one of them has this tensor"
        return None if x is y else Why.of(where, text, "give it to both, or to neither")
    if x.ndim != y.ndim:
        return Why.of(where, f"shapes {list(x.shape)} and {list(y.shape)}")
    if x.dtype != y.dtype:
        return Why.of(where, f"{x.dtype} and {y.dtype}", "convert one of them with .to(dtype)")
    if x.requires_grad != y.requires_grad:
        return Why.of(where, "requires_grad in one of them only", "freeze it in both, or in neither")
    return None if type(x) is type(y) else Why.of(where, f"{type(x).__name__} and {type(y).__name__}")


def _children_apart(a: nn.Module, b: nn.Module, path: str) -> Why | None:
    if list(a._modules) == list(b._modules):
        none = [n for n in a._modules if (a._modules[n] is None) != (b._modules[n] is None)]
        return Why.of(_dotted(path, none[0]), "None in one of them only") if none else None
    children = [m for own in (a, b) for m in own._modules.values()]
    if isinstance(a, nn.Sequential | nn.ModuleList) and all(m is not None for m in children):
        return None
    text = f"submodules {list(a._modules)} and {list(b._modules)}"
    remedy = "give them the same names, or keep blocks that may be left out in nn.Sequential or nn.ModuleList"
    return Why.of(path, text, remedy)


def _slots(mods: Mods) -> list[tuple[str, dict[int, str]]]:
    """The children of the skeleton: the name of each, and by architecture the name of its own child."""
    names = {a: list(m._modules) for a, m in mods.items()}
    first = next(iter(names.values()))
    if all(own == first for own in names.values()):
        return [(name, dict.fromkeys(mods, name)) for name in first]
    # Losses that members hold are no part of the sequence, and have the same names in all of them.
    losses = losses_of(next(iter(mods.values())))
    names = {a: [name for name in own if name not in losses] for a, own in names.items()}
    slots = aligned({a: [mods[a]._modules[name] for name in own] for a, own in names.items()})  # type: ignore[misc]
    named = [(str(i), {a: names[a][k] for a, k in slot.items()}) for i, slot in enumerate(slots)]
    return [*named, *((name, dict.fromkeys(mods, name)) for name in losses)]


def _brief(value: Any) -> str:
    text = getattr(value, "__qualname__", None) or repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
