"""Which variants train together, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hfta_nb import augment
from hfta_nb.array import Blueprint, blueprint, difference, has_lazy, take_shapes
from hfta_nb.data import AnyData, Stream
from hfta_nb.errors import FamilyError, FusionError, GridError, HftaError, out_of_memory
from hfta_nb.family import Family
from hfta_nb.family.undisturbed import undisturbed
from hfta_nb.grid import AxisSpec, Grid, Variant, show
from hfta_nb.phases import Phase, split
from hfta_nb.plan.estimate import activation_bytes, estimate
from hfta_nb.plan.group import Group
from hfta_nb.step import by_step, call_all

SPLITTING = ("optimizer", "lr_scheduler", "batch_size", "decay_on")
"""Training axes whose values can't differ within an array."""

MOST_PADDING = {"cuda": 0.5, "cpu": 0.25}
"""The largest share of an array's parameters that is padding by default: a GPU has room to spare, a CPU has none."""

_OPTIMIZER_STATES = {"sgd": 1, "adagrad": 1}
"""States as large as the parameters; others have two."""


def make_plan(
    family: Family,
    grid: Grid,
    data: AnyData,
    fixed: Mapping[str, Any],
    *,
    serial: bool = False,
    across: float | str = MOST_PADDING["cpu"],
    capacity: int | None = None,
) -> list[Group]:
    """Group the variants of a grid by what fuses.

    Args:
        family, grid, data: of the study.
        fixed: values of axes that are not in the grid.
        serial: put every variant into a group of its own, to be trained as a plain module.
        across: the largest share of an array's parameters that may be padding, where variants of different
            architecture share it; "never" to keep them apart.
        capacity: the most members of an array; None for any number.

    Returns:
        Groups in the order of their first variants, variants in the order of the grid.

    Raises:
        GridError: an axis is unknown, a value is not accepted, or an axis would change nothing.
        FamilyError: the family can't build a variant.
    """
    specs = family.specs_for(data, [*grid.axes, *fixed])
    checked_fixed = {k: _check(specs, family, data, k, v) for k, v in fixed.items()}
    variants = [
        Variant(v.id, {k: _check(specs, family, data, k, x) for k, x in v.config.items()}, v.seed)
        for v in grid.variants()
    ]
    if "seed" in checked_fixed:
        variants = [replace(v, seed=int(v.config.get("seed", checked_fixed["seed"]))) for v in variants]
    _check_used(family, grid, checked_fixed)
    _check_stream(grid, checked_fixed, data)
    builder = _Builder(family, data)
    defaults = {k: spec.default for k, spec in family.training.items()}
    found: list[_Draft] = []
    homes: dict[tuple[Any, ...], _Draft] = {}  # by what decides, where the last such variant went
    for variant in variants:
        draft = _Draft.of(variant, family, data, checked_fixed, builder, defaults)
        home = None if serial else homes.get(draft.key)
        if home is None or home.apart(draft, across) is not None:
            home = None if serial else next((g for g in found if g.apart(draft, across) is None), None)
        homes[draft.key] = home or draft
        if home is None:
            draft.reason = "" if not found else "trained alone, as asked" if serial else _why(found, draft, across)
            found.append(draft)
        else:
            home.join(draft, across)
    settings = [augment.Setting.of(row) for draft in found for row in draft.rows]
    augment.check(settings, data, [name for name in specs if len(grid.axes.get(name, ())) > 1])
    for draft in found:  # now that the members are planned by what they were given
        draft.variants = [replace(v, config=whole(v.config, grid.axes, checked_fixed, specs)) for v in draft.variants]
    groups = [draft.group(i, data, serial) for i, draft in enumerate(found)]
    return groups if capacity is None else _capped(groups, capacity)


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
class _Draft:
    """A group while it grows; its first variant speaks for it."""

    variants: list[Variant]
    rows: list[dict[str, Any]]
    arguments: list[dict[str, Any]]
    modules: list[nn.Module]
    own_scores: bool
    phases: tuple[Phase, ...] = ()
    reason: str = ""
    fit: Blueprint | None = None
    unlike: dict[int, nn.Module] = field(default_factory=dict)  # of `modules`, each once
    own: int = 0  # parameters of all members, without padding
    tried: dict[int, tuple[str | None, Blueprint | None]] = field(default_factory=dict)  # what `_fit` found

    @classmethod
    def of(
        cls,
        variant: Variant,
        family: Family,
        data: AnyData,
        fixed: Mapping[str, Any],
        builder: _Builder,
        defaults: Mapping[str, Any],
    ) -> _Draft:
        values = {**fixed, **variant.config}
        row = {k: values.get(k, default) for k, default in defaults.items()}
        row["batch_size"] = data.batch_size or row["batch_size"]
        if family.param_groups is not None:
            row["param_groups"] = family.param_groups
        row |= {k: values[k] for k in augment.AXES if k in values and k not in family.axes}
        arguments = family.arguments(values, data)
        own_scores = family.loss is not None or family.metrics is not None or bool(family.phases)
        modules = [builder.build(variant, arguments)]
        return cls([variant], [row], [arguments], modules, own_scores, family.phases,
                   unlike={id(modules[0]): modules[0]}, own=builder.count(modules[0]))  # fmt: skip

    @property
    def key(self) -> tuple[Any, ...]:
        """What decides about where its first variant trains."""
        row = self.rows[0]
        return (
            id(self.modules[0]),
            self.own_scores and self.mixes,
            by_step(row),
            *(repr(row[name]) for name in SPLITTING),
        )

    @property
    def mixes(self) -> bool:
        """Whether its targets are shares of classes."""
        return augment.Setting.of(self.rows[0]).mixes

    def apart(self, other: _Draft, across: float | str) -> str | None:
        """What keeps the other out of this group."""
        for name in SPLITTING:
            mine, theirs = self.rows[0][name], other.rows[0][name]
            if mine != theirs:
                return f"{name}: {show(mine)} and {show(theirs)}"
        if by_step(self.rows[0]) != by_step(other.rows[0]):
            return "warmup_steps: lr changes with every step where it is given, once an epoch elsewhere"
        if self.own_scores and self.mixes != other.mixes:
            return (
                "mixup, cutmix: shares of classes where they are on, class numbers elsewhere, for an own loss or metric"
            )
        found, fit = self._fit(other.modules[0], across)
        if found is None and fit is not None:
            waste = self._waste(fit, other.own)
            if waste > float(across):
                found = f"{waste:.0%} of the parameters would be padding, more than {float(across):.0%}"
        return found

    def _waste(self, fit: Blueprint, *more: int) -> float:
        """The share of padding, with further members of so many parameters."""
        return 1 - (self.own + sum(more)) / max(1, (len(self.modules) + len(more)) * _count(fit.skeleton))

    def _fit(self, new: nn.Module, across: float | str) -> tuple[str | None, Blueprint | None]:
        """What keeps a module out, and how all would fit; the latter is None where they are alike.

        Raises:
            FusionError: they can't be fused.
        """
        if id(new) in self.unlike:
            return None, self.fit
        if id(new) not in self.tried:
            self.tried[id(new)] = self._compared(new, across)
        return self.tried[id(new)]

    def _compared(self, new: nn.Module, across: float | str) -> tuple[str | None, Blueprint | None]:
        found = difference(self.modules[0], new)
        if found is None or across == "never" or has_lazy(new):  # how lazy modules fit is seen when they have shapes
            return found, self.fit
        try:
            return None, blueprint(*self.unlike.values(), new)
        except FusionError as error:
            return error.what.partition(": ")[2] or error.what, None

    def join(self, other: _Draft, across: float | str) -> None:
        new = other.modules[0]
        if id(new) not in self.unlike:
            _, self.fit = self._fit(new, across)
            self.unlike[id(new)] = new
            self.tried.clear()
        self.variants += other.variants
        self.rows += other.rows
        self.arguments += other.arguments
        self.modules += other.modules
        self.own += other.own

    def group(self, index: int, data: AnyData, serial: bool) -> Group:
        row, fit = self.rows[0], self.fit
        largest = max(self.unlike.values(), key=_count)
        memory = estimate(largest, _OPTIMIZER_STATES.get(row["optimizer"], 2))
        return Group(
            index,
            tuple(self.variants),
            tuple(self.rows),
            tuple(self.arguments),
            self.reason,
            _count(largest if fit is None else fit.skeleton),
            memory,
            serial,
            1 if fit is None else len(fit.templates),
            0.0 if fit is None else self._waste(fit),
        )


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if not is_lazy(p))


def reckoned(group: Group, family: Family, data: AnyData) -> Group:
    """The group with activations in the estimate of what a member takes. Runs the family's forward, without memory."""
    if group.measured or group.reckoned:
        return group
    builder, found = _Builder(family, data, shaped=True), 0
    for variant, arguments in {repr(a): (v, a) for v, a in zip(group.variants, group.arguments, strict=True)}.values():
        module = builder.build(variant, arguments)
        if _count(module) >= found:
            found, largest = _count(module), module
    kept = activation_bytes(largest, data, int(group.rows[0]["batch_size"]), family.phases)
    more: dict[str, Any] = {"memory_bytes": group.memory_bytes + kept, "reckoned": True}
    if not group.parameters:  # all of them were lazy
        more["parameters"] = found
    return replace(group, **more)


class _Builder:
    """Modules without memory, to look at; one per set of arguments.

    Args:
        family: whose build function is called.
        data: of the study.
        shaped: whether lazy modules get their shapes, for which the module's forward runs.
    """

    def __init__(self, family: Family, data: AnyData, shaped: bool = False) -> None:
        self.family, self.data, self.shaped = family, data, shaped
        self._built: dict[str, nn.Module] = {}
        self._counts: dict[int, int] = {}

    def count(self, module: nn.Module) -> int:
        """Parameters of a module that was built here."""
        if id(module) not in self._counts:
            self._counts[id(module)] = _count(module)
        return self._counts[id(module)]

    def build(self, variant: Variant, arguments: dict[str, Any]) -> nn.Module:
        key = repr(sorted(arguments.items()))
        if key not in self._built:
            self._built[key] = self._new(variant, arguments)
            if self.family.phases:
                split(self.family.phases, self._built[key], f"{self.family.name}, {variant.label}")
        return self._built[key]

    def _new(self, variant: Variant, arguments: dict[str, Any]) -> nn.Module:
        # Random numbers drawn here must not be missed by the notebook; some models can't be built on "meta".
        with undisturbed():
            try:
                with torch.device("meta"):
                    return self._shaped(self.family.build(**arguments))
            except Exception as error:
                if _overflowed(error):  # with memory it would fail as well, after taking all that there is
                    raise self._too_large(variant, arguments) from error
            try:
                return self._shaped(self.family.build(**arguments))
            except HftaError:
                raise
            except Exception as error:
                if out_of_memory(error) or _overflowed(error):
                    raise self._too_large(variant, arguments) from error
                raise FamilyError(
                    f"can't build this variant ({type(error).__name__}: {error})",
                    where=f"{self.family.name}, {variant.label}",
                    got=arguments,
                ) from error

    def _too_large(self, variant: Variant, arguments: dict[str, Any]) -> FamilyError:
        return FamilyError(
            "this variant is too large to be built",
            where=f"{self.family.name}, {variant.label}",
            got=arguments,
            accepted="a module that the machine's memory holds",
            remedy="choose smaller sizes",
        )

    def _shaped(self, module: nn.Module) -> nn.Module:
        """The module, with shapes from a sample where its own wait for one."""
        if self.shaped and has_lazy(module):
            like = next(module.parameters())
            sample = self.data.sample(2, like.device, like.dtype)
            take_shapes(module, lambda m: call_all(m, sample, self.family.phases))
        return module


def _overflowed(error: Exception) -> bool:
    """Whether a tensor would have more bytes than can be counted."""
    return isinstance(error, RuntimeError) and "overflow" in str(error).lower()


def _why(found: Sequence[_Draft], draft: _Draft, across: float | str) -> str:
    """Why a new group is opened, against the group that is nearest: same training settings, if any."""

    def distance(group: _Draft) -> int:
        return sum(group.rows[0][n] != draft.rows[0][n] for n in SPLITTING)

    index = min(range(len(found)), key=lambda i: distance(found[i]))
    return f"not with array {index}: {found[index].apart(draft, across)}"


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
