"""Phases of a training step, for modules of several networks, each with its own optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from hfta_nb.errors import FamilyError
from hfta_nb.errors.border import ITEMS, plain
from hfta_nb.models.losses import Loss, submodule_of
from hfta_nb.search.grid import AxisSpec

OWN_AXES = ("lr", "weight_decay", "beta1", "beta2")
"""Training axes that every phase has separately, for example ``generator_lr``."""


@dataclass(frozen=True)
class Phase:
    """One update of a training step, for families with several networks (such as GANs).

    A step goes through the phases in their order. In each, the module is called with ``phase=name`` beside its inputs,
    the loss of what it returns is differentiated, and the phase's own optimizer steps the parameters that it trains. In
    validation the module is called likewise, and once more without a phase, for the metrics.

    Attributes:
        name: an identifier; the loss is reported as ``<name>_loss``.
        trains: submodules or parameters, by their dotted names: all parameters within.
        loss: from one member's output and the target to a scalar.
        every: run in every n-th step, beginning with the first. Other steps report the phase's last loss.

    Raises:
        FamilyError: a value can't be used.

    Example:
        >>> Phase("critic", ["critic"], lambda output, target: output.mean())
        Phase('critic', trains=('critic',), every=1)
    """

    name: str
    trains: Sequence[str]
    loss: Loss
    every: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise FamilyError("not a name for a phase", where="Phase", got=self.name, accepted="an identifier")
        where = f"Phase({plain(self.name)!r})"
        names = tuple(self.trains) if ITEMS.accepts(self.trains) else (self.trains,)
        if not names or any(not isinstance(n, str) or not n for n in names):
            raise FamilyError("trains nothing", where=where, got=self.trains, accepted="names of submodules")
        if not callable(self.loss):
            raise FamilyError("not a loss", where=where, got=self.loss, accepted="a callable of (output, target)")
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise FamilyError("not a number of steps", where=where, got=self.every, accepted="1, 2, 3, ...")
        object.__setattr__(self, "trains", names)

    def __repr__(self) -> str:
        return f"Phase({self.name!r}, trains={self.trains!r}, every={self.every})"

    @property
    def score(self) -> str:
        """The name under which its loss is reported."""
        return f"{self.name}_loss"

    def due(self, step: int) -> bool:
        """Whether step `step`, counted from 0, runs this phase."""
        return step % self.every == 0

    def has(self, parameter: str) -> bool:
        """Whether the parameter of this name is one that it trains."""
        return any(parameter == prefix or parameter.startswith(f"{prefix}.") for prefix in self.trains)

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the training axes for this phase's optimizer: its own where there are such."""
        own = {name: row.get(f"{self.name}_{name}") for name in OWN_AXES}
        return {**row, **{name: value for name, value in own.items() if value is not None}}


def checked(phases: Sequence[Any], where: str) -> tuple[Phase, ...]:
    """The phases of a family.

    Raises:
        FamilyError: one is none, or two have the same name.
    """
    found = tuple(phases)
    for phase in found:
        if not isinstance(phase, Phase):
            raise FamilyError("not a phase", where=where, got=phase, accepted="hfta_nb.Phase")
    names = [p.name for p in found]
    for name in names:
        if names.count(name) > 1:
            raise FamilyError("two phases of one name", where=where, got=name)
    return found


def own_axes(phases: Sequence[Phase], training: Mapping[str, AxisSpec]) -> dict[str, AxisSpec]:
    """The training axes that the phases have of their own; None stands for the common one's value."""
    found = {}
    for phase in phases:
        for name in OWN_AXES:
            own = f"{phase.name}_{name}"
            text = f"{name} of the {phase.name}; that of all by default."
            found[own] = replace(training[name], name=own, default=None, help=text)
    return found


def split(phases: Sequence[Phase], module: nn.Module, where: str) -> list[list[str]]:
    """The names of the parameters that each phase trains, in the module's order.

    Args:
        module: plain, or an array.
        where: for the error.

    Raises:
        FamilyError: a trained parameter is in no phase or in two, or a phase has none.
    """
    found: list[list[str]] = [[] for _ in phases]
    held = [submodule_of(module, phase.score) for phase in phases]
    own = [f"{name}." if name else "no loss with parameters" for name in held]
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        mine = [k for k, phase in enumerate(phases) if phase.has(name) or name.startswith(own[k])]
        if not mine:
            raise FamilyError(
                "no phase trains this parameter",
                where=where,
                got=name,
                accepted=_all_trained(phases),
                remedy="name its submodule in a phase's trains, or set requires_grad=False",
            )
        if len(mine) > 1:
            names = " and ".join(phases[k].name for k in mine)
            raise FamilyError(f"two phases train this parameter, {names}", where=where, got=name,
                              accepted="each parameter in one phase")  # fmt: skip
        found[mine[0]].append(name)
    for phase, names_ in zip(phases, found, strict=True):
        if not names_:
            raise FamilyError(
                f"the phase {phase.name} trains no parameter",
                where=where,
                got=list(phase.trains),
                accepted=", ".join(name for name, _ in module.named_children()),
            )
    return found


def _all_trained(phases: Sequence[Phase]) -> str:
    return ", ".join(prefix for phase in phases for prefix in phase.trains)
