"""Variants that come to an array that is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hfta_nb.data import AnyData
from hfta_nb.errors import HftaError
from hfta_nb.models.recipes import Family
from hfta_nb.search.grid import Variant
from hfta_nb.train.plan.building import Builder
from hfta_nb.train.plan.group import Group
from hfta_nb.train.plan.grouping import Draft


class Joining:
    """Members of an array, and variants that may train with them.

    Args:
        family, data, across: see `make_plan`.
        group: the array's.
        members: of its variants, those that go on.
        builder: makes modules to look at.
    """

    def __init__(
        self, family: Family, data: AnyData, group: Group, members: Sequence[int], across: float | str, builder: Builder
    ) -> None:
        self.family, self.data, self.across, self._builder = family, data, across, builder
        part = group.part(members, group.index, group.reason)
        first, *others = [self._draft(*one) for one in zip(part.variants, part.rows, part.arguments, strict=True)]
        self._whole = first
        for other in others:
            first.apart(other, across)  # finds out how they fit
            first.join(other, across)

    def add(self, variant: Variant, row: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
        """Let a variant join, if it can."""
        try:
            draft = self._draft(variant, row, arguments)
            if self._whole.apart(draft, self.across) is not None:
                return False
        except HftaError:  # which is told where it trains
            return False
        self._whole.join(draft, self.across)
        return True

    def group(self, like: Group) -> Group:
        """The array of all that have joined; what was measured of another one like it holds for it as well."""
        found = self._whole.group(like.index, self.data, False)
        facts: dict[str, Any] = {"parameters": found.parameters, "padding": found.padding}
        memory = like.memory_bytes * max(1, found.parameters) // max(1, like.parameters)
        facts |= {"architectures": found.architectures, "memory_bytes": max(like.memory_bytes, memory)}
        return replace(like, **facts)

    def _draft(self, variant: Variant, row: Mapping[str, Any], arguments: Mapping[str, Any]) -> Draft:
        return Draft.known(variant, dict(row), dict(arguments), self.family, self._builder)
