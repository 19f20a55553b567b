"""What became of members while they trained, in words: of whom one is a copy, and which values it was given when."""

from __future__ import annotations

from typing import Any

from hfta_nb.records.history import History
from hfta_nb.search.grid import show

Mark = tuple[int, str]
"""The epochs that a member had done, and what happened to it then."""

_ARROW = " \N{RIGHTWARDS ARROW} "


def marks(history: History) -> dict[int, list[Mark]]:
    """The marks of the members that have any, oldest first.

    A change says the values before and after: ``lr 0.001 -> 0.003``, with an arrow.
    """
    now: dict[int, dict[str, Any]] = {v.id: dict(v.config) for v in history.run.variants} if history.run else {}
    found: dict[int, list[Mark]] = {}
    for edit in history.edits:
        config = now.setdefault(edit.variant, {})
        words = [] if edit.parent is None else [f"copy of #{edit.parent}"]
        if edit.how in ("set", "copied"):
            words += [f"{name} {_ARROW.join(_values(config, name, value))}" for name, value in edit.changes.items()]
            config.update(edit.changes)
        if edit.how == "led":
            words.append(f"leads {edit.changes['leads']}")
        if words:
            found.setdefault(edit.variant, []).append((edit.epoch, ", ".join(words)))
    return found


def _values(config: dict[str, Any], name: str, value: Any) -> list[str]:
    return [*([show(config[name])] if name in config and config[name] != value else []), show(value)]
