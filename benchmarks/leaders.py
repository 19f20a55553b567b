"""What members gain that look at each other: leaders, a center (EASGD) and PBT against members on their own.

The CNN on digits, with SGD and momentum: eight members, which make the same number of gradient steps in every way. They
begin alike, as a seed says, and differ by the order of their data (the setting of the papers) or by their learning
rates.

    python -m benchmarks.leaders [--epochs 6] [--seeds 3] [--members 8]
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hfta_nb as hfta
from benchmarks.common import options, write

WAYS: Mapping[str, Any] = {
    "alone": None,
    "leader": hfta.Leader(pull=0.1, every=4),
    "two leaders": hfta.Leader(pull=0.1, global_pull=0.05, every=4, groups=2),
    "center (EASGD)": hfta.Leader(pull=0.05, every=4, leader="center"),
    "PBT": hfta.PBT(every=2, exploit=0.25, perturb={"lr": (0.8, 1.25)}),
}


def grids(members: int, seed: int) -> dict[str, dict[str, Any]]:
    """By what the members differ in, their grid; they begin as this seed says."""
    return {
        "data order": {"lr": [0.02], "seed": [seed], "data_seed": hfta.seeds(members)},
        "learning rate": {"lr": hfta.logspace(1e-3, 0.3, members), "seed": [seed]},
    }


def trained(grid: Mapping[str, Any], population: Any, epochs: int, seed: int) -> dict[str, float]:
    """Of one study the best member's and the members' median last validation loss and accuracy, and its steps."""
    place = Path(tempfile.mkdtemp(prefix="leaders-"))
    try:
        how = {"device": "cpu", "deterministic": True, "verify": "never", "optimizer": "sgd", "momentum": 0.9}
        study = hfta.Study("cnn", dict(grid), "digits", epochs=epochs, seed=seed, population=population,
                           directory=place / "run", **how)  # fmt: skip
        study.fit(progress=False)
        members = study.history.members.values()
        losses, hits = ([m.last(f"val_{name}") for m in members] for name in ("loss", "accuracy"))
        steps = {m.curves["val_loss"].steps[-1] for m in members}
        assert len(steps) == 1  # or the ways are not compared at equal steps
        return {
            "best_loss": min(losses),
            "median_loss": statistics.median(losses),
            "best_accuracy": max(hits),
            "median_accuracy": statistics.median(hits),
            "steps": steps.pop(),
        }
    finally:
        shutil.rmtree(place)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--members", type=int, default=8)
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for name in grids(given.members, 0):
        for way, population in WAYS.items():
            runs = [trained(grids(given.members, seed)[name], population, given.epochs, seed)
                    for seed in range(given.seeds)]  # fmt: skip
            medians = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            found.setdefault(name, {})[way] = {"median": medians, "runs": runs}
            print(f"{name:15} {way:15}", *(f"{key} {value:.4f}" for key, value in medians.items()), flush=True)
        write("leaders", {"epochs": given.epochs, "members": given.members, "differ in": found})


if __name__ == "__main__":
    main()
