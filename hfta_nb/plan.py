"""Which variants train together, and why the others do not."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hfta_nb.array import difference
from hfta_nb.data import Data
from hfta_nb.errors import FamilyError, GridError, HftaError
from hfta_nb.events import GroupRecord
from hfta_nb.family import TRAINING_AXES, USED_BY, Family
from hfta_nb.grid import Grid, Variant, show

SPLITTING = ("optimizer", "lr_scheduler", "batch_size")
"""Training axes whose values can't differ within an array."""

_OPTIMIZER_STATES = {"sgd": 1, "adam": 2, "adamw": 2}


@dataclass(frozen=True)
class Group:
    """Variants of one array, with everything their training needs to know.

    Attributes:
        rows: per variant, the value of every training axis.
        arguments: per variant, what the family's `build` is called with.
        fused_over: the axes whose values differ within the group.
    """

    index: int
    variants: tuple[Variant, ...]
    rows: tuple[dict[str, Any], ...]
    arguments: tuple[dict[str, Any], ...]
    reason: str
    parameters: int
    memory_bytes: int
    serial: bool = False

    @property
    def fused_over(self) -> tuple[str, ...]:
        names = self.variants[0].config
        return tuple(n for n in names if len({show(v.config[n]) for v in self.variants}) > 1)

    def row(self) -> dict[str, Any]:
        """The group as a row of a table."""
        return {
            "array": self.index,
            "members": len(self.variants),
            "variants": [v.id for v in self.variants],
            "fused_over": ", ".join(self.fused_over) or "-",
            "split_because": self.reason or "-",
            "parameters": self.parameters,
            "memory_bytes": self.memory_bytes,
        }

    def record(self) -> GroupRecord:
        strategy = "one after another" if self.serial else "fused"
        ids = tuple(v.id for v in self.variants)
        return GroupRecord(self.index, ids, self.reason, self.parameters, self.memory_bytes, strategy)


def make_plan(family: Family, grid: Grid, data: Data, fixed: Mapping[str, Any], *, serial: bool = False) -> list[Group]:
    """Group the variants of a grid by what fuses.

    Args:
        family, grid, data: of the study.
        fixed: values of axes that are not in the grid.
        serial: put every variant into a group of its own, to be trained as a plain module.

    Returns:
        Groups in the order of their first variants, variants in the order of the grid.

    Raises:
        GridError: an axis is unknown, a value is not accepted, or an axis would change nothing.
        FamilyError: the family can't build a variant.
    """
    specs = family.specs
    checked_fixed = {k: _check(specs, family, k, v) for k, v in fixed.items()}
    variants = [
        Variant(v.id, {k: _check(specs, family, k, x) for k, x in v.config.items()}, v.seed) for v in grid.variants()
    ]
    if "seed" in checked_fixed and "seed" not in grid.axes:
        variants = [Variant(v.id, v.config, int(checked_fixed["seed"])) for v in variants]
    _check_used(family, grid, checked_fixed)
    builder = _Builder(family, data)
    found: list[_Draft] = []
    for variant in variants:
        draft = _Draft.of(variant, family, data, checked_fixed, builder)
        home = None if serial else next((g for g in found if g.apart(draft) is None), None)
        if home is None:
            draft.reason = "" if not found else "trained alone, as asked" if serial else _why(found, draft)
            found.append(draft)
        else:
            home.join(draft)
    return [draft.group(i, data, serial) for i, draft in enumerate(found)]


@dataclass
class _Draft:
    """A group while it grows; its first variant speaks for it."""

    variants: list[Variant]
    rows: list[dict[str, Any]]
    arguments: list[dict[str, Any]]
    module: nn.Module
    reason: str = ""

    @classmethod
    def of(cls, variant: Variant, family: Family, data: Data, fixed: Mapping[str, Any], builder: _Builder) -> _Draft:
        values = {**fixed, **variant.config}
        row = {k: values.get(k, spec.default) for k, spec in TRAINING_AXES.items()}
        arguments = family.arguments(values, data)
        return cls([variant], [row], [arguments], builder.build(variant, arguments))

    def apart(self, other: _Draft) -> str | None:
        """What keeps the other out of this group."""
        for name in SPLITTING:
            mine, theirs = self.rows[0][name], other.rows[0][name]
            if mine != theirs:
                return f"{name}: {show(mine)} and {show(theirs)}"
        return None if self.module is other.module else difference(self.module, other.module)

    def join(self, other: _Draft) -> None:
        self.variants += other.variants
        self.rows += other.rows
        self.arguments += other.arguments

    def group(self, index: int, data: Data, serial: bool) -> Group:
        row = self.rows[0]
        count = sum(p.numel() for p in self.module.parameters())
        memory = _memory(self.module, data, row["batch_size"], _OPTIMIZER_STATES[row["optimizer"]])
        return Group(
            index,
            tuple(self.variants),
            tuple(self.rows),
            tuple(self.arguments),
            self.reason,
            count,
            memory,
            serial,
        )


class _Builder:
    """Modules without memory, to look at; one per set of arguments."""

    def __init__(self, family: Family, data: Data) -> None:
        self.family, self.data = family, data
        self._built: dict[str, nn.Module] = {}

    def build(self, variant: Variant, arguments: dict[str, Any]) -> nn.Module:
        key = repr(sorted(arguments.items()))
        if key not in self._built:
            self._built[key] = self._new(variant, arguments)
        return self._built[key]

    def _new(self, variant: Variant, arguments: dict[str, Any]) -> nn.Module:
        # Random numbers drawn here must not be missed by the notebook; some models can't be built on "meta".
        with torch.random.fork_rng(devices=[]):
            with contextlib.suppress(Exception), torch.device("meta"):
                return self.family.build(**arguments)
            try:
                return self.family.build(**arguments)
            except HftaError:
                raise
            except Exception as error:
                raise FamilyError(
                    f"can't build this variant ({type(error).__name__}: {error})",
                    where=f"{self.family.name}, {variant.label}",
                    got=arguments,
                ) from error


def _why(found: Sequence[_Draft], draft: _Draft) -> str:
    """Why a new group is opened, against the group that is nearest: same training settings, if any."""

    def distance(group: _Draft) -> int:
        return sum(group.rows[0][n] != draft.rows[0][n] for n in SPLITTING)

    index = min(range(len(found)), key=lambda i: distance(found[i]))
    return f"not with array {index}: {found[index].apart(draft)}"


def _check(specs: Mapping[str, Any], family: Family, name: str, value: Any) -> Any:
    if name not in specs:
        raise GridError(
            "unknown axis",
            where=f"grid of {family.name}",
            got=name,
            accepted=", ".join(specs),
            remedy="check the spelling",
        )
    spec = specs[name]
    return value if value is None and spec.default is None else spec.check(value)


def _check_used(family: Family, grid: Grid, fixed: Mapping[str, Any]) -> None:
    for name in grid.axes:
        if name not in USED_BY or len(grid.axes[name]) == 1:
            continue
        other, values = USED_BY[name]
        present = set(grid.axes.get(other, ())) or {fixed.get(other, TRAINING_AXES[other].default)}
        if not present & values:
            wanted = " or ".join(sorted(values))
            raise GridError(
                f"changes nothing with {other}={', '.join(sorted(map(show, present)))}",
                where=name,
                remedy=f"set {other} to {wanted}, or take the axis out",
            )


def _memory(module: nn.Module, data: Data, batch_size: int, states: int) -> int:
    """Estimate of the bytes one member needs: values, gradients, optimizer state, best values, activations."""
    values = sum(p.numel() * p.element_size() for p in module.parameters())
    buffers = sum(b.numel() * b.element_size() for b in module.buffers())
    return values * (3 + states) + 2 * buffers + _activations(module, data, batch_size)


def _activations(module: nn.Module, data: Data, batch_size: int) -> int:
    """Bytes that autograd keeps for the backward pass, counted on a forward without memory; 0 if that can't run."""
    kept: dict[int, int] = {}
    own = {id(p) for p in module.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in own:
            kept[id(tensor.untyped_storage())] = tensor.numel() * tensor.element_size()
        alive.append(tensor)  # an id must not be given to a second tensor
        return tensor

    alive: list[torch.Tensor] = []
    try:
        spare = module.to("meta") if all(p.is_meta for p in module.parameters()) else _meta_copy(module)
        x = torch.empty((batch_size, *data.x.shape[1:]), dtype=data.x.dtype, device="meta")
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), torch.random.fork_rng(devices=[]):
            spare(x)
    except Exception:  # an estimate is not worth an error: a model may read values, which meta has none of
        return 0
    return sum(kept.values())


def _meta_copy(module: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(module).to("meta")
