"""Which variants train together, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from hfta_nb.data import AnyData, Stream, augment
from hfta_nb.engine.array import blueprint, difference, has_lazy
from hfta_nb.errors import FusionError, GridError
from hfta_nb.models import imbalance
from hfta_nb.models.phases import Phase
from hfta_nb.models.recipes import Family
from hfta_nb.search.grid import AxisSpec, Grid, Variant, show
from hfta_nb.train.plan.building import Builder, parameters_of
from hfta_nb.train.plan.estimate import activation_bytes, estimate
from hfta_nb.train.plan.group import Group
from hfta_nb.train.plan.rows import SPLITTING, form_of, row_of, rows_apart
from hfta_nb.train.plan.sizes import Shapes, Union, alike_but_for_sizes, plainly_merged, shapes_of, union

MOST_PADDING = {"cuda": 0.5, "cpu": 0.25, "search": 0.75}
"""The largest share of an array's parameters that is padding by default: a GPU has room to spare, a CPU has none. In a
search it is paid for by arrays that need not be built: trials train for few epochs, and are of any size."""

_OPTIMIZER_STATES = {"sgd": 1, "adagrad": 1}
"""States as large as the parameters; others have two."""


def make_plan(
    family: Family,
    grid: Grid,
    data: AnyData,
    fixed: Mapping[str, Any],
    *,
    serial: bool = False,
    padding: float | str = MOST_PADDING["cpu"],
    capacity: int | None = None,
    builder: Builder | None = None,
) -> list[Group]:
    """Group the variants of a grid by what fuses.

    Args:
        family, grid, data: of the study.
        fixed: values of axes that are not in the grid.
        serial: put every variant into a group of its own, to be trained as a plain module.
        padding: the largest share of an array's parameters that may be padding, where variants of different
            architecture share it; "never" to keep them apart.
        capacity: the most members of an array; None for any number.
        builder: of the same family and data, which knows modules already.

    Returns:
        Groups in the order of their first variants, variants in the order of the grid.

    Raises:
        GridError: an axis is unknown, a value is not accepted, or an axis would change nothing.
        FamilyError: the family can't build a variant.
    """
    specs = family.specs_for(data, [*grid.axes, *fixed])
    # Variants without a remedy for imbalanced classes have its default, so that they share arrays with the others.
    plain: dict[str, Any] = {
        name: spec.default for name, spec in specs.items() if name in grid.axes and spec.group == imbalance.GROUP
    }
    checked_fixed = plain | {k: _check(specs, family, data, k, v) for k, v in fixed.items()}
    variants = [
        Variant(v.id, {k: _check(specs, family, data, k, x) for k, x in v.config.items()}, v.seed)
        for v in grid.variants()
    ]
    if "seed" in checked_fixed:
        variants = [replace(v, seed=int(v.config.get("seed", checked_fixed["seed"]))) for v in variants]
    _check_used(family, grid, checked_fixed)
    _check_stream(grid, checked_fixed, data)
    builder = builder or Builder(family, data)
    defaults = {k: spec.default for k, spec in family.training.items()}
    drafts = [Draft.of(v, family, data, checked_fixed, builder, defaults) for v in variants]
    found = _alone(drafts) if serial else _shared_out(drafts, padding)
    settings = [augment.Setting.of(row) for draft in found for row in draft.rows]
    augment.check(settings, data, [name for name in specs if len(grid.axes.get(name, ())) > 1])
    for draft in found:  # now that the members are planned by what they were given
        draft.variants = [replace(v, config=whole(v.config, grid.axes, checked_fixed, specs)) for v in draft.variants]
    groups = [draft.group(i, data, serial) for i, draft in enumerate(found)]
    return groups if capacity is None else _capped(groups, capacity)


def _alone(drafts: list[Draft]) -> list[Draft]:
    for draft in drafts[1:]:
        draft.reason = "trained alone, as asked"
    return drafts


def _shared_out(drafts: Iterable[Draft], padding: float | str) -> list[Draft]:
    """Drafts of a variant each, joined: first those of one architecture, then what may be padded."""
    same: dict[tuple[Any, ...], Draft] = {}
    for draft in drafts:
        if (home := same.setdefault(draft.key, draft)) is not draft:
            home.join(draft, "never")
    found = list(same.values())
    for how in ("never", padding):
        found, waiting = [], found
        for draft in waiting:
            near = found
            if how != padding:  # members of other sizes are looked at with the share of padding that they may have
                near = [g for g in found if shapes_of(g.modules[0]) == shapes_of(draft.modules[0])]
            shared = next((g for g in near if g.apart(draft, how) is None), None)
            if shared is not None:
                shared.join(draft, how)
                continue
            draft.reason = _why(found, draft, how) if found else ""
            found.append(draft)
    return found


def whole(
    config: Mapping[str, Any], axes: Iterable[str], fixed: Mapping[str, Any], specs: Mapping[str, AxisSpec]
) -> dict[str, Any]:
    """A configuration with a value for every axis: what it lacks is fixed, or has its default."""
    lacking = {name: fixed.get(name, specs[name].default) for name in axes if name not in config}
    return {name: config[name] if name in config else lacking[name] for name in axes}


def _capped(groups: Sequence[Group], capacity: int) -> list[Group]:
    """No array of more members; new ones have numbers after all others, and stand after the one they come from."""
    found: list[Group] = []
    free = len(groups)
    for group in groups:
        parts = group.divided(capacity, f"at most {capacity} members, as asked", free)
        free += len(parts) - 1
        found += [replace(part, fitted=False) for part in parts]  # whether so many fit is still to be seen
    return found


@dataclass
class Draft:
    """A group while it grows; its first variant speaks for it."""

    variants: list[Variant]
    rows: list[dict[str, Any]]
    arguments: list[dict[str, Any]]
    modules: list[nn.Module]
    own_scores: bool
    phases: tuple[Phase, ...] = ()
    reason: str = ""
    fit: Union | None = None
    unlike: dict[int, nn.Module] = field(default_factory=dict)  # of `modules`, each once
    architectures: dict[Shapes, nn.Module] = field(default_factory=dict)  # of `unlike`, one of each size
    own: int = 0  # parameters of all members, without padding
    tried: dict[tuple[int, bool], tuple[str | None, Union | None]] = field(default_factory=dict)  # by `_fit`

    @classmethod
    def of(
        cls,
        variant: Variant,
        family: Family,
        data: AnyData,
        fixed: Mapping[str, Any],
        builder: Builder,
        defaults: Mapping[str, Any],
    ) -> Draft:
        values = {**fixed, **variant.config}
        row = row_of(values, family, data, defaults)
        made = cls.known(variant, row, family.arguments(values, data), family, builder)
        imbalance.layer_of(made.modules[0], row)  # raises if there is none
        return made

    @classmethod
    def known(
        cls, variant: Variant, row: dict[str, Any], arguments: dict[str, Any], family: Family, builder: Builder
    ) -> Draft:
        """The draft of a variant of which it is known what it is trained and built with."""
        own_scores = family.loss is not None or family.metrics is not None or bool(family.phases)
        modules = [builder.build(variant, arguments)]
        made = cls([variant], [row], [arguments], modules, own_scores, family.phases, own=builder.count(modules[0]))
        made.unlike[id(modules[0])] = made.architectures[shapes_of(modules[0])] = modules[0]
        return made

    @property
    def key(self) -> tuple[Any, ...]:
        """What decides about where its first variant trains."""
        row = self.rows[0]
        return (
            id(self.modules[0]),
            self.own_scores and self.mixes,
            *form_of(row).values(),
        )

    @property
    def mixes(self) -> bool:
        """Whether its targets are shares of classes."""
        return augment.Setting.of(self.rows[0]).mixes

    def apart(self, other: Draft, padding: float | str) -> str | None:
        """What keeps the other out of this group."""
        values = rows_apart(self.rows[0], other.rows[0])
        if values is not None:
            return values
        if self.own_scores and self.mixes != other.mixes:
            return (
                "mixup, cutmix: shares of classes where they are on, class numbers elsewhere, for an own loss or metric"
            )
        if self.rows[0].get("param_groups") is not None and shapes_of(self.modules[0]) != shapes_of(other.modules[0]):
            return "param_groups: it chooses by names and shapes, which are the member's own only where all are alike"
        found, fit = self._fit(other.modules[0], padding)
        if found is not None:
            return self._named(other, found)
        if fit is not None:
            waste = self._waste(fit, other)
            if waste > float(padding):
                found = f"{waste:.0%} of the parameters would be padding, more than {float(padding):.0%}"
        return found

    def _named(self, other: Draft, found: str) -> str:
        """A difference of architectures by the axes that make it: ``width: 8 and 16``."""
        apart = {}
        for name in other.variants[0].config:
            mine, theirs = (
                {show(variant.config.get(name)): None for variant in draft.variants} for draft in (self, other)
            )
            if not mine.keys() & theirs:
                apart[name] = f"{', '.join(mine)} and {', '.join(theirs)}"
        if not apart:
            return found
        named = ", ".join(f"{name}: {values}" for name, values in apart.items())
        # Where a layer differs just as the axis does, its name says no more.
        return named if found.partition(": ")[2] in apart.values() else f"{named} ({found})"

    def _waste(self, fit: Union, *more: Draft) -> float:
        """The share of padding, with the members of further drafts."""
        drafts = (self, *more)
        return 1 - sum(d.own for d in drafts) / max(1, sum(len(d.modules) for d in drafts) * fit.parameters)

    def _fit(self, new: nn.Module, padding: float | str) -> tuple[str | None, Union | None]:
        """What keeps a module out, and how all would fit; the latter is None where they are alike.

        Raises:
            FusionError: they can't be fused.
        """
        if id(new) in self.unlike:
            return None, self.fit
        key = (id(new), padding == "never")
        if key not in self.tried:
            self.tried[key] = self._compared(new, padding)
        return self.tried[key]

    def _compared(self, new: nn.Module, padding: float | str) -> tuple[str | None, Union | None]:
        padded = padding != "never" and not has_lazy(new) and shapes_of(self.modules[0]) != shapes_of(new)
        found = "" if padded else difference(self.modules[0], new)
        if found is None or padding == "never" or has_lazy(new):  # how lazy modules fit is seen when they have shapes
            return found, self.fit
        try:
            like = self.architectures.get(shapes_of(new))
            if like is not None:  # padded as that one is: whether the two can share an array is all there is to see
                plain = alike_but_for_sizes([like, new]) and plainly_merged(like, new)
                pair = None if plain else blueprint(like, new)
                return None, self.fit or union(pair, [like, new])
            members = [*self.architectures.values(), new]
            if alike_but_for_sizes(members):  # then what goes for one of them goes for all
                if not plainly_merged(members[0], new):
                    blueprint(members[0], new)
                return None, union(None, members)
            return None, union(blueprint(*members), members)
        except FusionError as error:
            return error.what.partition(": ")[2] or error.what, None

    def join(self, other: Draft, padding: float | str) -> None:
        """Take in the members of a draft of one architecture that `apart` has nothing against."""
        if id(other.modules[0]) not in self.unlike:
            if padding != "never":
                _, self.fit = self._fit(other.modules[0], padding)
                self.architectures = other.architectures | self.architectures
            self.tried.clear()
        self.unlike |= other.unlike
        self.variants += other.variants
        self.rows += other.rows
        self.arguments += other.arguments
        self.modules += other.modules
        self.own += other.own

    def group(self, index: int, data: AnyData, serial: bool) -> Group:
        row, fit = self.rows[0], self.fit
        count = 1
        if fit is not None and len(self.unlike) > 1:
            count, fit = self._all_fit(fit)
        order = sorted(range(len(self.variants)), key=lambda i: self.variants[i].id)
        largest = max(self.unlike.values(), key=parameters_of)
        memory, once = estimate(largest, _OPTIMIZER_STATES.get(row["optimizer"], 2))
        return Group(
            index,
            tuple(self.variants[i] for i in order),
            tuple(self.rows[i] for i in order),
            tuple(self.arguments[i] for i in order),
            self.reason,
            parameters_of(largest) if fit is None else fit.parameters,
            memory,
            serial,
            1 if fit is None else count,
            0.0 if fit is None else self._waste(fit),
            once,
        )

    def _all_fit(self, fit: Union) -> tuple[int, Union | None]:
        """How many architectures there are, and how all of them fit."""
        members = list(self.unlike.values())
        if len(members) > 2 and alike_but_for_sizes(members):
            kinds: list[nn.Module] = []
            for module in members:
                same = (kind for kind in kinds if shapes_of(kind) == shapes_of(module))
                if all(difference(kind, module) is not None for kind in same):
                    kinds.append(module)
            return len(kinds), fit
        whole = blueprint(*members)
        return (1, None) if whole is None else (len(whole.templates), union(whole, members))


def reckoned(group: Group, family: Family, data: AnyData) -> Group:
    """The group with activations in the estimate of what a member takes. Runs the family's forward, without memory."""
    if group.measured or group.reckoned:
        return group
    builder, found = Builder(family, data, shaped=True), 0
    for variant, arguments in {repr(a): (v, a) for v, a in zip(group.variants, group.arguments, strict=True)}.values():
        module = builder.build(variant, arguments)
        if parameters_of(module) >= found:
            found, largest = parameters_of(module), module
    kept = activation_bytes(largest, data, int(group.rows[0]["batch_size"]), family.phases)
    more: dict[str, Any] = {"memory_bytes": group.memory_bytes + kept, "reckoned": True}
    if not group.parameters:  # all of them were lazy
        more["parameters"] = found
    return replace(group, **more)


def _why(found: Sequence[Draft], draft: Draft, padding: float | str) -> str:
    """Why a new group is opened, against the group that is nearest: same training settings, if any."""

    def distance(group: Draft) -> int:
        return sum(group.rows[0][n] != draft.rows[0][n] for n in SPLITTING)

    index = min(range(len(found)), key=lambda i: distance(found[i]))
    return f"not with array {index}: {found[index].apart(draft, padding)}"


def _check(specs: Mapping[str, Any], family: Family, data: AnyData, name: str, value: Any) -> Any:
    if name not in specs:
        raise family.no_axis(name, data)
    spec = specs[name]
    return spec.check_or_none(value)


def _check_used(family: Family, grid: Grid, fixed: Mapping[str, Any]) -> None:
    used_by = family.used_by
    for name in grid.axes:
        if name not in used_by or len(grid.axes[name]) == 1:
            continue
        other, values = used_by[name]
        present = set(grid.axes.get(other, ())) or {fixed.get(other, family.training[other].default)}
        if not present & values:
            wanted = " or ".join(sorted(values))
            raise GridError(
                f"changes nothing with {other}={', '.join(sorted(map(show, present)))}",
                where=name,
                remedy=f"set {other} to {wanted}, or take the axis out",
            )


def _check_stream(grid: Grid, fixed: Mapping[str, Any], data: AnyData) -> None:
    """A stream gives every member the same batches, and a loader's or a function's are as large as they come."""
    if not isinstance(data, Stream):
        return
    if len(grid.axes.get("data_seed", ())) > 1:
        remedy = "keep the data in memory (hfta_nb.data.from_dataset), or sweep seed instead"
        raise GridError(f"{data.name} is a stream, whose batches all members share", where="data_seed", remedy=remedy)
    if not data.takes_batch_size and ("batch_size" in grid.axes or "batch_size" in fixed):
        raise GridError(
            f"{data.name} has batches of its own size",
            where="batch_size",
            remedy="leave it out and let the loader or function decide, or give the Dataset itself",
        )
