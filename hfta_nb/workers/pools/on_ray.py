"""Workers that are actors of a Ray cluster."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hfta_nb.data import Stream
from hfta_nb.errors import WorkerError
from hfta_nb.train import Settings
from hfta_nb.workers.pools.addresses import ACCEPTED, REMEDY, check_address
from hfta_nb.workers.pools.executor import Terms
from hfta_nb.workers.pools.processes import check_terms, on_first_device, whole
from hfta_nb.workers.pools.ray_child import Actor, RayChild
from hfta_nb.workers.pools.ray_ranks import RayFollowers
from hfta_nb.workers.pools.ray_stream import RayServer
from hfta_nb.workers.pools.site import VERSIONS, ChildSite, ChildWorker
from hfta_nb.workers.pools.task import Training
from hfta_nb.workers.processes import pickling
from hfta_nb.workers.processes.child import Send, packed
from hfta_nb.workers.processes.child_process import Ended

_STARTS = 3
"""Attempts to start Ray on this machine. Ray waits 30 seconds for its processes. Starting takes 15 seconds on two idle
cores of a slow processor and more than twice that beside other work, so that only a later attempt may succeed."""

MOST_WORKERS = 256
"""Actors that are asked for at a time where nobody says how many."""

MOST = 10_000
"""Actors, or CPUs of one, that can be asked for."""


@dataclass(frozen=True)
class OnRay:
    """Trains groups in actors of a Ray cluster.

    Each group asks for an actor with the resources of one device, so an autoscaling cluster grows and shrinks with the
    number of groups. Nothing waits for a fixed number of nodes: groups begin as actors become ready, and an actor whose
    group is done takes the next one or is given back. hfta_nb must be installed on all nodes, at the same version.

    Args:
        address: of a cluster, for example "auto" or "ray://head:10001"; None for the one that this process is connected
            to, or else a new one on this machine, which ends with the run.
        workers: the most actors at a time; by default one per group. A group to which the plan gives several devices
            (see `Terms.most`) trains data-parallel in as many of these, on one node where there is room.
        cpus: of an actor; torch gets as many threads on a CPU.
        resources: further resources of an actor by name, as Ray has them.
        terms: how groups are given to workers.

    Raises:
        WorkerError: Ray is not installed, or something is given that can't be.
    """

    address: str | None = None
    workers: int | None = None
    cpus: int = 1
    resources: dict[str, float] = field(default_factory=dict)
    terms: Terms = field(default_factory=Terms)

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise WorkerError("Ray is not installed", where="executor", got="ray", accepted="ray 2.40 or newer",
                              remedy='pip install "hfta_nb[ray]"')  # fmt: skip
        for name in ("workers", "cpus"):
            whole(name, getattr(self, name))
            _within(name, getattr(self, name))
        check_terms(self.terms)
        if self.address is not None and not isinstance(self.address, str):
            raise WorkerError("not the address of a Ray cluster", where="address", got=self.address, accepted=ACCEPTED)
        if not isinstance(self.resources, dict) or not all(map(_is_resource, self.resources.items())):
            accepted = 'a dict from names other than CPU and GPU to positive numbers, as {"large_memory": 1}'
            raise WorkerError("not resources of Ray", where="resources", got=self.resources, accepted=accepted,
                              remedy="for CPUs: cpus=...; a GPU is asked for where the study has one")  # fmt: skip

    def reach(self, devices: int = 1) -> None:
        """See `Executor`.

        Raises:
            WorkerError: nothing answers at the address, this process is connected to another cluster, or no cluster has
                so many devices.
        """
        import ray

        _within("devices", devices)
        if not ray.is_initialized():
            check_address(self.address)
        elif self.address not in (None, "auto", ray.get_runtime_context().gcs_address):
            raise WorkerError("this process is connected to another Ray cluster", where="address", got=self.address,
                              accepted=f"auto, {ray.get_runtime_context().gcs_address}",
                              remedy="leave address out, or call ray.shutdown() first")  # fmt: skip

    def open(self, settings: Settings, groups: int, devices: int = 1) -> RaySite:
        """See `Executor`; with several devices to a slot, `workers` are the slots.

        Raises:
            WorkerError: the cluster can't be reached, or the one that was started here has too few devices.
        """
        import ray

        self.reach()
        own = not ray.is_initialized()
        if own:
            _connect(self.address)
        gpus = {"GPU": 1.0} if settings.device.type == "cuda" else {}
        bundle = {"CPU": float(self.cpus), **gpus, **self.resources}
        slots = self.workers or max(1, min(groups * self.terms.most, MOST_WORKERS))
        if own and _is_head():
            try:
                slots = min(slots, _room(bundle, devices))
            except WorkerError:
                ray.shutdown()
                raise
        return RaySite(on_first_device(settings), slots, bundle, devices, own)


def _connect(address: str | None) -> None:
    """Connect this process to a cluster, or start one on this machine.

    Raises:
        WorkerError: neither is possible.
    """
    import ray

    os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")  # Ray would put its own print in place of the caller's
    quiet: dict[str, Any] = {"include_dashboard": False} if address is None else {}
    for left in reversed(range(_STARTS if address is None else 1)):
        try:
            ray.init(address, log_to_driver=False, logging_level="warning", namespace="hfta_nb", **quiet)
            return
        except Exception as error:  # Ray raises a plain one where its processes don't start in time
            ray.shutdown()
            if not left:
                words = " ".join(str(error).split())
                remedy = VERSIONS if "version mismatch" in words.lower() else REMEDY
                raise WorkerError(f"Ray can't be reached ({words})", where="address", got=address,
                                  accepted=ACCEPTED, remedy=remedy) from error  # fmt: skip


class RaySite(ChildSite):
    """The actors of one run.

    Args:
        settings: of the run, with the device as an actor sees it; they are put into the object store once.
        slots: the most actors at a time.
        bundle: the resources of a device.
        devices: of a slot.
        own: whether Ray was started for this run.
    """

    elastic = True

    def __init__(self, settings: Settings, slots: int, bundle: dict[str, float], devices: int, own: bool) -> None:
        import ray

        super().__init__(slots)
        self._own, self._bundle, self._devices = own, bundle, devices
        self._task = ray.put(packed(Training, pickling.dumps(settings, {}), RayFollowers))

    def worker(self, slots: Sequence[int]) -> ChildWorker:
        """See `Site`: in a placement group of its own, with one actor for each device that trains an array."""
        from ray.util.placement_group import placement_group, remove_placement_group

        bundle, devices = self._bundle, len(slots) * self._devices
        several = "an actor" if devices == 1 else f"{devices} actors, each"
        name = f"{several} with {', '.join(f'{value:g} {name}' for name, value in bundle.items())}"
        # Devices of one array exchange gradients at each step: on one node if there is one that has them all.
        place = placement_group([bundle] * devices, strategy="STRICT_PACK" if devices == 1 else "PACK")

        def start(hear: Send, ended: Ended) -> RayChild:
            made = RayChild(Actor, place, bundle, 0, hear, ended, name, partial(remove_placement_group, place))
            made.send({"task": {"threads": int(bundle["CPU"])}}, self._task)
            return made

        return self.started(start)

    def serve(self, stream: Stream, consumers: Sequence[str], on_dropped: Callable[[str, str], None]) -> RayServer:
        """See `Site`: through the object store."""
        return RayServer(stream, consumers, on_dropped)

    def close(self) -> None:
        """See `Site`."""
        import ray

        super().close()
        if self._own:
            ray.shutdown()


def _within(name: str, count: int | None) -> None:
    if count is not None and count > MOST:
        raise WorkerError(
            "more than a cluster has", where=name, got=count, accepted=f"1 to {MOST}", remedy=f"lower {name}"
        )


def _is_resource(given: tuple[object, object]) -> bool:
    name, value = given
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return isinstance(name, str) and name not in ("", "CPU", "GPU") and number


def _is_head() -> bool:
    """Whether this process has started the cluster, rather than found one."""
    from ray._private import worker

    node = getattr(worker, "_global_node", None)  # Ray has no public name for it
    return node is not None and bool(node.is_head())


def _room(bundle: dict[str, float], devices: int) -> int:
    """How many slots of so many devices a cluster has that does not grow.

    Raises:
        WorkerError: none.
    """
    import ray

    there = ray.cluster_resources()
    found = {name: int(there.get(name, 0.0) // need) for name, need in bundle.items() if need > 0}
    name = min(found, key=found.__getitem__)
    if found[name] < devices:
        remedy = "lower devices or what an actor asks for, or give the address of a larger cluster"
        raise WorkerError("Ray on this machine has not so much", where=name, got=f"{devices * bundle[name]:g}",
                          accepted=f"up to {there.get(name, 0.0):g}", remedy=remedy)  # fmt: skip
    return found[name] // devices
