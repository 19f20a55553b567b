"""Workers that are actors of a Ray cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hfta_nb.data import Stream
from hfta_nb.errors import WorkerError
from hfta_nb.records.events import Control, Request, from_json, to_json
from hfta_nb.train import Settings
from hfta_nb.workers.crews.addresses import ACCEPTED, REMEDY, check_address
from hfta_nb.workers.crews.executor import Terms
from hfta_nb.workers.crews.processes import check_terms, on_first_device, whole
from hfta_nb.workers.crews.ray_ranks import RayRanks, of_device
from hfta_nb.workers.crews.ray_stream import RayServer
from hfta_nb.workers.crews.reports import Beat, Lost, Order, Report
from hfta_nb.workers.processes import pickling

BEAT_S = 2.0
"""An actor that has nothing to report answers after so long."""

_TOLD_CHARACTERS = 200

_STARTS = 3
"""Attempts to start Ray on this machine. Ray waits 30 seconds for its processes. Starting takes 15 seconds on two idle
cores of a slow processor and more than twice that beside other work, so that only a later attempt may succeed."""

MOST_WORKERS = 256
"""Actors that are asked for at a time where nobody says how many."""


VERSIONS = "install the versions of Python, Ray and hfta_nb of this process on all nodes, or those of the nodes here"

MOST = 10_000
"""Actors, or CPUs of one, that can be asked for."""

GROUPS = {"train": ("train",), "send": ("send",), "tell": ("where", "reports")}
"""An actor trains, takes requests and answers at the same time, and each of these in order: methods by their group."""


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


class RaySite:
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

        self.slots = slots
        self._own, self._bundle, self._devices = own, bundle, devices
        self._settings = ray.put(pickling.dumps(settings, {}))
        self._workers: list[RayWorker] = []

    def worker(self, slots: Sequence[int]) -> RayWorker:
        made = RayWorker(self._bundle, len(slots) * self._devices, int(self._bundle["CPU"]), self._settings)
        self._workers.append(made)
        return made

    def serve(self, stream: Stream, consumers: Sequence[str], on_dropped: Callable[[str, str], None]) -> RayServer:
        """See `Site`: through the object store."""
        return RayServer(stream, consumers, on_dropped)

    def wait(self, timeout_s: float) -> list[tuple[RayWorker, Report]]:
        import ray

        self._workers = [worker for worker in self._workers if not worker.gone]
        by_answer = {worker.answer: worker for worker in self._workers}
        if not by_answer:
            threading.Event().wait(timeout_s)
            return []
        answers = list(by_answer)
        come, _ = ray.wait(answers, num_returns=1, timeout=timeout_s)
        if come:
            come, _ = ray.wait(answers, num_returns=len(answers), timeout=0)
        return [(by_answer[answer], report) for answer in come for report in by_answer[answer].taken()]

    def close(self) -> None:
        import ray

        with contextlib.suppress(ray.exceptions.RaySystemError):  # the cluster is gone
            for worker in self._workers:
                worker.kill()
        if self._own:
            ray.shutdown()


class RayWorker:
    """An actor that trains arrays, in a placement group of its own.

    With several devices, the group has one for each of the actors that train an array together; see `RayRanks`.

    Args:
        bundle: the resources of a device.
        devices: how many.
        threads: of torch, for each.
        settings: of the run, in the object store.

    Attributes:
        answer: what is waited for: first that the actor is ready, then its reports.
        place: the placement group.
    """

    def __init__(self, bundle: dict[str, float], devices: int, threads: int, settings: Any) -> None:
        from ray.util.placement_group import placement_group

        self.ready, self.gone = False, False
        several = "an actor" if devices == 1 else f"{devices} actors, each"
        self.name = f"{several} with {', '.join(f'{value:g} {name}' for name, value in bundle.items())}"
        # Devices of one array exchange gradients at each step: on one node if there is one that has them all.
        self.place = placement_group([bundle] * devices, strategy="STRICT_PACK" if devices == 1 else "PACK")
        actor = of_device(Actor, self.place, bundle, 0, GROUPS)
        self.actor = actor.remote(settings, threads, self.place, bundle)
        self.answer = self.actor.where.remote()

    def train(self, order: Order) -> None:
        self.actor.train.remote(order.number, pickling.packed(order))

    def send(self, order: int, request: Request) -> None:
        self.actor.send.remote(order, to_json(request))

    def kill(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        if not self.gone:
            self.gone = True
            ray.kill(self.actor)
            remove_placement_group(self.place)

    def taken(self) -> Iterator[Report]:
        """What has come; asks for more.

        Raises:
            WorkerError: it is of another version.
        """
        import ray

        try:
            found = ray.get(self.answer)
        except ray.exceptions.RayError as error:
            with contextlib.suppress(ray.exceptions.RayError):
                self.kill()
            self.gone = True
            yield Lost(_in_words(error))
            return
        if not self.ready:
            self.name, version = found if isinstance(found, tuple) else (found, "an earlier one")
            if version != _version():
                raise WorkerError("a node of the cluster has another version of hfta_nb", where=self.name, got=version,
                                  accepted=_version(), remedy=VERSIONS)  # fmt: skip
            self.ready, found = True, []
        self.answer = self.actor.reports.remote(BEAT_S)
        yield from map(pickling.unpacked, found)
        if not found:
            yield Beat()


class Actor:
    """What runs in a process of the cluster.

    Args:
        settings: of the run, pickled.
        threads: of torch.
        place: its placement group.
        bundle: the resources of a device, of which this actor has the first in the group.
    """

    def __init__(self, settings: bytes, threads: int, place: Any, bundle: dict[str, float]) -> None:
        self._threads, self._place, self._bundle = threads, place, bundle
        self._settings = pickling.loads(settings)[0]
        self._reports: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._controls: dict[int, Control] = {}
        self._lock = threading.Lock()

    def where(self) -> tuple[str, str]:
        """The actor in words, and its version of hfta_nb; answers once it is ready."""
        import os

        import ray

        return f"Ray actor {os.getpid()} on {ray.util.get_node_ip_address()}", _version()

    def train(self, number: int, order: bytes) -> None:
        """Train an order."""
        import torch

        from hfta_nb.workers.crews.task import perform

        torch.set_num_threads(self._threads)
        try:
            perform(self._settings, pickling.unpacked(order), self._control(number), self._tell, self._start)
        except BaseException as error:  # else nobody would hear of it
            self._tell(Lost(_in_words(error)))

    def _start(self, size: int, device: torch.device) -> RayRanks:
        """The actors of an array's other devices."""
        return RayRanks(self._place, self._bundle, self._threads, size, device)

    def send(self, number: int, request: dict[str, Any]) -> None:
        """Pass a request on."""
        self._control(number).post(from_json(request))  # type: ignore[arg-type]

    def reports(self, timeout_s: float) -> list[bytes]:
        """Reports, pickled; waits for the first one."""
        found = []
        with contextlib.suppress(queue.Empty):
            found.append(self._reports.get(timeout=timeout_s))
            while not self._reports.empty():
                found.append(self._reports.get())
        return found

    def _control(self, number: int) -> Control:
        """The mailbox of an order; a request may come before its order begins."""
        with self._lock:
            return self._controls.setdefault(number, Control())

    def _tell(self, report: Report) -> None:
        self._reports.put(pickling.packed(report))


def _version() -> str:
    """Of hfta_nb in this process."""
    return str(sys.modules["hfta_nb"].__version__)


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


def _in_words(error: BaseException) -> str:
    """The error's own words, without colours; of many the last ones, as Ray puts the cause at the end."""
    text = " ".join(re.sub(r"\x1b\[[\d;]*m", "", str(error)).split())
    if len(text) > 2 * _TOLD_CHARACTERS:
        text = f"{text[:_TOLD_CHARACTERS]} ... {text[-_TOLD_CHARACTERS:]}"
    return f"died ({type(error).__name__}: {text})"
