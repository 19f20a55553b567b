"""A file of times by computation, which several processes read and write."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from hfta_nb import regular_files

_FORMAT = 1

Times = dict[str, float | None]
"""Seconds by variant; None for a variant that failed or was not exact enough."""


class Kept:
    """Times by computation, read from and written to a file.

    Args:
        path: of the file; None to keep nothing.
        machine: describes the machine that the times hold for.

    Attributes:
        hopeless: computations that cannot be measured in this process.
    """

    def __init__(self, path: Path | None, machine: dict[str, Any]) -> None:
        self.path, self.machine = path, machine
        self._times: dict[str, Times] = self._read()
        self._new: dict[str, Times] = {}
        self._own: set[str] = set()
        self.hopeless: set[str] = set()

    def get(self, what: str) -> Times | None:
        """Known times."""
        return self._times.get(what)

    def own(self, what: str) -> bool:
        """True if this process has measured the times."""
        return what in self._own

    def put(self, what: str, times: Times, lasting: bool = True) -> None:
        """Add times; `write` saves them."""
        self._times[what] = times
        self._own.add(what)
        if lasting:
            self._new[what] = times

    def write(self) -> None:
        """Add new times to the file. Other processes may do so too; of two simultaneous writes one is lost."""
        if self.path is None or not self._new:
            return
        content = {"format": _FORMAT, "machine": self.machine, "seconds": {**self._read(), **self._new}}
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            number, name = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.stem, suffix=".tmp")
            try:
                with open(number, "w", encoding="utf-8") as file:
                    file.write(json.dumps(content))  # `json.dump` is slower
                os.replace(name, self.path)
            except BaseException:
                os.unlink(name)
                raise
        self._new = {}

    def _read(self) -> dict[str, Times]:
        if self.path is None:
            return {}
        try:
            content = json.loads(regular_files.text(self.path))
            if content["format"] != _FORMAT or content["machine"] != self.machine:
                return {}
            found = content["seconds"]
            return {k: v for k, v in found.items() if _are_times(v)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}


def _are_times(found: Any) -> bool:
    return isinstance(found, dict) and all(
        v is None or (isinstance(v, float) and 0 < v < float("inf")) for v in found.values()
    )
