"""One of two ranks that run all cases of `rank_cases`."""

from __future__ import annotations

import os
import warnings

import torch
import torch.distributed as dist

from hfta_nb.workers.distributed import DataParallel
from tests.fleet.rank_cases import EQUAL, OTHER


def main(rank: int, store: str, result: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    try:
        found = {case.__name__: case(DataParallel) for case in (*EQUAL, *OTHER)}
    finally:
        dist.destroy_process_group()
    torch.save(found, result)
