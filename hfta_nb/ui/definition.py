"""The definition on the screen: the fields' values and listed configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import ipywidgets

from hfta_nb.errors import StudyError
from hfta_nb.records.events import Json
from hfta_nb.search.grid import Grid, Integers
from hfta_nb.search.intervals import interval_text, is_interval
from hfta_nb.search.spaces import checked, choices_of
from hfta_nb.ui.text import count, escape, listing
from hfta_nb.ui.widgets import button, words


@dataclass(frozen=True)
class FormValues:
    """The values of the fields.

    Attributes:
        family: its name.
        data: a name, or the person's own data.
        axes: values per axis that can be read, or its interval.
        listed: configurations that are variants themselves, in addition to the product of the axes.
        options: the other arguments of `hfta_nb.Study`.
        problems: errors in words, by axis or label of the field.
    """

    family: str
    data: Any
    axes: dict[str, Any]
    listed: tuple[dict[str, Json], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def grid(self) -> dict[str, Any] | Grid:
        """The argument of `hfta_nb.Study`."""
        if not self.listed:
            return self.axes
        return Grid(self.axes).plus(self.listed) if self.axes else Grid.of(self.listed)

    @property
    def size(self) -> str:
        """The size of the grid in words: ``3 lr x 2 width``, ``12 listed``; of a search also ``lr 0.001 to 0.1``; with
        the number of folds."""
        product = " x ".join(axis_words(name, axis, self.options.get("trials")) for name, axis in self.axes.items())
        listed = f"{len(self.listed):,} listed" if self.listed else ""
        size = " + ".join(filter(None, [product, listed])) or "no axis"
        folds = self.options.get("folds")
        return f"{f'({size})' if listed else size} x {folds} folds" if folds else size


def axis_words(name: str, axis: Any, trials: Any = None) -> str:
    """An axis in words: ``3 lr``; as an interval, which whole numbers are in a search, ``lr 0.001 to 0.1 (log)``."""
    if isinstance(axis, tuple) and not (trials and is_interval(axis)):
        return f"{len(axis)} {name}"
    kind, text = interval_text(axis)
    return f"{name} {text}" + " (log)" * kind.startswith("log")


def parted(given: Any) -> tuple[Mapping[str, Any], tuple[dict[str, Json], ...]]:
    """The product axes of a grid or a search space, and the listed configurations.

    Raises:
        StudyError: it is a function, which no row can show.
    """
    if callable(given):
        remedy = "start the search with Study(...).fit() or hfta-nb tune, and show it with Workbench.reattach(...)"
        raise StudyError("a function has no rows", where="Workbench, grid", got=given,
                         accepted="axes as lists and intervals", remedy=remedy)  # fmt: skip
    axes = given if isinstance(given, Mapping) else {}
    whole = {name: axis for name, axis in axes.items() if isinstance(axis, Integers)}  # a list in a grid
    if any(hasattr(axis, "low") or hasattr(axis, "choices") for axis in axes.values()):
        space = cast("Mapping[str, Any]", checked(axes))
        return {name: axis if is_interval(axis) else tuple(choices_of(axis) or ()) for name, axis in space.items()}, ()
    grid = Grid(given)
    if grid.product or not grid.listed:
        return {**(grid.product or {}), **whole}, grid.listed
    # The product of no axes is one variant with all defaults, which no row would show.
    return {}, grid.listed if grid.product is None else ({}, *grid.listed)


class Listed(ipywidgets.HBox):  # type: ignore[misc]
    """A line for listed configurations, which can be removed but not edited.

    Args:
        configurations: the configurations.
        removed: called when they are removed.
    """

    def __init__(self, configurations: Sequence[dict[str, Json]], removed: Callable[[], None]) -> None:
        self.configurations = tuple(configurations)
        self._removed = removed
        self.text = words("hfta-listed-text")
        self.remove_button = button("remove listed", "Remove the listed configurations from the grid", "hfta-remove")
        self.remove_button.on_click(lambda _: self._remove())
        super().__init__([self.text, self.remove_button])
        self.add_class("hfta-listed")
        self._show()

    def __repr__(self) -> str:
        return f"Listed({len(self.configurations)})"

    def put(self, configurations: Sequence[dict[str, Json]]) -> None:
        """Have these in place of those that are there."""
        self.configurations = tuple(configurations)
        self._show()

    def _remove(self) -> None:
        self.put(())
        self._removed()

    def _show(self) -> None:
        names = list(dict.fromkeys(name for one in self.configurations for name in one))
        of = f" of {listing(names)}" if names else ""
        said = f"{count(len(self.configurations), 'configuration')}{of}, listed one by one in code"
        self.text.value = escape(said) if self.configurations else ""
        self.layout.display = "" if self.configurations else "none"
