"""A worker process of a crew: trains one order at a time; ``python -m hfta_nb.workers.crews.child_main PID``.

Orders and requests come on standard input, reports leave on the original standard output. The process lives as long as
its standard input is open, as a worker of `hfta_nb.study.executors` does.
"""

from __future__ import annotations

import queue
import sys
import threading
from typing import Any, NoReturn

from hfta_nb.records.events import Control, from_json
from hfta_nb.workers.processes import frames
from hfta_nb.workers.processes.inside import begin, listen

BEAT_S = 2.0
UNSENT = 1000
"""Reports that may wait for the crew before training waits."""


def main(parent: int) -> NoReturn:
    """Train orders until standard input ends.

    Args:
        parent: id of the process that started this one.
    """
    inbox, outbox = begin()
    orders: queue.SimpleQueue[tuple[frames.Message, bytes]] = queue.SimpleQueue()
    controls: dict[int, Control] = {}

    def take(message: frames.Message, blob: bytes) -> None:
        if "request" not in message:
            if "order" in message:
                controls[message["order"]] = Control()
            orders.put((message, blob))
        elif (control := controls.get(message["order"])) is not None:  # else it is done
            control.post(from_json(message["request"]))  # type: ignore[arg-type]

    sender = frames.Sender(outbox, "hfta_nb sender", UNSENT)
    listen(inbox, parent, take)
    threading.Thread(target=_beat, args=(sender,), daemon=True).start()
    settings: Any = None
    while True:
        message, blob = orders.get()
        if "settings" in message:
            settings = _settings(message, blob)
        else:
            _train(settings, controls[message["order"]], sender, blob)
            del controls[message["order"]]


def _settings(message: frames.Message, blob: bytes) -> Any:
    sys.path[:] = message["path"]
    import torch

    from hfta_nb.workers.processes.pickling import loads

    torch.set_num_threads(message["threads"])
    return loads(blob)[0]


def _train(settings: Any, control: Control, sender: frames.Sender, blob: bytes) -> None:
    from hfta_nb.workers.crews.task import perform
    from hfta_nb.workers.processes.pickling import packed, unpacked

    perform(settings, unpacked(blob), control, lambda report: sender.put({}, packed(report)))


def _beat(sender: frames.Sender) -> None:
    """Say every few seconds that the process is there."""
    never = threading.Event()
    while not never.wait(BEAT_S):
        sender.put({"beat": True})
