"""Workers that are processes of this machine, one per device."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from hfta_nb.data import Stream, StreamServer, serving
from hfta_nb.errors import WorkerError
from hfta_nb.train import Settings
from hfta_nb.workers.pools.executor import Terms
from hfta_nb.workers.pools.site import ChildSite, ChildWorker
from hfta_nb.workers.pools.task import Training
from hfta_nb.workers.processes import cores, pickling
from hfta_nb.workers.processes.child import Send, packed, surroundings
from hfta_nb.workers.processes.child_process import ChildProcess, Ended


@dataclass(frozen=True)
class Processes:
    """Trains groups in worker processes of this machine, one per device.

    Each worker has the whole data set in its memory. On a CPU the threads that torch may use are divided between the
    workers.

    Args:
        workers: number of processes; by default one per GPU, on a CPU one per thread that torch may use. There are
            never more than groups can use. A group to which the plan gives several devices (see `Terms.most`) trains
            data-parallel in as many processes of these.
        threads: of each process, for torch on a CPU; by default a fair share.
        terms: how groups are given to workers.

    Raises:
        WorkerError: a number is not a whole number from 1, or the terms are none.

    Example:
        >>> Processes(workers=2).workers
        2
    """

    workers: int | None = None
    threads: int | None = None
    terms: Terms = field(default_factory=Terms)

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            whole(name, getattr(self, name))
        if self.threads is not None and self.threads > cores.MOST_THREADS:
            accepted = f"1 to {cores.MOST_THREADS}"
            raise WorkerError("more threads than any machine has", where="threads", got=self.threads, accepted=accepted)
        check_terms(self.terms)

    def reach(self, devices: int = 1) -> None:
        """See `Executor`.

        Raises:
            WorkerError: these are more processes than this machine has cores or GPUs.
        """
        gpus = len(_gpus())
        cores.check_processes("devices", devices, gpus)
        what = "workers" if devices == 1 else f"workers of {devices} devices"
        cores.check_processes(what, (self.workers or 1) * devices, gpus)

    def open(self, settings: Settings, groups: int, devices: int = 1) -> ProcessSite:
        """See `Executor`; with several devices to a slot, `workers` are the slots.

        Raises:
            WorkerError: there are fewer GPUs than a slot has.
        """
        gpus = _gpus() if settings.device.type == "cuda" else []
        if 0 < len(gpus) < devices:
            raise WorkerError("not so many GPUs", where="devices", got=devices, accepted=f"1 to {len(gpus)}")
        total = cores.threads()
        workers = self.workers or max(1, (len(gpus) or total) // devices)
        workers = min(max(1, groups) * self.terms.most, workers)
        threads = self.threads or max(1, total // (workers * devices))
        return ProcessSite(on_first_device(settings), workers, threads, gpus, devices)


class ProcessSite(ChildSite):
    """The processes of one run.

    Args:
        settings: of the run, with the device as a worker sees it.
        slots: the most processes at a time.
        threads: of torch in each, for each of its devices.
        gpus: what ``CUDA_VISIBLE_DEVICES`` calls them; they are given to the slots in turn, and again from the first.
        devices: of a slot.
    """

    def __init__(self, settings: Settings, slots: int, threads: int, gpus: list[str], devices: int = 1) -> None:
        super().__init__(slots)
        self._threads, self._gpus, self._devices = threads, gpus, devices
        self._settings = pickling.dumps(settings, {})

    def worker(self, slots: Sequence[int]) -> ChildWorker:
        """See `Site`.

        Raises:
            WorkerError: these slots have a GPU twice.
        """
        places = [slot * self._devices + i for slot in slots for i in range(self._devices)]
        threads = self._threads * len(places)
        own = cores.environment() | dict.fromkeys(cores.COUNTS, str(threads))
        if self._gpus:
            gpus = [self._gpus[place % len(self._gpus)] for place in places]
            if len(set(gpus)) < len(gpus):
                raise WorkerError("not so many GPUs for one array", where="devices", got=len(gpus),
                                  accepted=f"1 to {len(self._gpus)}", remedy="lower `workers`")  # fmt: skip
            own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)

        def start(hear: Send, ended: Ended) -> ChildProcess:
            made = ChildProcess("arrays", own, hear, ended)
            made.send({"task": surroundings(threads)}, packed(Training, self._settings))
            return made

        return self.started(start)

    def serve(self, stream: Stream, consumers: Sequence[str], on_dropped: Callable[[str, str], None]) -> StreamServer:
        """See `Site`: through shared memory."""
        return StreamServer(stream, consumers, on_dropped=on_dropped, patience_s=serving.PATIENCE_S)


def whole(name: str, value: object) -> None:
    """Check a number of things.

    Raises:
        WorkerError: it is neither None nor a whole number from 1.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise WorkerError("not a positive whole number", where=name, got=value, accepted="1, 2, 3, ... or None")


def check_terms(terms: object) -> None:
    """Check the terms of an executor.

    Raises:
        WorkerError: they are none.
    """
    if not isinstance(terms, Terms):
        raise WorkerError("not terms", where="terms", got=terms, accepted="Terms(...)")


def on_first_device(settings: Settings) -> Settings:
    """The settings of a worker that sees no GPU but its own."""
    if settings.device.type != "cuda":
        return settings
    first = torch.device("cuda", 0)
    return replace(settings, device=first, precision=replace(settings.precision, device=first))


def _gpus() -> list[str]:
    """What ``CUDA_VISIBLE_DEVICES`` calls the GPUs that this process sees."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named or [str(i) for i in range(torch.cuda.device_count())]
