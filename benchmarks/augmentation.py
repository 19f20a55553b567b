"""The cost of augmenting a batch by this project's functions, and by kornia's if it is installed.

For each function, the program also counts the operations that would make the host wait for a GPU (a value read into
Python, or a result whose size depends on values), and tests whether float64 images stay float64, and whether torch's
default generator was used.

    python benchmarks/augmentation.py [--rounds 30] [--batch 128] [--size 32]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import interleaved, options, write
from hfta_nb.data.augment import images
from hfta_nb.data.augment.random_numbers import Draws

STRENGTH = {"random_crop": 4, "horizontal_flip": 0.5, "color_jitter": 0.4, "random_erasing": 0.5, "mix": 0.2}
WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal", "unique", "_unique2")


class Waits(TorchDispatchMode):
    """Counts operations that would make the host wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1] or ()
        )
        blocks = name == "_to_copy" and args[0].device.type == "cpu" and not (kwargs or {}).get("non_blocking")
        sent = blocks and torch.device((kwargs or {}).get("device") or "cpu").type != "cpu"
        if name in WAITING or by_mask or sent:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def own(x: Tensor, y: Tensor) -> dict[str, Callable[[], Any]]:
    """This project's functions on a batch, including the draws of their numbers."""
    low, high, fill = torch.zeros((), dtype=x.dtype), torch.ones((), dtype=x.dtype), x.mean((0, 2, 3))
    count = iter(range(10**9))

    def draws() -> Draws:
        return Draws(0, 0, next(count), len(x), x.device)

    return {
        "random_crop": lambda: images.random_crop(x, None, 4, draws())[0],
        "horizontal_flip": lambda: images.horizontal_flip(x, None, 0.5, draws())[0],
        "color_jitter": lambda: images.color_jitter(x, 0.4, low, high, draws()),
        "random_erasing": lambda: images.random_erasing(x, 0.5, fill, draws()),
        "mixup": lambda: images.mix(x, y, 0.2, 0.0, draws())[0],
        "cutmix": lambda: images.mix(x, y, 0.0, 1.0, draws())[0],
    }


def of_kornia(x: Tensor, y: Tensor) -> dict[str, Callable[[], Any]]:
    """Kornia's classes of the same names on the same batch."""
    import kornia.augmentation as K

    size, labels = tuple(x.shape[2:]), y.argmax(1)
    alone = {
        "random_crop": K.RandomCrop(size, padding=4),
        "horizontal_flip": K.RandomHorizontalFlip(p=0.5),
        "color_jitter": K.ColorJiggle(0.4, 0.4, 0.4, p=1.0),
        "random_erasing": K.RandomErasing(p=0.5),
    }
    mixing = {
        "mixup": K.RandomMixUpV2(p=1.0, data_keys=["input", "class"]),
        "cutmix": K.RandomCutMixV2(p=1.0, data_keys=["input", "class"]),
    }
    found: dict[str, Callable[[], Any]] = {n: lambda a=a: a(x) for n, a in alone.items()}
    return found | {n: lambda a=a: a(x, labels)[0] for n, a in mixing.items()}


def facts(task: Callable[[], Tensor]) -> dict[str, Any]:
    """Properties of a call besides its time."""
    before = torch.random.get_rng_state()
    with Waits() as waits:
        made = task()
    untouched = torch.equal(before, torch.random.get_rng_state())
    return {
        "waits": len(waits.found),
        "dtype": str(made.dtype).removeprefix("torch."),
        "default_generator": not untouched,
    }


def main() -> int:
    parser = options(__doc__, rounds=30)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32, help="height and width of the images, which have 3 channels")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sets = {"own": own} | ({"kornia": of_kornia} if find_spec("kornia") else {})
    figures: dict[str, Any] = {
        "what": f"one batch of {given.batch} images of 3 x {given.size} x {given.size}, one thread"
    }
    tasks = {}
    for dtype in (torch.float32, torch.float64):
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(given.batch, 3, given.size, given.size, generator=generator, dtype=dtype)
        y = torch.eye(10, dtype=dtype)[torch.randint(0, 10, (given.batch,), generator=generator)]
        for library, make in sets.items():
            for name, task in make(x, y).items():
                key = f"{library} {name} {str(dtype).removeprefix('torch.')}"
                figures[key] = facts(task)
                tasks[key] = task
    for key, timing in interleaved(tasks, given.rounds, warm_up=3).items():
        figures[key] |= {"median_ms": round(1e3 * timing.median_s, 3), "low_ms": round(1e3 * timing.low_s, 3)}
        print(f"{key:32}", ", ".join(f"{k} {v}" for k, v in figures[key].items()))
    print(write("augmentation", figures, ("torch", "numpy", "scipy", "kornia")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
