"""Workers that are processes of this machine, one per device."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from hfta_nb.data import Stream, StreamServer, serving
from hfta_nb.errors import WorkerError
from hfta_nb.records.events import Request, to_json
from hfta_nb.train import Settings
from hfta_nb.workers.crews.executor import Terms
from hfta_nb.workers.crews.reports import Beat, Lost, Order, Report
from hfta_nb.workers.processes import cores, frames, pickling
from hfta_nb.workers.processes.ends import in_words
from hfta_nb.workers.processes.log import Log
from hfta_nb.workers.processes.spawning import pipes_of, spawn

COMMAND = (sys.executable, "-P", "-m", "hfta_nb.workers.crews.child_main")
_CHUNK_BYTES = 1 << 16
_TOLD_CHARACTERS = 500
_EXIT_S = 5.0


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
        asked = "workers" if devices == 1 else f"workers of {devices} devices"
        cores.check_processes(asked, (self.workers or 1) * devices, gpus)

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


class ProcessSite:
    """The processes of one run.

    Args:
        settings: of the run, with the device as a worker sees it.
        slots: the most processes at a time.
        threads: of torch in each, for each of its devices.
        gpus: what ``CUDA_VISIBLE_DEVICES`` calls them; they are given to the slots in turn, and again from the first.
        devices: of a slot.
    """

    elastic = False

    def __init__(self, settings: Settings, slots: int, threads: int, gpus: list[str], devices: int = 1) -> None:
        self.slots = slots
        self._threads, self._gpus, self._devices = threads, gpus, devices
        self._payload = pickling.dumps(settings, {})
        self._reports: queue.SimpleQueue[tuple[ProcessWorker, Report]] = queue.SimpleQueue()
        self._workers: list[ProcessWorker] = []

    def worker(self, slots: Sequence[int]) -> ProcessWorker:
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
        made = ProcessWorker(own, threads, self._payload, lambda w, report: self._reports.put((w, report)))
        self._workers = [*(w for w in self._workers if w.alive), made]
        return made

    def serve(self, stream: Stream, consumers: Sequence[str], on_dropped: Callable[[str, str], None]) -> StreamServer:
        """See `Site`: through shared memory."""
        return StreamServer(stream, consumers, on_dropped=on_dropped, patience_s=serving.PATIENCE_S)

    def wait(self, timeout_s: float) -> list[tuple[ProcessWorker, Report]]:
        try:
            found = [self._reports.get(timeout=timeout_s)]
        except queue.Empty:
            return []  # nothing has come in time
        while not self._reports.empty():
            found.append(self._reports.get())
        return found

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.reap()


class ProcessWorker:
    """One process.

    Args:
        own: environment variables that differ from those of this process.
        threads: of torch.
        payload: the settings, pickled.
        tell: called with each report, on a thread that reads.
    """

    ready = True  # it takes orders while it is still importing

    def __init__(
        self, own: dict[str, str], threads: int, payload: bytes, tell: Callable[[ProcessWorker, Report], None]
    ) -> None:
        self._tell, self._log = tell, Log()
        self._process = spawn(COMMAND, own)
        self.pid = self._process.pid
        self.name = f"process {self.pid}"
        to, reports, printed = pipes_of(self._process)
        self._sender = frames.Sender(to, f"hfta_nb to {self.name}")
        path = [entry for entry in sys.path if isinstance(entry, str)]
        self._sender.put({"settings": True, "threads": threads, "path": path}, payload)
        self._printed = self._thread(self._read_log, printed)
        self._thread(self._read, reports)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def train(self, order: Order) -> None:
        self._sender.put({"order": order.number}, pickling.packed(order))

    def send(self, order: int, request: Request) -> None:
        self._sender.put({"order": order, "request": to_json(request)})

    def kill(self) -> None:
        self._sender.close()
        self._process.kill()

    def reap(self) -> None:
        """Wait until the process has ended."""
        try:
            self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired as error:
            raise WorkerError("the worker process can't be ended", where=self.name) from error

    def _thread(self, target: Callable[[int], None], file: int) -> threading.Thread:
        thread = threading.Thread(target=target, args=(file,), name=f"hfta_nb {self.name}", daemon=True)
        thread.start()
        return thread

    def _read(self, file: int) -> None:
        """Deliver reports to the end of the process."""
        fault = ""
        try:
            for message, blob in frames.read(file):
                self._tell(self, Beat() if message.get("beat") else pickling.unpacked(blob))
        except Exception as error:
            fault = f"sent what can't be read ({type(error).__name__}: {error})"
            self._process.kill()
        finally:
            os.close(file)
        code = self._process.wait()
        self._sender.close()
        self._printed.join(1.0)
        said = " ".join(self._log.text.split())[-_TOLD_CHARACTERS:]
        reason = fault or in_words(code)
        self._tell(self, Lost(f"{reason}; it printed: {said}" if said else reason))

    def _read_log(self, file: int) -> None:
        try:
            while data := os.read(file, _CHUNK_BYTES):
                self._log.add(data)
        finally:
            os.close(file)


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
