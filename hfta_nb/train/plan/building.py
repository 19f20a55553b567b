"""Modules without memory, of which a plan sees how they are made."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hfta_nb.data import AnyData
from hfta_nb.engine.array import has_lazy, take_shapes
from hfta_nb.errors import FamilyError, HftaError, out_of_memory
from hfta_nb.models.phases import split
from hfta_nb.models.recipes import Family
from hfta_nb.models.recipes.undisturbed import undisturbed
from hfta_nb.search.grid import Variant
from hfta_nb.train.step import call_all


def parameters_of(module: nn.Module) -> int:
    """How many a module has, those left out whose shapes are not known yet."""
    return sum(p.numel() for p in module.parameters() if not is_lazy(p))


class Builder:
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
            self._counts[id(module)] = parameters_of(module)
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
                    return self._shaped(self.family.member(**arguments))
            except Exception as error:
                if _overflowed(error):  # with memory it would fail as well, after taking all that there is
                    raise self._too_large(variant, arguments) from error
            try:
                return self._shaped(self.family.member(**arguments))
            except HftaError:
                raise
            except Exception as error:
                if out_of_memory(error) or _overflowed(error):
                    raise self._too_large(variant, arguments) from error
                raise FamilyError(
                    f"can't build this variant ({type(error).__name__}: {error})",
                    where=f"{self.family.name}, {variant.label}",
                    got=arguments,
                    remedy='a list of a grid is a tuple here; annotate the parameter as a list, "name: list"'
                    if isinstance(error, TypeError) and "tuple" in str(error)
                    else "",
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
