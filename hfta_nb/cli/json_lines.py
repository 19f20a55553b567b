"""Output for programs: each line is a JSON document that names its kind, and the version of what it consists of.

`docs/reference/command_line.md` describes them. A field may be added to any of them; `SCHEMA` grows where one is
renamed, goes, or means something else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hfta_nb.cli.terminal_tables import printing
from hfta_nb.errors import HftaError
from hfta_nb.records.events import Event, to_json
from hfta_nb.records.history import History

SCHEMA = 1


@printing()
def write(kind: str, body: Mapping[str, Any]) -> None:
    """Print a line at once.

    Args:
        kind: what it is.
        body: plain data; numbers that are not finite become "nan", "inf" and "-inf".
    """
    print(json.dumps({"schema": SCHEMA, "kind": kind, **_plain(body)}, allow_nan=False), flush=True)


class JsonLines:
    """A `Display` that prints each event.

    Args:
        quiet: print messages only.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def add(self, event: Event) -> None:
        if not self._quiet:
            write("event", to_json(event))

    def note(self, text: str) -> None:
        write("message", {"text": text})


def results(history: History, directory: Path, **more: Any) -> None:
    """Print the state of a run and its leaderboard, best first."""
    run, leader = history.run, history.leader
    best = leader.id if leader is not None and math.isfinite(leader.best_value) else None
    members = [
        {
            **{"member": one.id, "state": one.state, "reason": one.reason, "seed": one.seed, "config": one.config},
            **{"epochs": one.epoch, "best_epoch": one.best_epoch},
            "metrics": {name: one.at_best(name) for name in history.metrics},
            "last": {name: one.last(name) for name in history.metrics},
        }
        for one in history.leaderboard()
    ]
    known = (
        {}
        if run is None
        else {name: getattr(run, name) for name in ("family", "data", "epochs", "monitor", "direction")}
    )
    elapsed_s = history.progress.elapsed_s if history.progress else math.nan
    body = {"directory": directory, "state": history.state, "reason": history.reason, **known, "elapsed_s": elapsed_s}
    write("results", {**body, "best": best, "members": members, **more})


def error(found: BaseException, message: str, exit_code: int) -> None:
    """Print why a command has ended without what was asked for."""
    names = ("what", "where", "got", "accepted", "remedy") if isinstance(found, HftaError) else ()
    parts = {name: getattr(found, name) for name in names}
    write("error", {"error": type(found).__name__, "message": message, **parts, "exit_code": exit_code})


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if isinstance(value, str | int | float | bool | None):
        return value
    return _plain(value.item()) if hasattr(value, "item") else str(value)
