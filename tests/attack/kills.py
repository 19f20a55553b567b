"""A search that is killed repeatedly: ``python -m tests.attack.kills DIRECTORY KILLS EPOCHS SEED``; see `crashing`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import hfta_nb as hfta
from hfta_nb.records.store import Store
from tests.core import crashing

SPACE: dict[str, Any] = {
    "lr": hfta.uniform(1e-3, 1e-1, log=True),
    "width": [4, 6, 8],
    "dropout": hfta.uniform(0.0, 0.4),
}


def make(place: Path, epochs: int = 6) -> hfta.Study:
    options: dict[str, Any] = {
        "epochs": epochs,
        "trials": 10,
        "slots": 4,
        "sampler": "tpe",
        "pruner": "asha",
        "seed": 3,
        "keep_checkpoints": ["best", "last"],
    }
    return hfta.Study("mlp", SPACE, "iris", directory=place, device="cpu", deterministic=True, **options)


def attempt(place: Path, epochs: int) -> None:
    """Carry the search on to its end."""
    there = Store(place).exists
    list((hfta.Study.load(place) if there else make(place, epochs)).run(resume=there))


if __name__ == "__main__":
    crashing.make, crashing.attempt, crashing.LONGEST_S = make, attempt, 1.5
    directory, *numbers = sys.argv[1:]
    sys.stdout.write(f"{crashing.main(Path(directory), *map(int, numbers))}\n")
