"""Children that are actors of Ray; see `hfta_nb.workers.processes.child`."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from hfta_nb.workers.processes.child import Send, Serving
from hfta_nb.workers.processes.child_process import EXIT_S, Ended
from hfta_nb.workers.processes.frames import Message
from hfta_nb.workers.processes.log import Log

_TOLD_CHARACTERS = 200


class Actor:
    """What runs in a process of the cluster. Calls of its methods are what messages over pipes are to a process."""

    def __init__(self) -> None:
        import ray

        self._said: queue.SimpleQueue[tuple[Message, bytes]] = queue.SimpleQueue()
        name = f"Ray actor {os.getpid()} on {ray.util.get_node_ip_address()}"
        self._serving = Serving(lambda *said: self._said.put(said), name)
        threading.Thread(target=self._serving.run, name="hfta_nb task", daemon=True).start()

    def take(self, message: Message, blob: bytes) -> None:
        """Take a message."""
        self._serving.take(message, blob)

    def said(self) -> list[tuple[Message, bytes]]:
        """What it has to say; waits for the first message."""
        found = [self._said.get()]
        while not self._said.empty():
            found.append(self._said.get())
        return found


class RayChild:
    """An actor that does what this process sends, on one device of a placement group.

    Args:
        kind: `Actor`, or a class of it, whose name the process has.
        place: the placement group.
        bundle: the resources of a device.
        device: its number in the placement group.
        hear, ended: see `ChildProcess`.
        name: until the actor says where it is.
        release: called when it has ended.

    Attributes:
        alive: whether it has not ended.
    """

    def __init__(
        self,
        kind: type[Actor],
        place: Any,
        bundle: Mapping[str, float],
        device: int,
        hear: Send,
        ended: Ended,
        name: str = "",
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._hear, self._ended, self._release = hear, ended, release
        self.name, self.place, self.ready, self.alive, self.log = name, place, False, True, Log()
        self._actor = _placed(kind, place, bundle, device).remote()
        self._listener = threading.Thread(target=self._listen, name="hfta_nb actor", daemon=True)
        self._listener.start()

    def send(self, message: Message, blob: Any = b"") -> None:
        """Send a message; its bytes may be a reference to them in the object store."""
        self._actor.take.remote(message, blob)

    def kill(self) -> None:
        import ray

        if self.alive:
            self.alive = False
            with contextlib.suppress(ray.exceptions.RayError):  # it is gone already, or the cluster
                ray.kill(self._actor)
                self._release()

    def reap(self) -> None:
        self._listener.join(EXIT_S)

    def _listen(self) -> None:
        import ray

        words = ""
        try:
            while not words:
                for message, blob in ray.get(self._actor.said.remote()):
                    if "ready" in message:
                        self.name, self.ready = message["ready"], True
                    if "error" in message:
                        words = message["error"]
                    else:
                        self._hear(message, blob)
        except Exception as error:
            words = in_words(error)
        self.kill()
        self._ended(words, False)


def _placed(kind: type[Actor], place: Any, bundle: Mapping[str, float], device: int) -> Any:
    """The class of an actor as Ray has it, with one device of a placement group."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    # Neither method waits for the other; said here, as calls through Ray's client can't name a group.
    for method in ("take", "said"):
        ray.method(concurrency_group=method)(getattr(kind, method))
    return ray.remote(concurrency_groups={"take": 1, "said": 1})(kind).options(
        num_cpus=bundle["CPU"],
        num_gpus=bundle.get("GPU", 0),
        resources={name: value for name, value in bundle.items() if name not in ("CPU", "GPU")},
        max_restarts=0,
        scheduling_strategy=PlacementGroupSchedulingStrategy(place, placement_group_bundle_index=device),
    )


def in_words(error: BaseException) -> str:
    """The error's own words, without colours; of many the last ones, as Ray puts the cause at the end."""
    text = " ".join(re.sub(r"\x1b\[[\d;]*m", "", str(error)).split())
    if len(text) > 2 * _TOLD_CHARACTERS:
        text = f"{text[:_TOLD_CHARACTERS]} ... {text[-_TOLD_CHARACTERS:]}"
    return f"died ({type(error).__name__}: {text})"
