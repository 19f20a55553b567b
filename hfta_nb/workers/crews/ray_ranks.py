"""The other devices of an array on Ray: an actor each, beside the one that trains the array."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from hfta_nb.errors import DistributedError
from hfta_nb.workers.distributed import followers
from hfta_nb.workers.distributed.others import explained, lost
from hfta_nb.workers.distributed.rank_follower import Follower
from hfta_nb.workers.distributed.ranks import Ranks, connected_by, store_at
from hfta_nb.workers.processes import pickling

_END_S = 5.0
_LOST = DistributedError.__name__


def of_device(
    actor: type, place: Any, bundle: Mapping[str, float], device: int, groups: Mapping[str, Sequence[str]]
) -> Any:
    """A class of actors as Ray has them, that get one device of a placement group.

    Args:
        actor: the class.
        place: the placement group.
        bundle: the resources of a device.
        device: its number in the placement group.
        groups: methods of the actor that run one at a time, by the name of their concurrency group.
    """
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    for group, methods in groups.items():
        for method in methods:  # here, as calls through Ray's client can't name a group
            ray.method(concurrency_group=group)(getattr(actor, method))
    return ray.remote(concurrency_groups=dict.fromkeys(groups, 1))(actor).options(
        num_cpus=bundle["CPU"],
        num_gpus=bundle.get("GPU", 0),
        resources={name: value for name, value in bundle.items() if name not in ("CPU", "GPU")},
        max_restarts=0,
        scheduling_strategy=PlacementGroupSchedulingStrategy(place, placement_group_bundle_index=device),
    )


class RayRanks:
    """The ranks 1, 2, ... of an array, each an actor, on this node or another; see `Followers`.

    They are made by rank 0, itself an actor, and so end with it. Commands go through Ray, tensors through gloo or NCCL.

    Args:
        place: the placement group, with a device for each rank.
        bundle: the resources of a device.
        threads: of torch, in each.
        size: how many ranks there are, rank 0 among them.
        device: of rank 0, and of the others in their processes, which see no GPU but their own.

    Attributes:
        ranks: rank 0 among them.

    Raises:
        DistributedError: an actor does not start, or they can't meet.
    """

    ranks: Ranks

    def __init__(self, place: Any, bundle: Mapping[str, float], threads: int, size: int, device: torch.device) -> None:
        import ray

        self._gone: dict[int, str] = {}
        self._changed = threading.Condition()
        self._asked: list[queue.SimpleQueue[Any]] = []
        self._actors: list[Any] = []
        host, timeout_s = ray.util.get_node_ip_address(), followers.TIMEOUT_S
        try:
            store = store_at(host, 0, timeout_s, 0, size)
            for rank in range(1, size):
                self._actors.append(of_device(RayRank, place, bundle, rank, {}).remote(threads))
                self._asked.append(queue.SimpleQueue())
                given = rank, self._actors[-1], self._asked[-1]
                threading.Thread(target=self._listen, args=given, name=f"hfta_nb rank {rank}", daemon=True).start()
            with self.watched():
                self._wait_ready()
                for rank, actor in enumerate(self._actors, 1):
                    call = actor.join.remote(host, store.port, timeout_s, rank, size, str(device))
                    self._asked[rank - 1].put(call)
                self.ranks = connected_by(store, 0, size, device, timeout_s, host)
        except BaseException:
            self.close()
            raise

    def tell(self, command: str, *given: Any) -> None:
        """See `Others`."""
        if self._gone:
            raise lost(self._gone)
        import ray

        told = ray.put(pickling.packed(given))
        for actor, asked in zip(self._actors, self._asked, strict=True):
            asked.put(actor.do.remote(command, told))

    def watched(self) -> AbstractContextManager[None]:
        """See `Others`."""
        return explained(self._ended)

    def close(self) -> None:
        """End the actors."""
        import ray

        for actor, asked in zip(self._actors, self._asked, strict=True):
            asked.put(None)
            with contextlib.suppress(ray.exceptions.RayError):  # it is gone already, or the cluster
                ray.kill(actor)

    def _wait_ready(self) -> None:
        """Wait until all processes have imported torch.

        Raises:
            DistributedError: one has ended.
        """
        import ray

        try:
            ray.get([actor.ready.remote() for actor in self._actors])
        except ray.exceptions.RayError as error:
            raise lost({0: _in_words(error)}) from error

    def _listen(self, rank: int, actor: Any, asked: queue.SimpleQueue[Any]) -> None:
        """Notice the end of a rank; one that can't do what it was told is ended, as others wait for it."""
        import ray

        while (call := asked.get()) is not None:
            try:
                why = ray.get(call)
            except ray.exceptions.RayError as error:
                why = _in_words(error)
            if why:
                with self._changed:
                    self._gone[rank] = why
                    self._changed.notify_all()
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.kill(actor)
                return

    def _ended(self) -> Mapping[int, str]:
        """By rank, why it has ended; waits a while for one that has for a reason of its own."""

        def found() -> bool:
            return any(not why.startswith(_LOST) for why in self._gone.values())

        with self._changed:
            self._changed.wait_for(found, _END_S)
            return dict(self._gone)


class RayRank:
    """What runs in a process of the cluster: a `Follower`.

    Args:
        threads: of torch.
    """

    _follower: Follower

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def ready(self) -> None:
        """Answers once it is."""

    def join(self, host: str, port: int, timeout_s: float, rank: int, size: int, device: str) -> str:
        """Meet the other ranks, at rank 0's store; returns what went wrong."""
        import ray

        own = torch.device(device)
        if own.type == "cuda":
            torch.cuda.set_device(own)
        try:
            store = store_at(host, port, timeout_s, rank, size)
            here = ray.util.get_node_ip_address()
            self._follower = Follower(connected_by(store, rank, size, own, timeout_s, here))
        except Exception as error:
            return _in_words(error)
        return ""

    def do(self, command: str, given: bytes) -> str:
        """Do what rank 0 does; returns what went wrong."""
        try:
            self._follower.do(command, *pickling.unpacked(given))
        except Exception as error:
            return _in_words(error)
        return ""


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
