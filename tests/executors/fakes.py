"""Studies without training, to test what carries them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from hfta_nb import events as ev
from hfta_nb.events import Control, Event, VariantRecord


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

    def run(self, control: Control, resume: bool = False) -> Iterator[Event]:
        yield started()
        yield from getattr(self, f"_{self.what}")(control)
        yield ev.RunChanged(1.0, ev.COMPLETE, "resumed" if resume else "")

    def check_events(self, members: list[int]) -> Iterator[Event]:
        for member in members:
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
