"""Criteo's click logs: a file per day, tab-separated."""

from __future__ import annotations

from pathlib import Path

import torch

from hfta_nb.data.readers.files import damaged, lines, present
from hfta_nb.data.samples import Data
from hfta_nb.errors import DataError

FILES = "day_0, or day_0 and day_1, ... (or .gz); the last one is for validation"
DENSE, TABLES, CATEGORIES = 13, 26, 10_000
"""A category, a number in hexadecimal, is taken modulo 10,000; one that is missing is 0."""

HELD_OUT = 0.1
"""The part at the end of the only day that is kept for validation."""

_Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def read_day(path: Path) -> _Part:
    """Clicks ``[N]``, numbers ``[N, 13]`` as log(1 + x) (a missing or negative one is 0), categories ``[N, 26]``.

    Raises:
        DataError: a line is not an impression.
    """
    clicks, dense, categories = [], [], []
    for offset, line in lines(path):
        fields = line.split("\t")
        if len(fields) != 1 + DENSE + TABLES:
            raise damaged(path, offset, f"{len(fields)} fields where an impression has {1 + DENSE + TABLES}", line)
        try:
            clicks.append(("0", "1").index(fields[0]))
            dense.append([float(v or 0) for v in fields[1 : 1 + DENSE]])
            categories.append([int(v or "0", 16) % CATEGORIES for v in fields[1 + DENSE :]])
        except ValueError as error:
            raise damaged(path, offset, f"not an impression ({error})", line) from error
    if not clicks:
        raise damaged(path, 0, "holds no impressions")
    return torch.tensor(clicks), torch.tensor(dense).clamp(min=0).log1p(), torch.tensor(categories)


def criteo(name: str, directory: Path) -> Data:
    """Numbers ``[13]`` and categories ``[26]``, and whether it was clicked. The days must fit into memory."""
    first = present(directory, FILES, ["day_0", "day_0.gz"])
    days = sorted(first.parent.glob(f"day_*{first.suffix}"), key=lambda p: (len(p.name), p.name))
    parts = [read_day(path) for path in days]
    if len(parts) == 1:
        count = len(parts[0][0])
        cut = count - max(1, round(HELD_OUT * count))
        if not cut:
            raise DataError("one impression can't be split", where=str(first))
        whole = parts[0]
        training, held = [tuple(t[:cut] for t in whole)], tuple(t[cut:] for t in whole)
    else:
        training, held = parts[:-1], parts[-1]  # type: ignore[assignment]
    y, dense, categories = (torch.cat(columns) for columns in zip(*training, strict=True))
    facts = {"dense_features": DENSE, "categorical_features": TABLES, "categories": CATEGORIES}
    return Data(name, "click", (dense, categories), y, (held[1], held[2]), held[0], facts)
