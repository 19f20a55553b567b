"""A worker process of a crew: trains one order at a time; ``python -m hfta_nb.crews.child_main PID``.

Orders and requests come on standard input, reports leave on the original standard output. The process lives as long as
its standard input is open, as a worker of `hfta_nb.executors` does.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import signal
import sys
import threading
import traceback
from typing import Any, NoReturn

from hfta_nb.events import Control, from_json
from hfta_nb.processes import frames
from hfta_nb.processes.inside import parent_of, private_pipes, read

BEAT_S = 2.0
UNSENT = 1000
"""Reports that may wait for the crew before training waits."""


def main(parent: int) -> NoReturn:
    """Train orders until standard input ends.

    Args:
        parent: id of the process that started this one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt of a terminal reaches the whole process group
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    faulthandler.enable()
    inbox, outbox = private_pipes()
    orders: queue.SimpleQueue[tuple[frames.Message, bytes]] = queue.SimpleQueue()
    controls: dict[int, Control] = {}
    sender = frames.Sender(outbox, "hfta_nb sender", UNSENT)
    for target, given in ((_listen, (inbox, parent, orders, controls)), (_beat, (sender,))):
        threading.Thread(target=target, args=given, daemon=True).start()
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

    from hfta_nb.processes.pickling import loads

    torch.set_num_threads(message["threads"])
    return loads(blob)[0]


def _train(settings: Any, control: Control, sender: frames.Sender, blob: bytes) -> None:
    from hfta_nb.crews.task import perform
    from hfta_nb.processes.pickling import packed, unpacked

    perform(settings, unpacked(blob), control, lambda report: sender.put({}, packed(report)))


def _beat(sender: frames.Sender) -> None:
    """Say every few seconds that the process is there."""
    never = threading.Event()
    while not never.wait(BEAT_S):
        sender.put({"beat": True})


def _listen(
    inbox: int, parent: int, orders: queue.SimpleQueue[tuple[frames.Message, bytes]], controls: dict[int, Control]
) -> None:
    """Receive orders and requests until the sender is gone; then end the process."""
    code = 1
    try:
        alive, unpacker = parent_of(parent), frames.Unpacker()
        while data := read(inbox, alive):
            for message, blob in unpacker.feed(data):
                if "request" not in message:
                    if "order" in message:
                        controls[message["order"]] = Control()
                    orders.put((message, blob))
                elif (control := controls.get(message["order"])) is not None:  # else it is done
                    control.post(from_json(message["request"]))  # type: ignore[arg-type]
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
