"""Convergence of fused and serial training: losses of every optimizer step on real data.

For each model, three learning rates are trained for at least 500 steps: fused as one array, and serially as plain
modules with torch's own optimizers, in float32 and in float64. For comparison with the gap between the two, the effect
of rounding is measured: the gap between a serial run and the same run in which every weight changes in its last bit
after every step. The figure is drawn from the JSON.

    python -m benchmarks.convergence [--steps 500] [--only resnet18] [--draw]
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from matplotlib.lines import Line2D
from torch import Tensor

import hfta_nb as hfta
from benchmarks.common import RESULTS, options, write
from hfta_nb.figures import canvas, colors, png
from hfta_nb.train import Trainer
from hfta_nb.train.step import Scores, ScoreSink, Step

BLOCK = 10
"""Steps per stored point: the mean of the losses, and the largest gap."""

INK = "#202124"
FIGURE = RESULTS.parents[1] / "docs" / "convergence.png"
DTYPES = ("float32", "float64")
KINDS = ("fused", "serial", "serial_last_bits_changed")
PAIRS = {"fused": "fused_and_serial", "serial_last_bits_changed": "last_bits_changed"}
"""The run that is compared with the serial one, and the name of the comparison."""

GAPS = (
    ("fused_and_serial_float32", "fused and serial, float32", "-"),
    ("last_bits_changed_float32", "serial, last bits changed, float32", ":"),
    ("fused_and_serial_float64", "fused and serial, float64", "--"),
    ("last_bits_changed_float64", "serial, last bits changed, float64", "-."),
)
"""The lower row of the figure: the name in the JSON, the legend, the line style."""

LEAST = 1e-17
"""The value at which a gap of exactly zero is drawn: below the last bit of a float64."""

DECADES = 30
"""Losses that span more than this factor are drawn on a logarithmic scale."""


@dataclass(frozen=True)
class Task:
    """A model to be trained.

    Attributes:
        title: of its panels.
        family, data, lrs, fixed: as for a study.
        losses: which curves, by the name that a step gives them.
    """

    title: str
    family: str
    data: str
    lrs: tuple[float, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    losses: tuple[str, ...] = ("loss",)


TASKS = (
    Task(
        "ResNet-18, digits",
        "resnet18",
        "digits",
        (1e-4, 3e-4, 1e-3),
        {"width": 16, "batch_size": 64},
    ),
    Task(
        "Transformer, English text",
        "transformer_lm",
        "english",
        (3e-4, 1e-3, 3e-3),
        {"width": 32, "batch_size": 16},
    ),
    Task(
        "DCGAN, digits",
        "dcgan",
        "digit_images",
        (1e-4, 2e-4, 5e-4),
        {"generator_width": 8, "discriminator_width": 8, "batch_size": 32},
        ("generator_loss", "discriminator_loss"),
    ),
)


class Recorded:
    """A step that stores all losses.

    Args:
        inner: the step.
        losses: names of the losses to store.
        nudged: whether every weight is changed in its last bit after each step, up or down at random.

    Attributes:
        kept: per optimizer step ``[losses, M]``.
    """

    def __init__(self, inner: Step, losses: Sequence[str], nudged: bool) -> None:
        self.inner, self.losses, self.nudged = inner, losses, nudged
        self.generator = torch.Generator().manual_seed(0)
        self.kept: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def train(self, x: Any, y: Any, keep: ScoreSink | None = None) -> Scores:
        scores = self.inner.train(x, y)
        self.kept.append(torch.stack([scores[name].detach() for name in self.losses]))
        if self.nudged:
            for weight in self.inner.weights().values():
                if weight.is_floating_point():
                    signs = torch.randint(0, 2, weight.shape, generator=self.generator).to(weight) * 2 - 1
                    weight.mul_(1 + torch.finfo(weight.dtype).eps * signs)
        if keep is not None:
            keep.take(scores, y)
        return scores


def losses_of(task: Task, dtype: str, steps: int, *, serial: bool, nudged: bool = False) -> Tensor:
    """Train and return every step's losses ``[losses, M, steps]``, float64."""
    study = hfta.Study(
        task.family,
        {"lr": list(task.lrs)},
        task.data,
        epochs=steps,  # more than enough: training stops after so many steps
        device="cpu",
        dtype=dtype,
        serial=serial,
        **task.fixed,
    )
    return torch.cat([_of_group(study, group, task, steps, nudged) for group in study.plan_groups], 1)


def _of_group(study: hfta.Study, group: Any, task: Task, steps: int, nudged: bool) -> Tensor:
    recorded: list[Recorded] = []

    def prepare(step: Step) -> Any:
        recorded.append(Recorded(step, task.losses, nudged))
        return recorded[0]

    for _ in Trainer(study.settings(), [group], hfta.Control(), prepare=prepare):
        if recorded and len(recorded[0].kept) >= steps:
            break
    return torch.stack(recorded[0].kept[:steps], 2).double().cpu()


def measured(task: Task, steps: int) -> dict[str, Any]:
    """All runs of one model, and the gaps between them, for each curve."""
    runs: dict[str, Tensor] = {}
    for dtype in DTYPES:
        for kind in KINDS:
            how = {"serial": kind != "fused", "nudged": kind == "serial_last_bits_changed"}
            begin = time.process_time()  # of one thread, independent of other load
            runs[f"{kind}_{dtype}"] = losses_of(task, dtype, steps, **how)
            print(f"{task.family:16} {dtype} {kind:26} {time.process_time() - begin:7.1f} s", flush=True)
    curves = [
        curve(name, lr, {kind: run[i, m] for kind, run in runs.items()})
        for i, name in enumerate(task.losses)
        for m, lr in enumerate(task.lrs)
    ]
    return {
        "title": task.title,
        "family": task.family,
        "data": task.data,
        "settings": dict(task.fixed),
        "members": len(task.lrs),
        "steps": steps,
        "curves": curves,
    }


def curve(name: str, lr: float, runs: Mapping[str, Tensor]) -> dict[str, Any]:
    """One member's loss in all runs ``[steps]`` each."""
    found: dict[str, Any] = {"loss": name, "lr": lr, "steps": len(runs["serial_float32"])}
    for dtype in DTYPES:
        serial = runs[f"serial_{dtype}"]
        for other, label in PAIRS.items():
            gap = (runs[f"{other}_{dtype}"] - serial).abs()
            found[f"{label}_{dtype}"] = {
                "largest_gap": gap.max().item(),
                "largest_relative_gap": (gap / serial.abs()).max().item(),
                "first_100_steps": gap[:100].max().item(),
                "gap_by_block": [float(f"{g:.3g}") for g in _blocks(gap).amax(1).tolist()],
            }
    for dtype in DTYPES:
        for kind in ("fused", "serial"):
            name = f"{kind}_{dtype}"
            found[name] = [round(v, 6) for v in _blocks(runs[name]).mean(1).tolist()]
    return found


def _blocks(values: Tensor) -> Tensor:
    """``[steps / BLOCK, BLOCK]``; steps beyond the last whole block are left out."""
    return values[: len(values) // BLOCK * BLOCK].view(-1, BLOCK)


def draw(figures: Mapping[str, Any], path: Path = FIGURE) -> Path:
    """Draw fused curves as lines and serial ones as dashes, in float32 and float64; below, the gaps between them."""
    panels = list(_panels(figures))
    figure = canvas.figure_of(4.1 * len(panels), 9.6)
    rows = figure.subplots(3, len(panels), squeeze=False, height_ratios=(4, 4, 3), sharex="col")
    for column, (title, curves) in enumerate(panels):
        rows[0][column].sharey(rows[1][column])
        for row, dtype in enumerate(DTYPES):
            _draw_losses(rows[row][column], title if row == 0 else "", curves, dtype)
        _draw_gaps(rows[2][column], curves)
    handles = [Line2D([], [], color=INK, linestyle=line, linewidth=1.2, label=words) for _, words, line in GAPS]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(GAPS), fontsize=9, frameon=False)
    path.write_bytes(png(figure, dpi=100))
    return path


def _panels(figures: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    for model in figures["models"]:
        for name in dict.fromkeys(c["loss"] for c in model["curves"]):
            what = "" if name == "loss" else f"\n{name.replace('_', ' ')}"
            yield model["title"] + what, [c for c in model["curves"] if c["loss"] == name]


def _draw_losses(axes: Any, title: str, curves: Sequence[Any], dtype: str) -> None:
    lines = {"fused": {"linewidth": 3.4, "alpha": 0.45}, "serial": {"linewidth": 1.1, "linestyle": (0, (4, 3))}}
    handles = []
    for number, found in enumerate(curves):
        colour = colors.OKABE_ITO[number].light
        for kind, style in lines.items():
            axes.plot(_steps(found[f"{kind}_{dtype}"]), found[f"{kind}_{dtype}"], color=colour, **style)
        handles.append(Line2D([], [], color=colour, label=f"lr {found['lr']:g}"))
    handles += [Line2D([], [], color=INK, label=kind, **style) for kind, style in lines.items()]
    if title:
        axes.legend(handles=handles, fontsize=8, frameon=False)
    largest = max(c[f"fused_and_serial_{dtype}"]["largest_gap"] for c in curves)
    words = f"{dtype}, largest gap {largest:.1e}"
    axes.set_title(f"{title}\n{words}" if title else words, fontsize=10, loc="left")
    axes.set_ylabel(f"training loss, mean of {BLOCK} steps")
    values = [v for c in curves for v in c[f"serial_{dtype}"]]
    if min(values) > 0 and max(values) / min(values) > DECADES:
        axes.set_yscale("log")
    axes.grid(visible=True, color="#dadce0", linewidth=0.6)


def _draw_gaps(axes: Any, curves: Sequence[Any]) -> None:
    for number, found in enumerate(curves):
        for name, _, line in GAPS:
            gaps = [max(LEAST, g) for g in found[name]["gap_by_block"]]
            axes.plot(_steps(gaps), gaps, color=colors.OKABE_ITO[number].light, linestyle=line, linewidth=1.2)
    axes.set_yscale("log")
    axes.set_ylim(LEAST / 3, 30)
    axes.set_title("how far two runs are apart", fontsize=10, loc="left")
    axes.set_ylabel(f"gap, largest of {BLOCK} steps")
    axes.set_xlabel("optimizer step")
    axes.grid(visible=True, color="#dadce0", linewidth=0.6)


def _steps(values: Sequence[float]) -> list[float]:
    """The middle of each block."""
    return [(i + 0.5) * BLOCK for i in range(len(values))]


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--only", help="one family; its figures replace those kept before")
    parser.add_argument("--draw", action="store_true", help="draw the figures that are kept, and measure nothing")
    given = parser.parse_args()
    path = RESULTS / "convergence.json"
    figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"models": []}
    if not given.draw:
        torch.set_num_threads(1)
        models = {model["family"]: model for model in figures["models"]}
        for task in TASKS:
            if given.only in (None, task.family):
                models[task.family] = measured(task, given.steps)
        figures = {
            "what": "losses of every optimizer step, fused and serial; gaps are absolute differences of the loss",
            "models": [models[task.family] for task in TASKS if task.family in models],
        }
        print(write("convergence", figures))
    for model in figures["models"]:
        for found in model["curves"]:
            gaps = [f"{words}: {found[name]['largest_gap']:.1e}" for name, words, _ in GAPS]
            print(f"{model['family']:16} {found['loss']:20} lr {found['lr']:<8g} " + "; ".join(gaps))
    print(draw(figures))
    exact = [c["fused_and_serial_float64"]["largest_gap"] for m in figures["models"] for c in m["curves"]]
    return 0 if all(math.isfinite(gap) for gap in exact) else 1


if __name__ == "__main__":
    sys.exit(main())
