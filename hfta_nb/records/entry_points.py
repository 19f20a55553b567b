"""What other installed packages add by entry points, see docs/how_to/extend.md."""

from __future__ import annotations

import importlib.metadata
import warnings
from functools import cache
from typing import Any

from hfta_nb.errors import ExtensionWarning

FAMILIES, RULES, TRACKERS = "hfta_nb.families", "hfta_nb.rules", "hfta_nb.trackers"
"""The groups of entry points: a `Family` or a build function, a mapping of functions to rules, a class of trackers."""


@cache
def found(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """The entry points of a group by name. Nothing of theirs is imported."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}


@cache
def loaded(group: str, name: str) -> Any:
    """What an entry point names; None, with an `ExtensionWarning`, if it can't be imported."""
    entry = found(group)[name]
    try:
        return entry.load()
    except Exception as error:  # of the other package's own code
        of = entry.dist.name if entry.dist is not None else entry.value
        text = f"{name} of {of} is left out: {entry.value} can't be imported ({type(error).__name__}: {error})"
        warnings.warn(text, ExtensionWarning, stacklevel=2)
        return None
