"""64 MLPs of depth 1 to 4 in one array against TabPack, which packs the same MLPs: milliseconds per member and step.

Each member has its own depth, dropout, learning rate, weight decay and learning rate of Muon. Hidden layers' matrices
have Muon, the rest AdamW. TabPack (Gorishniy et al., ICML 2026) is run from a checkout of its public repository, whose
modules and optimizer are taken as they are; nothing of it is in this repository. Both train the same sizes on the same
mini-batches, in turns, in one process with one thread. Steps are timed by the processor's clock.

    git clone https://github.com/yandex-research/tabpack
    python -m benchmarks.tabpack --tabpack tabpack/src [--members 64] [--width 128] [--rounds 5]
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from benchmarks.common import laps, milliseconds, options, write

SAMPLES, FEATURES, CLASSES, DEPTH = 256, 64, 2, 4
Row = dict[str, Any]


def rows(members: int) -> list[Row]:
    """What members differ in, drawn as TabPack's own configurations are."""
    draw = random.Random(0)

    def log_uniform(low: float, high: float) -> float:
        return float(low * (high / low) ** draw.random())

    return [
        {
            "depth": 1 + i % DEPTH,
            "dropout": round(0.5 * draw.random(), 3),
            "lr": log_uniform(1e-4, 5e-3),
            "weight_decay": log_uniform(1e-3, 1.0),
            "muon_lr": log_uniform(1e-3, 0.1),
        }
        for i in range(members)
    ]


def column(given: list[Row], name: str) -> list[Any]:
    return [row[name] for row in given]


class MLP(nn.Module):
    """Hidden layers with ReLU and dropout, and a linear head."""

    def __init__(self, depth: int, width: int, dropout: float) -> None:
        super().__init__()
        sizes = [FEATURES, *[width] * depth]
        blocks = [nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout)) for a, b in itertools.pairwise(sizes)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(x))
        return out


def ours(given: list[Row], width: int, x: Tensor, y: Tensor) -> Callable[[], object]:
    """A step of the array."""
    array = hfta.fuse([MLP(row["depth"], width, row["dropout"]) for row in given], seeds=list(range(len(given))))
    matrices = hfta.optim.param_groups(array, lambda name, p: {} if p.ndim == 2 and "blocks" in name else None)
    rest = hfta.optim.param_groups(array, lambda name, p: None if p.ndim == 2 and "blocks" in name else {})
    decay = column(given, "weight_decay")
    optimizers = [
        hfta.optim.Muon(matrices, lr=column(given, "muon_lr"), weight_decay=decay),
        hfta.optim.AdamW(rest, lr=column(given, "lr"), weight_decay=decay),
    ]

    def step() -> Any:
        losses: Any = array.backward(F.cross_entropy, x, y)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return losses

    return step


def theirs(source: Path, given: list[Row], width: int, x: Tensor, y: Tensor) -> Callable[[], object]:
    """A step of TabPack."""
    packed, optim = _modules(source)
    size = len(given)
    view = packed.PackView(pack_size=size)
    body = packed.MLPBackbonePack(
        d_in=FEATURES, n_blocks=column(given, "depth"), max_n_blocks=DEPTH, d_block=width,
        dropout=column(given, "dropout"), pack_size=size,
    )  # fmt: skip
    head = packed.LinearPack(width, CLASSES, pack_size=size)
    matrices = [block.linear.weight for block in body.blocks]
    rest = [p for p in (*body.parameters(), *head.parameters()) if all(p is not q for q in matrices)]
    optimizer = optim.MuonAdamWPack(
        [{"params": matrices, "muon": True}, {"params": rest}], lr=column(given, "lr"),
        weight_decay=column(given, "weight_decay"), muon_lr=column(given, "muon_lr"), pack_size=size, shared_step=True,
    )  # fmt: skip

    def step() -> Tensor:
        optimizer.zero_grad()
        out = head(body(view(x)))
        losses = F.cross_entropy(out.flatten(0, 1), y.repeat(size), reduction="none").view(size, -1).mean(1)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return losses.detach()

    return step


def _modules(source: Path) -> tuple[Any, Any]:
    """TabPack's modules and optimizers, without type parameters, which Python before 3.12 lacks."""
    sys.path.insert(0, str(source))
    names = types.ModuleType("lib.types")
    names.KWArgs = dict  # type: ignore[attr-defined]
    sys.modules["lib.types"] = names
    sys.modules["project"] = types.ModuleType("project")
    sys.modules["project"].__path__ = [str(source / "project")]
    found = []
    for name in ("nn", "optim"):
        path = source / "project" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"project.{name}", path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[f"project.{name}"] = module
        text = re.sub(r"(def \w+)\[\w+\]\(", r"\1(", path.read_text(encoding="utf-8"))
        exec(compile("from __future__ import annotations\n" + text, str(path), "exec"), module.__dict__)  # noqa: S102
        found.append(module)
    return found[0], found[1]


def main() -> None:
    parser = options(__doc__, rounds=5)
    parser.add_argument("--tabpack", type=Path, help="folder `src` of a checkout of TabPack")
    parser.add_argument("--members", type=int, default=64)
    parser.add_argument("--width", type=int, nargs="+", default=[64, 128])
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(SAMPLES, FEATURES), torch.randint(0, CLASSES, (SAMPLES,))
    found, members = [], rows(given.members)
    for width in given.width:
        ways = {"ours": ours(members, width, x, y)}
        if given.tabpack is not None:
            ways["tabpack"] = theirs(given.tabpack, members, width, x, y)
        times = milliseconds(laps(ways, given.rounds, calls=2, warm_up=6))
        row = {"width": width, "ms_per_step": times,
               "ms_per_member_and_step": {k: round(v / given.members, 4) for k, v in times.items()}}  # fmt: skip
        if "tabpack" in times:
            row["times_as_fast"] = round(times["tabpack"] / times["ours"], 3)
        print(row, flush=True)
        found.append(row)
        write("tabpack", {"members": given.members, "samples": SAMPLES, "features": FEATURES, "widths": found})


if __name__ == "__main__":
    main()
