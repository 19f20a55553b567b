"""Accuracy of the built-in families on the built-in data: no download, on a laptop's CPU.

Each row is a sweep of a few members; the member with the best validation score at its best epoch counts. Language
models are compared with a unigram model, which predicts each token by its share of the training text (one added to
every count), on the same held-out text, in nats per token. A distance of generated images (less is better) is listed
with the distances of training images and of noise.

    python benchmarks/accuracy.py [--only digits,gpt] [--threads 1]

Rows that are not run again keep their figures in the file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hfta_nb as hfta
from benchmarks import common
from hfta_nb.models.losses import IGNORED
from hfta_nb.models.metrics import frechet_distance
from hfta_nb.records.events import EpochDone

NAME = "accuracy"


@dataclass(frozen=True)
class Row:
    """A sweep, and the target for its best member.

    Attributes:
        family, data, grid, options: of the study.
        metric: whose value at the best epoch counts.
        bar: the target; None if the figure is only reported.
        unigram: whether the figure is the difference in nats from the loss of a unigram model.
    """

    family: str
    data: str
    grid: dict[str, list[Any]]
    options: dict[str, Any]
    metric: str
    bar: float | None = None
    unigram: bool = False


def _language(family: str, lr: list[float], epochs: int, **options: Any) -> Row:
    return Row(family, "english", {"lr": lr}, {"epochs": epochs, "batch_size": 32, **options}, "val_loss", 1.0, True)


ROWS: dict[str, Row] = {
    "digits": Row("cnn", "digits", {"lr": [3e-3, 1e-2], "seed": [0, 1]}, {"epochs": 30}, "val_accuracy", 0.98),
    "digits_augmented": Row(
        "cnn", "digits", {"random_crop": [0, 1], "mixup": [0.0, 0.2]}, {"epochs": 30, "lr": 1e-2}, "val_accuracy"
    ),
    "lstm_lm": _language("lstm_lm", [3e-3, 1e-2], 4),
    "gru_lm": _language("gru_lm", [3e-3, 1e-2], 4),
    "gpt": _language("gpt", [1e-3, 3e-3], 5),
    "transformer_lm": _language("transformer_lm", [1e-3, 3e-3], 5),
    "bert": Row(
        *("bert", "english_masked", {"lr": [1e-3, 2e-3]}, {"epochs": 10, "steps_per_epoch": 150}, "val_loss", 1.0),
        unigram=True,
    ),
    "pointnet_cls": Row(
        *("pointnet_cls", "shapes", {"lr": [1e-3, 3e-3]}, {"epochs": 20, "batch_size": 32, "width": 16}),
        *("val_accuracy", 0.95),
    ),
    "pointnet_seg": Row(
        *("pointnet_seg", "shape_parts", {"lr": [1e-3, 3e-3]}, {"epochs": 30, "batch_size": 16, "width": 16}),
        "val_mean_iou",
    ),
    "dcgan": Row(
        *("dcgan", "digit_images", {"lr": [2e-4, 1e-3]}),
        {"epochs": 40, "validate_every": 5, "generator_width": 16, "discriminator_width": 16, "latent": 32},
        "val_distance",
    ),
}


def unigram_nats(data: hfta.Data) -> float:
    """Cross entropy of the held-out targets under each token's share of the training targets."""
    counted = data.y[data.y != IGNORED]
    shares = torch.bincount(counted, minlength=data.facts["vocab_size"]).double() + 1
    held = data.y_validation[data.y_validation != IGNORED]
    return float(-(shares / shares.sum()).log()[held].mean())


def measure(row: Row, device: str | None) -> dict[str, Any]:
    """Train a row's sweep; returns its figures."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        study = hfta.Study(
            row.family, row.grid, row.data, directory=place, monitor=row.metric, device=device, **row.options
        )
        for event in study.run():
            if isinstance(event, EpochDone):
                shown = ", ".join(f"{v:.4f}" for v in event.metrics.get(row.metric, ()))
                print(f"  epoch {event.epoch}: {shown}", flush=True)
        best = study.best()
        value = best.metrics[row.metric]
        parameters = study.plan_groups[0].parameters
        passes = -(-len(study.data) // study.plan_groups[0].rows[0]["batch_size"])
        steps = study.epochs * row.options.get("steps_per_epoch", passes)
        device_name = study.history.run.device_name if study.history.run else ""
        reference = unigram_nats(study.data) if row.unigram else None
        scores = {i: m.at_best(row.metric) for i, m in study.history.members.items()}
    found = {
        "family": row.family,
        "data": row.data,
        "grid": row.grid,
        "options": row.options,
        "parameters": parameters,
        "steps": steps,
        "device": device_name,
        "threads": torch.get_num_threads(),
        "metric": row.metric,
        "best_member": best.variant.label,
        "best": value,
        "members": scores,
        "bar": row.bar,
        "seconds": round(time.perf_counter() - begin, 1),
        "command": common.command(),
    }
    if reference is not None:
        found |= {"unigram_nats": reference, "below_unigram_nats": reference - value}
    if row.metric == "val_distance":
        found |= distances(study.data)
    return found


def distances(data: hfta.Data) -> dict[str, float]:
    """Distances of training images and of noise from the held-out images, for comparison with generated images."""
    noise = torch.rand(data.x_validation.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    told = {"distance_of_training_images": data.x, "distance_of_noise": noise}
    return {name: float(frechet_distance((images, data.x_validation), None)) for name, images in told.items()}


def reached(row: Row, found: dict[str, Any]) -> bool:
    """True if the target was reached; None if there is none."""
    value = found["below_unigram_nats"] if row.unigram else found["best"]
    return row.bar is None or value >= row.bar


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", help=f"some rows, with commas between: {', '.join(ROWS)}")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--device", help="cpu, cuda (default: the GPU if there is one)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    chosen = given.only.split(",") if given.only else list(ROWS)
    for name in chosen:
        if name not in ROWS:
            parser.error(f"no row {name!r}; there are {', '.join(ROWS)}")
    path = common.RESULTS / f"{NAME}.json"
    found: dict[str, Any] = {}
    for name in chosen:
        print(name, flush=True)
        found[name] = measure(ROWS[name], given.device)
        found[name]["reached"] = reached(ROWS[name], found[name])
        shown = {
            k: found[name][k] for k in ("best_member", "best", "below_unigram_nats", "seconds") if k in found[name]
        }
        print(f"  {shown}", flush=True)
        # Read again: another of these programs may have written meanwhile.
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else {}
        ordered = {key: (rows | found)[key] for key in ROWS if key in rows | found}
        common.write(NAME, {"what": (__doc__ or "").partition("\n")[0], "rows": ordered})
    print(path)
    return 0 if all(row["reached"] for row in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
