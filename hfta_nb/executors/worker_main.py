"""The worker process: jobs and requests in on standard input, events out on standard output.

Ends when its standard input closes, so that neither a restart nor a kill of the kernel leaves an orphan. Ignores
interrupts: an interrupt of the kernel goes to the whole process group and must not kill the run.
"""

from __future__ import annotations

import io
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from typing import Any, BinaryIO

from hfta_nb import events as ev
from hfta_nb.events import Control, Event, Request, from_json, to_json
from hfta_nb.executors import frames
from hfta_nb.executors.frames import Frame


class _Worker:
    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self.source, self.sink = source, sink
        self.jobs: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self.controls: dict[int, Control] = {}
        self.lock = threading.Lock()

    def serve(self) -> None:
        threading.Thread(target=self._read, name="requests", daemon=True).start()
        self._prepare()
        self._send(Frame(frames.READY, 0))
        while True:
            frame = self.jobs.get()
            reason = self._perform(frame)
            self.controls.pop(frame.job, None)
            self._send(Frame(frames.END, frame.job, reason.encode()))

    def _prepare(self) -> None:
        import torch

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        import hfta_nb.study  # noqa: F401  so that the first job need not wait for it

    def _read(self) -> None:
        while True:
            frame = frames.read(self.source)
            if frame is None:
                os._exit(0)  # the kernel is gone; torch may be busy for long, so do not wait for it
            if frame.kind == frames.JOB:
                self._control(frame.job)
                self.jobs.put(frame)
            elif frame.kind == frames.REQUEST:
                request = from_json(json.loads(frame.payload))
                if isinstance(request, Request):
                    self._control(frame.job).post(request)

    def _control(self, job: int) -> Control:
        return self.controls.setdefault(job, Control())

    def _perform(self, frame: Frame) -> str:
        from hfta_nb.executors.job import perform

        def deliver(event: Event) -> None:
            self._send(Frame(frames.EVENT, frame.job, json.dumps(to_json(event)).encode()))

        try:
            job = self._unpack(frame.payload)
        except Exception as error:
            reason = f"the study could not be rebuilt in the worker ({type(error).__name__}: {error})"
            deliver(ev.RunChanged(time.time(), ev.FAILED, reason, traceback.format_exc()))
            return reason
        return perform(job, self.controls[frame.job], deliver)

    def _unpack(self, payload: bytes) -> Any:
        import pickle

        path, body = pickle.loads(payload)  # noqa: S301  from the kernel that started this process
        sys.path[:] = [*path, *(p for p in sys.path if p not in path)]
        return pickle.loads(body)  # noqa: S301

    def _send(self, frame: Frame) -> None:
        with self.lock:
            frames.write(self.sink, frame)


def main() -> None:
    """Serve until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = os.fdopen(os.dup(0), "rb"), io.FileIO(os.dup(1), "wb")
    # What the family's own code prints must not get into the protocol, nor may it read from it.
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        _Worker(source, sink).serve()
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
