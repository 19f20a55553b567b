"""The processes that train an array together, and what they exchange."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from hfta_nb.errors import DistributedError


class Ranks:
    """One process among those that train an array together.

    Args:
        group: torch's process group, or one of its back ends.
        device: of the tensors that are exchanged.

    Attributes:
        rank: the number of this process, from 0.
        size: how many there are.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group, self.device = group, device
        self.rank, self.size = int(group.rank()), int(group.size())

    def sum_(self, tensor: Tensor) -> None:
        """Replace a contiguous tensor by its sum over all ranks, the same bits on each."""
        self._reduce(tensor, dist.ReduceOp.SUM)

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks; not differentiated."""
        whole = tensor.detach().clone(memory_format=torch.contiguous_format)
        self.sum_(whole)
        return whole

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers."""
        room = torch.tensor([number], device=self.device)
        self._reduce(room, dist.ReduceOp.MIN)
        return int(room.item())

    def largest_(self, tensor: Tensor) -> None:
        """Replace each entry of a contiguous tensor by its largest of all ranks."""
        self._reduce(tensor, dist.ReduceOp.MAX)

    def broadcast_(self, tensor: Tensor, source: int = 0) -> None:
        """Replace a tensor by that of a rank."""
        there = tensor.to(self.device).contiguous()
        flat, options = _bytes(there), dist.BroadcastOptions()
        options.rootRank = source
        if flat.numel():
            self._do(lambda: self._group.broadcast([flat], options))
        if self.rank != source and there is not tensor:
            tensor.copy_(there)

    def sum_to_(self, tensor: Tensor, target: int) -> None:
        """Replace a contiguous tensor by its sum over all ranks, on one of them; on the others it is used up."""
        options = dist.ReduceOptions()
        options.rootRank = target
        self._do(lambda: self._group.reduce([tensor], options))

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, all of one shape."""
        own = tensor.to(self.device).contiguous()
        found = [torch.empty_like(own) for _ in range(self.size)]
        if own.numel():
            self._do(lambda: self._group.allgather([list(map(_bytes, found))], [_bytes(own)]))
        return found

    def send(self, tensors: Sequence[tuple[Tensor, int]]) -> None:
        """Send contiguous tensors, each to a rank."""
        self._do(*(partial(self._group.send, [_bytes(tensor)], to, 0) for tensor, to in tensors if tensor.numel()))

    def receive_(self, tensor: Tensor) -> None:
        """Fill a contiguous tensor with what rank 0 sends."""
        if tensor.numel():
            self._do(lambda: self._group.recv([_bytes(tensor)], 0, 0))

    def _reduce(self, tensor: Tensor, how: Any) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp = how
        self._do(lambda: self._group.allreduce([tensor], options))

    def _do(self, *begin: Callable[[], Any]) -> None:
        """Begin exchanges, and wait for their ends."""
        try:
            for work in [one() for one in begin]:
                work.wait()
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> DistributedError:
        words = str(error).strip().splitlines() or [type(error).__name__]
        return DistributedError(
            f"an exchange with the other ranks failed ({words[0]})",
            where=f"rank {self.rank} of {self.size}",
            remedy="see the errors of the other ranks: one has ended, is stuck, or does something else",
        )


def of_torch(group: Any, device: torch.device) -> Ranks:
    """The ranks of a process group of the user's, or of torch's default group.

    Raises:
        DistributedError: there is none.
    """
    if group is None:
        if not dist.is_available() or not dist.is_initialized():
            raise DistributedError(
                "torch.distributed has no process group",
                where="DataParallel",
                remedy="start the script by torchrun and call torch.distributed.init_process_group() first",
            )
        group = dist.group.WORLD
    return Ranks(group, device)


Meet: TypeAlias = Callable[[int], tuple[Any, str]]
"""Gives a rank torch's store, by which it finds the others, and the address by which they reach its machine."""


def met_in_file(path: str, size: int, rank: int) -> tuple[Any, str]:
    """See `Meet`: on one machine.

    Args:
        path: a file that all of them see and that nobody else uses.
        size: how many they are.
        rank: which one this is.
    """
    torch_dist: Any = dist  # not all of it is typed
    with _meeting(rank, size):
        return torch_dist.FileStore(path, size), "127.0.0.1"


def store_at(host: str, port: int, timeout_s: float, rank: int, size: int) -> Any:
    """torch's store at an address, by which processes of several machines meet; rank 0 has it, at a free port.

    Raises:
        DistributedError: it can't be reached.
    """
    torch_dist: Any = dist  # not all of it is typed
    with _meeting(rank, size):
        return torch_dist.TCPStore(host, port, None, rank == 0, timedelta(seconds=timeout_s), wait_for_workers=False)


def connected_by(store: Any, rank: int, size: int, device: torch.device, timeout_s: float, host: str) -> Ranks:
    """Meet the other processes: gloo on CPUs, NCCL on GPUs. torch's default process group stays as it is.

    Args:
        store: of torch, by which they find each other.
        rank, size: which process this is, of how many.
        device: of this rank.
        timeout_s: how long an exchange may take.
        host: name or address by which the other processes reach this machine.

    Raises:
        DistributedError: they don't come together in this time.
    """
    limit = timedelta(seconds=timeout_s)
    torch_dist: Any = dist  # not all of it is typed
    with _meeting(rank, size):
        store.set_timeout(limit)
        if device.type == "cuda":
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = limit
            return Ranks(dist.ProcessGroupNCCL(store, rank, size, nccl), device)
        gloo = torch_dist.ProcessGroupGloo._Options()
        own = torch_dist.ProcessGroupGloo.create_device(hostname=host)
        for name, value in {"_timeout": limit, "_devices": [own]}.items():  # torch has no other names for them
            setattr(gloo, name, value)
        return Ranks(dist.ProcessGroupGloo(store, rank, size, gloo), device)


def lines_of(
    store: Any, rank: int, size: int, device: torch.device, timeout_s: float, host: str
) -> tuple[Ranks, Ranks]:
    """The ranks in the own row, and those in the own column, of a square of ranks; arguments as `connected_by`."""
    q = math.isqrt(size)
    row, column = divmod(rank, q)
    torch_dist: Any = dist  # not all of it is typed
    found = [
        connected_by(torch_dist.PrefixStore(f"{name} {line}", store), place, q, device, timeout_s, host)
        for name, line, place in (("row", row, column), ("column", column, row))
    ]
    return found[0], found[1]


@contextmanager
def _meeting(rank: int, size: int) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, AttributeError) as error:
        raise DistributedError(f"the processes can't meet ({error})", where=f"rank {rank} of {size}") from error


def _bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor as bytes: back ends don't know every dtype."""
    return tensor.detach().reshape(-1).view(torch.uint8)
