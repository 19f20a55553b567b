"""DLRM with M members whose tables lie on several processes: what one of them computes."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import hfta_nb as hfta
from hfta_nb.models.model_zoo.dlrm import DLRM, Interaction
from hfta_nb.workers.distributed import ShardedTables, place_tables

ROWS, WIDTH, MEMBERS, STEPS = (9, 4, 30, 1, 6), 4, 3, 6
LRS = [0.1, 0.02, 0.5]
CASES = [("rows", True), ("rows", False), ("columns", False)]


def models() -> list[DLRM]:
    """The members."""
    torch.manual_seed(0)
    return [DLRM(3, ROWS, WIDTH, [5], [6], sparse=False).double() for _ in range(MEMBERS)]


def batches() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Dense features, categories and clicks."""
    draw = torch.Generator().manual_seed(1)
    found = []
    for _ in range(STEPS):
        dense = torch.randn(8, 3, dtype=torch.float64, generator=draw)
        categories = torch.stack([torch.randint(0, n, (8,), generator=draw) for n in ROWS], 1)
        found.append((dense, categories, torch.rand(8, dtype=torch.float64, generator=draw)))
    return found


def optimizers(tables: Any, dense: Any, rowwise: bool) -> list[Any]:
    """Of the tables, and of the rest."""
    kind = hfta.optim.RowwiseAdagrad if rowwise else hfta.optim.SGD
    return [*([] if tables is None else [kind(tables, lr=LRS)]), hfta.optim.SGD(dense, lr=LRS)]


def _losses(array: Any, x: Any, y: Tensor) -> Tensor:
    found: Tensor = array.backward(F.binary_cross_entropy_with_logits, x, y)
    return found


def alone(rowwise: bool) -> tuple[list[Tensor], Tensor]:
    """The losses of one process, and its tables in the end."""
    array = hfta.fuse(models())
    dense = [p for n, p in array.named_parameters() if not n.startswith("tables")]
    steps = optimizers([array.get_parameter("tables.weight")], dense, rowwise)
    losses: list[Tensor] = []
    for x, categories, y in batches():
        losses.append(_losses(array, (x, categories), y))
        for optimizer in steps:
            optimizer.step()
            optimizer.zero_grad()
    return losses, array.get_parameter("tables.weight").detach()


def sharded(by: str, rowwise: bool) -> tuple[list[Tensor], Tensor]:
    """The same, of one of several processes."""
    members = models()
    placement = place_tables(ROWS, WIDTH, dist.get_world_size(), by=by)
    tables = ShardedTables([m.tables.weight for m in members], placement, sparse=rowwise)
    rest = [Interaction(3, len(ROWS), WIDTH, [5], [6]).double() for _ in members]
    for own, member in zip(rest, members, strict=True):
        own.load_state_dict({k: v for k, v in member.state_dict().items() if not k.startswith("tables")})
    array = hfta.fuse(rest)
    array.strategy = "fixed"  # all processes compute the same bits
    steps, losses = optimizers(tables.array, array, rowwise), list[Tensor]()
    for x, categories, y in batches():
        looked_up = tables(categories)
        losses.append(_losses(array, (x, hfta.per_member(looked_up)), y))
        for optimizer in steps:
            optimizer.step()
            optimizer.zero_grad()
    return losses, tables.weights()


def main(rank: int, count: int, store: str, result: str) -> None:
    """A process of so many."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch_dist: Any = dist  # not all of it is typed
    dist.init_process_group("gloo", store=torch_dist.FileStore(store, count), rank=rank, world_size=count)
    try:
        found = {f"{by} {rowwise}": sharded(by, rowwise) for by, rowwise in CASES}
    finally:
        dist.destroy_process_group()
    torch.save(found, result)
