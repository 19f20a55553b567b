"""Memory predicted by the model and memory used by arrays: 1, 2, 4, 8 and 16 members, with and without checkpointing.

The model is fitted to steps of two members and of three. The measurement is the peak of two
training steps ("training"), or of these and validation ("both"): on a CPU the storages that torch's operators allocate
(`hfta_nb.train.memory`), on a GPU the memory held by torch's allocator. For few members, the growth of the whole
process during construction and six steps is listed as well: it includes memory inside kernels and memory held while a
step is recorded, and depends on earlier allocations.

    OMP_NUM_THREADS=1 python benchmarks/memory.py [--members 1 2 4 8 16] [--models mlp cnn transformer_lm]
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import options, write
from benchmarks.suite.memory import Peak
from hfta_nb import Study
from hfta_nb.records.events import Control
from hfta_nb.train import Trainer
from hfta_nb.train.capacity import model_of, peak_of, sample
from hfta_nb.train.group_run import GroupRun
from hfta_nb.train.memory import MemoryModel, release, shown
from hfta_nb.train.plan import Group

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"data": "digits", "width": 128, "depth": 8, "batch_size": 512},
    "cnn": {"data": "digits", "depth": 3, "batch_size": 64},
    "transformer_lm": {"data": "english", "width": 64, "depth": 4, "batch_size": 8},
}
GROWN = 4
"""The most members for which the growth of the process is measured."""
WAYS = ((False, True), (False, False), (True, False))
"""Whether activations are recomputed, and whether validation counts."""


def main() -> int:
    parser = options(__doc__, members=[1, 2, 4, 8, 16], models=list(MODELS))
    parser.add_argument("--device", default=None)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    kind = torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu")).type
    for name in given.models:
        with tempfile.TemporaryDirectory() as place:
            rows += _model(name, given.members, given.device, Path(place))
        worst = max(abs(r["error"]) for r in rows)
        found = {"what": "bytes predicted and measured", "rows": rows, "largest_error": worst}
        print(write("memory" if kind == "cpu" else f"memory_{kind}", found))
    print(f"largest error {worst:.1%}")
    return 0


def _model(name: str, members: list[int], device: str | None, place: Path) -> list[dict[str, Any]]:
    asked = dict(MODELS[name])
    study = Study(name, {"seed": range(max(3, *members))}, asked.pop("data"), device=device, directory=place, **asked)
    trainer = Trainer(study.settings(), study.plan_groups, Control())
    rows = []
    for again, validation in WAYS:
        group = replace(study.plan_groups[0], checkpointed=again)
        model = model_of(trainer, group, validation)
        for count in members:
            rows.append(_row(name, trainer, group, model, count, validation))
            told = rows[-1]
            how = f"{'again' if again else 'kept'}, {told['what']}"
            sizes = [shown(told[f"{kind}_bytes"] or 0) for kind in ("predicted", "measured", "process")]
            print(
                f"{name:15} {how:15} {count:3} members: predicted {sizes[0]:>9}, measured {sizes[1]:>9} "
                f"({told['error']:+.1%}), process {sizes[2]:>9}",
                flush=True,
            )
    return rows


def _row(
    name: str, trainer: Trainer, group: Group, model: MemoryModel, members: int, validation: bool
) -> dict[str, Any]:
    measured = peak_of(trainer, group, members, validation)
    assert measured is not None  # otherwise the machine is too small for this benchmark
    predicted = model.bytes(members)
    return {
        "model": name,
        "checkpointing": group.checkpointed,
        "what": "both" if validation else "training",
        "members": members,
        "fixed_bytes": model.fixed_bytes,
        "member_bytes": model.member_bytes,
        "predicted_bytes": predicted,
        "measured_bytes": measured,
        "error": round(predicted / measured - 1, 4),
        "process_bytes": _growth(trainer, group, members) if members <= GROWN and not validation else None,
    }


def _growth(trainer: Trainer, group: Group, members: int) -> int:
    """The largest growth of the process during construction and six steps, the last of them replayed."""
    release(trainer.settings.device)
    part = group.part(group.ids[:members], group.index, group.reason)
    peak = Peak(trainer.settings.device)
    peak.begin()
    run = GroupRun(trainer, part, None)
    run.open()
    batch = sample(run)
    for _ in range(6):
        run.step.train(*batch.inputs)
    if trainer.settings.device.type == "cuda":
        torch.cuda.synchronize(trainer.settings.device)
    found = peak.bytes()
    run.forget()
    return found


if __name__ == "__main__":
    sys.exit(main())
