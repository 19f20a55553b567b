"""Studies without training, for tests of executors."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy

from hfta_nb import events as ev
from hfta_nb.records.events import Control, Event, VariantRecord


def started(variants: int = 2) -> ev.RunStarted:
    """A first event."""
    return ev.RunStarted(
        0.0,
        run_id="fake",
        family="fake",
        data="none",
        device="cpu",
        device_name="none",
        dtype="float32",
        epochs=3,
        threads=1,
        directory="nowhere",
        axes={"lr": tuple(float(i) for i in range(variants))},
        variants=tuple(VariantRecord(i, {"lr": float(i)}, 0) for i in range(variants)),
        metrics=("train_loss", "val_loss"),
        monitor="val_loss",
        direction="minimize",
    )


@dataclass
class Fake:
    """Behaves as its `what` says."""

    what: str = "count"
    count: int = 3
    gated: bool = False
    """Begin only when something was asked, so that nobody who listens misses the beginning."""

    def run(self, control: Control, resume: bool = False) -> Iterator[Event]:
        while self.gated and not control.wait(1):
            pass
        yield started()
        yield from getattr(self, f"_{self.what}")(control)
        yield ev.RunChanged(1.0, ev.COMPLETE, "resumed" if resume else "")

    def check_events(self, members: list[int]) -> Iterator[Event]:
        yield started()
        for member in members if self.what != "endless" else itertools.cycle(members):
            yield ev.MemberChecked(0.0, member, 1, {"train_loss": 0.0}, 1e-8, True)

    def _count(self, control: Control) -> Iterator[Event]:
        for i in range(self.count):
            yield ev.MemberImproved(float(i), i % 2, i, "val_loss", float("nan") if i == 1 else 1.0 / (i + 1))

    def _chatter(self, control: Control) -> Iterator[Event]:
        print("to standard output")
        os.write(1, b"E\x00\x00\x00 straight to the descriptor\n")
        print("x" * 200_000, file=sys.stderr, flush=True)
        yield from self._count(control)

    def _fail(self, control: Control) -> Iterator[Event]:
        yield ev.PhaseChanged(0.0, 0, "training")
        raise ValueError("this went wrong")

    def _die(self, control: Control) -> Iterator[Event]:
        yield ev.PhaseChanged(0.0, 0, "training")
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def _crash(self, control: Control) -> Iterator[Event]:
        yield ev.PhaseChanged(0.0, 0, "training")
        ctypes.string_at(0)

    def _try(self, control: Control) -> Iterator[Event]:
        """Wait for requests, crash `count` times in a trial after a checkpoint, in a folder that is set, then obey."""
        while not (asked := control.wait(1)):
            pass
        for request in asked:
            control.post(request)
        yield ev.PhaseChanged(0.0, 0, "training", str(os.getpid()))
        folder = Path(os.environ["HFTA_NB_CACHE"])
        died = len(list(folder.iterdir()))
        if died < self.count:
            yield ev.CheckpointSaved(0.0, 0, died + 1, "here")
            (folder / f"kernels-x.{os.getpid()}.trial").write_text('["aten.bmm 3", "own kernel"]')
            os.kill(os.getpid(), signal.SIGSEGV)
        yield from self._obey(control)

    def _exit(self, control: Control) -> Iterator[Event]:
        yield ev.PhaseChanged(0.0, 0, "training")
        sys.exit("enough")

    def _numpy(self, control: Control) -> Iterator[Event]:
        """An event that is not JSON."""
        yield ev.MemberImproved(0.0, 0, 1, "val_loss", numpy.float32(1))  # type: ignore[arg-type]

    def _close_output(self, control: Control) -> Iterator[Event]:
        yield ev.PhaseChanged(0.0, 0, "training")
        sys.stdout.close()
        sys.stderr.close()

    def _ask(self, control: Control) -> Iterator[Event]:
        yield ev.PhaseChanged(0.0, 0, "asking", repr(input()))

    def _tell(self, control: Control) -> Iterator[Event]:
        """Where and how it runs."""
        import torch

        found = {
            "directory": os.getcwd(),
            "torch": torch.get_num_threads(),
            "wait": os.environ["OMP_WAIT_POLICY"],
            "omp": os.environ["OMP_NUM_THREADS"],
            "python path": os.environ.get("PYTHONPATH"),
            "own": os.environ.get("OWN_VARIABLE"),
            "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "path": sys.path,
            "compiler": "torch._dynamo" in sys.modules,
            "deaf": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        }
        yield ev.PhaseChanged(0.0, 0, "telling", json.dumps(found))

    def _fork(self, control: Control) -> Iterator[Event]:
        """Die, leaving a child behind that holds all pipes."""
        child = os.fork()
        if not child:
            time.sleep(100)
        yield ev.PhaseChanged(0.0, 0, "forked", str(child))
        os._exit(9)

    def _torch(self, control: Control) -> Iterator[Event]:
        """One long call of torch."""
        import torch

        yield ev.PhaseChanged(0.0, 0, "training")
        yield ev.PhaseChanged(0.0, 0, "multiplying")
        torch.linalg.multi_dot([torch.ones(1000, 1000)] * 400)

    def _leave(self, control: Control) -> Iterator[Event]:
        yield ev.PhaseChanged(0.0, 0, "training")
        os._exit(7)

    def _obey(self, control: Control) -> Iterator[Event]:
        """Echo requests until told to stop."""
        yield ev.PhaseChanged(0.0, 0, "training", str(os.getpid()))
        while True:
            for request in control.wait(0.05):
                if isinstance(request, ev.Stop) and request.variant is None:
                    return
                if isinstance(request, ev.Stop):
                    yield ev.MemberChanged(0.0, request.variant or 0, ev.STOPPED)
                else:
                    paused = isinstance(request, ev.Pause)
                    yield ev.RunChanged(0.0, ev.PAUSED if paused else ev.RUNNING)
            yield ev.Heartbeat(time.time())

    def _spin(self, control: Control) -> Iterator[Event]:
        """Never looks at anything."""
        yield ev.PhaseChanged(0.0, 0, "training", str(os.getpid()))
        while True:
            sum(range(1000))
