"""The other devices of an array on Ray: an actor each, beside the one that trains the array."""

from __future__ import annotations

from functools import partial
from typing import Any

from hfta_nb.workers.distributed.followers import Followers
from hfta_nb.workers.distributed.rank_follower import Follower
from hfta_nb.workers.distributed.ranks import Meet, store_at
from hfta_nb.workers.pools.ray_child import Actor, RayChild
from hfta_nb.workers.processes.child import Send, packed
from hfta_nb.workers.processes.child_process import Ended


class RayRank(Actor):
    """An actor of another rank, so that lists of processes and of actors tell it from a worker."""


class RayFollowers(Followers):
    """The ranks 1, 2, ... of an array, each an actor, on this node or another.

    They are made by rank 0, itself an actor, in its placement group, and so end with it. Commands go through Ray,
    tensors through gloo or NCCL.
    """

    start_s = None  # whoever waits for the actors of a cluster waits as long as it takes

    def open(self) -> tuple[Any, str, Meet]:
        """See `Followers`."""
        import ray

        host = ray.util.get_node_ip_address()
        store = store_at(host, 0, self.timeout_s, 0, self.size)
        return store, host, partial(met_at_node, host, store.port, self.timeout_s, self.size)

    def start(self, rank: int, hear: Send, ended: Ended) -> RayChild:
        """See `Followers`."""
        from ray.util import get_current_placement_group

        place = get_current_placement_group()
        bundle = place.bundle_specs[rank]
        child = RayChild(RayRank, place, bundle, rank, hear, ended)
        child.send({"task": {"threads": int(bundle["CPU"])}}, packed(Follower))
        return child

    def device_of(self, rank: int) -> str:
        """See `Followers`: an actor sees no GPU but its own."""
        return str(self.device)


def met_at_node(host: str, port: int, timeout_s: float, size: int, rank: int) -> tuple[Any, str]:
    """See `Meet`: at the store of rank 0, from any node."""
    import ray

    return store_at(host, port, timeout_s, rank, size), ray.util.get_node_ip_address()
