"""The table of all faults."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.mutations.fault import Fault

_ROWS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FAULTS = tuple(Fault(name, **{**row, "likely": tuple(row["likely"])}) for name, row in _ROWS.items())
