"""Embedding tables: what a step costs by how many rows nobody looks up, and in one table or in several.

Times are of one thread, interleaved in rounds: of `RowwiseAdagrad` on sparse gradients against Adagrad on dense ones,
by the rows of the table; and of a whole step of DLRM's tables as T embedding bags against one.

    python -m benchmarks.tables [--members 8] [--rounds 9]
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn

import hfta_nb as hfta
from benchmarks.common import laps, milliseconds, options, write

BAGS, LOOKUPS, WIDTH = 128, 2, 16


class Apart(nn.Module):
    """T tables, each an embedding bag."""

    def __init__(self, tables: int, rows: int, sparse: bool) -> None:
        super().__init__()
        bags = (nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=sparse) for _ in range(tables))
        self.tables = nn.ModuleList(bags)

    def forward(self, categories: Tensor) -> Tensor:
        return torch.stack([table(categories[:, i]) for i, table in enumerate(self.tables)], 1)


class Together(nn.Module):
    """The same tables in one embedding bag, one after another."""

    def __init__(self, tables: int, rows: int, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.EmbeddingBag(tables * rows, WIDTH, mode="sum", sparse=sparse)
        self.register_buffer("first", torch.arange(tables).mul(rows).view(-1, 1), persistent=False)

    first: Tensor

    def forward(self, categories: Tensor) -> Tensor:
        found: Tensor = self.tables((categories + self.first).flatten(0, 1))
        return found.unflatten(0, categories.shape[:2])


def loss(output: Tensor, _: Tensor) -> Tensor:
    return output.square().mean()


def step(modules: list[nn.Module], index: Tensor, optimizer: Callable[[Any], Any]) -> Callable[[], None]:
    """A step of training, ready to be timed."""
    array = hfta.fuse(modules)
    trainer, y = optimizer(array), torch.zeros(1)

    def run() -> None:
        array.backward(loss, index, y)
        trainer.step()
        trainer.zero_grad()

    for _ in range(12):
        run()
    return run


def shown(row: dict[str, Any]) -> dict[str, Any]:
    print(row, flush=True)
    return row


def by_rows(members: int, rows: int, rounds: int) -> dict[str, Any]:
    """A step of one table, of which as many rows are looked up whatever its size."""
    index = torch.randint(0, rows, (BAGS, LOOKUPS))
    ways = {}
    for name, sparse, made in (("rowwise_sparse", True, "RowwiseAdagrad"), ("adagrad_dense", False, "Adagrad")):
        modules: list[nn.Module] = [nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=sparse) for _ in range(members)]
        ways[name] = step(modules, index, partial(getattr(hfta.optim, made), lr=0.01))
    return shown({"rows": rows, "ms": milliseconds(laps(ways, rounds, calls=5))})


def by_tables(members: int, tables: int, rows: int, rounds: int) -> dict[str, Any]:
    """A step of several tables, apart and in one, with dense gradients and SGD, and with sparse ones."""
    index, ways = torch.randint(0, rows, (BAGS, tables, LOOKUPS)), {}
    for sparse, kind in itertools.product((False, True), (Apart, Together)):
        made = hfta.optim.RowwiseAdagrad if sparse else hfta.optim.SGD
        modules: list[nn.Module] = [kind(tables, rows, sparse) for _ in range(members)]
        name = f"{kind.__name__.lower()}_{'sparse' if sparse else 'dense'}"
        ways[name] = step(modules, index, partial(made, lr=0.01))
    return shown({"tables": tables, "rows": rows, "ms": milliseconds(laps(ways, rounds, calls=3))})


def main() -> None:
    parser = options(__doc__, rounds=9, quick=False)
    parser.add_argument("--members", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [by_rows(given.members, 10**n, given.rounds) for n in ((3, 4) if given.quick else (3, 4, 5))]
    sizes = [(2, 100)] if given.quick else itertools.product((8, 26), (100, 2000))
    tables = [by_tables(given.members, *size, given.rounds) for size in sizes]
    if not given.quick:
        write("tables", {"members": given.members, "by_rows": rows, "by_tables": tables})


if __name__ == "__main__":
    main()
