"""Three arrays that don't fuse, on one shared stream of augmented images, beside a stream for each of them.

Preprocessing is expensive on purpose: each image is rotated, blurred, jittered and made smaller by the data set. Three
ways, in turn:

- "own": one array after another, each reads the data set in the training process (`share_stream=False`);
- "own, workers": the same, read by worker processes;
- "shared": the arrays take turns on one stream, read by worker processes (the default of a study).

Figures of a run are its wall time, the processor seconds of preprocessing (making batches, wherever that is done), and
those of all processes together. All three give the same results, bit for bit, which is checked.

Three arrays make a third of the batches on one stream, so 3 is the most that the processor seconds can fall by. A batch
itself takes more of them where training computes on the other core, which shares caches and memory: "own" makes
batches while nothing else computes, "own, workers" under the conditions of "shared". Ratios to both are told; the
latter is what sharing alone gives.

    python benchmarks/shared_stream.py [--rounds 5] [--quick]

Five rounds take two to three minutes on two cores. The cores must be idle: the worker takes one of them.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import Timing, options, write
from hfta_nb import Study
from hfta_nb.data import Stream, from_dataset, preprocessed
from hfta_nb.data.sources import DatasetSource

WIDTHS = [4, 6, 8]
BATCH, LARGE, SIZE = 32, 160, 32
SMALL = 64, 1
"""Samples and epochs of a quick run."""
MAKING = torch.zeros(1024, dtype=torch.float64).share_memory_()
"""Processor seconds that processes spent on making batches, at their ids modulo the length."""


class Augmented(Dataset[tuple[Tensor, int]]):
    """Random images that are rotated, blurred, jittered and made small when they are read."""

    classes = ("a", "b", "c", "d")

    def __init__(self, samples: int) -> None:
        drawn = torch.Generator().manual_seed(0)
        self.images = torch.randint(0, 256, (samples, 3, LARGE, LARGE), dtype=torch.uint8, generator=drawn)
        self.labels = (torch.arange(samples) % len(self.classes)).tolist()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index : index + 1] / 255
        angle = (torch.rand(()) - 0.5) * 0.6
        turn = torch.stack(
            [angle.cos(), -angle.sin(), angle.new_zeros(()), angle.sin(), angle.cos(), angle.new_zeros(())]
        )
        grid = F.affine_grid(turn.view(1, 2, 3), list(image.shape), align_corners=False)
        image = F.grid_sample(image, grid, align_corners=False)
        width = 0.5 + torch.rand(())
        kernel = torch.softmax(-(torch.arange(-4.0, 5.0) ** 2) / (2 * width**2), 0)
        for shape in ((3, 1, 9, 1), (3, 1, 1, 9)):
            weight = kernel.view(1, 1, *shape[2:]).expand(shape)
            image = F.conv2d(image, weight, padding=(shape[2] // 2, shape[3] // 2), groups=3)
        image = (image - 0.5) * (0.6 + 0.8 * torch.rand(())) + 0.5 + 0.2 * torch.randn(3, 1, 1)
        return F.interpolate(image, (SIZE, SIZE), mode="area")[0], self.labels[index]


def count_processor_time() -> None:
    """Note the processor time of making batches, in this process and in those that it forks."""
    import os

    original = DatasetSource.batch

    def counted(self: DatasetSource, *arguments: Any) -> Any:
        begin_s = time.process_time()
        try:
            return original(self, *arguments)
        finally:
            MAKING[os.getpid() % len(MAKING)] += time.process_time() - begin_s

    DatasetSource.batch = counted  # type: ignore[method-assign]


def spent_s() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in each)


def trained(stream: Stream, epochs: int, share: bool) -> list[float]:
    """Train the three arrays; the losses of all members in the last epoch."""
    with tempfile.TemporaryDirectory() as place:
        how: dict[str, Any] = {"batch_size": BATCH, "device": "cpu", "deterministic": True, "padding": "never"}
        grid = {"width": WIDTHS, "lr": [1e-3, 3e-3]}
        study = Study("cnn", grid, stream, epochs=epochs, directory=Path(place) / "run", share_stream=share, **how)
        MAKING.zero_()  # what a look at the data took is no part of it
        for _ in study.run():
            pass
        return [v for member in study.history.members.values() for v in member.curves["val_loss"].values]


def ways(samples: int, epochs: int) -> dict[str, Callable[[], list[float]]]:
    """The ways to train, by name."""

    def stream() -> Stream:
        data = Augmented(samples)
        small = F.interpolate(data.images[:BATCH] / 255, (SIZE, SIZE), mode="area")
        held = TensorDataset(small, torch.tensor(data.labels[:BATCH]))
        found = from_dataset(data, held, in_memory=False)
        assert isinstance(found, Stream)
        return found

    def by_workers() -> list[float]:
        read, workers = preprocessed(stream())
        try:
            return trained(read, epochs, share=False)
        finally:
            if workers is not None:
                workers.close()

    return {
        "own": lambda: trained(stream(), epochs, share=False),
        "own, workers": by_workers,
        "shared": lambda: trained(stream(), epochs, share=True),
    }


def measure(rounds: int, samples: int, epochs: int) -> Mapping[str, dict[str, Timing]]:
    """By way and by figure, its values in each round; every other round goes backwards."""
    for task in ways(*SMALL).values():  # imports, and what is compiled or measured once
        task()
    tasks = ways(samples, epochs)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in tasks}
    losses: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, task in list(tasks.items())[:: -1 if number % 2 else 1]:
            wall_s, cpu_s = time.perf_counter(), spent_s()
            losses[name] = task()
            values = {"wall_s": time.perf_counter() - wall_s, "all_cpu_s": spent_s() - cpu_s}
            values["preprocessing_cpu_s"] = float(MAKING.sum())
            for key, value in values.items():
                found[name].setdefault(key, []).append(value)
    assert losses["own"] == losses["own, workers"] == losses["shared"]
    return {name: {key: Timing.of(values) for key, values in one.items()} for name, one in found.items()}


def main() -> int:
    parser = options(__doc__, rounds=5, quick=False)
    given = parser.parse_args()
    torch.set_num_threads(1)
    count_processor_time()
    samples, epochs = SMALL if given.quick else (512, 2)
    found = measure(given.rounds, samples, epochs)
    rows = []
    for name, figures in found.items():
        row: dict[str, Any] = {"way": name}
        for key, timing in figures.items():
            row |= {key: timing.median_s, f"{key}_low": timing.low_s, f"{key}_high": timing.high_s}
            row[f"{key}_ratio"] = found["own"][key].median_s / timing.median_s
            row[f"{key}_ratio_to_workers"] = found["own, workers"][key].median_s / timing.median_s
        rows.append(row)
        print("{way:14} {wall_s:7.2f} s, preprocessing {preprocessing_cpu_s:7.2f} s of CPU: {wall_s_ratio:.2f}x and "
              "{preprocessing_cpu_s_ratio:.2f}x of own, {wall_s_ratio_to_workers:.2f}x and "
              "{preprocessing_cpu_s_ratio_to_workers:.2f}x of own with workers".format(**row))  # fmt: skip
    images = f"{samples} images of {LARGE}x{LARGE} made {SIZE}x{SIZE}"
    about = f"three arrays of two CNNs, widths {WIDTHS}; {images}, batches of {BATCH}"
    what = f"{about}, {epochs} epochs; one thread per process; {given.rounds} rounds, medians and quartiles"
    print(write("shared_stream", {"what": what, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
