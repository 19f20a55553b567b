"""Streams that several workers of a run read together: each batch is made once for all of them."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hfta_nb.data import Stream, serving
from hfta_nb.data.workers import readable
from hfta_nb.errors import DataError
from hfta_nb.train import Settings
from hfta_nb.workers.pools.executor import Server, Site
from hfta_nb.workers.pools.worker_turns import Turn


class SharedStreams:
    """The servers of streams, one for each flotilla of turns that read the same batches.

    Turns share a stream if they begin at the same time, with the same batch size and order of the data, and are
    equally far. A turn that begins alone, for example after its worker died, reads a stream of its own. So does the
    rest of a turn for which the others have waited for too long; see `hfta_nb.data.StreamServer`. One that takes too
    long to begin reads the shared stream at its own pace.

    Args:
        settings: of the run.
        site: where its workers are.
    """

    def __init__(self, settings: Settings, site: Site) -> None:
        self._settings, self._site = settings, site
        data = settings.data
        usable = settings.share_stream and isinstance(data, Stream) and readable(data) is not None
        self._stream = data if usable and isinstance(data, Stream) else None
        self._servers: dict[str, Server] = {}  # by the name of a consumer
        self._kept: dict[str, str] = {}  # names of consumers for turns that are to begin, by the turn's
        self._made = 0
        self._dropped: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    @property
    def possible(self) -> bool:
        """Whether there is something to share."""
        return self._stream is not None

    def begin(self, turns: Sequence[Turn], coming: Sequence[Turn] = ()) -> Mapping[str, Stream]:
        """The streams of turns that begin now, by name; those that read alone are left out.

        Args:
            turns: that begin.
            coming: that are to begin as soon as their workers are ready, and read with these.
        """
        stream = self._stream
        for together in [] if stream is None else self._flotillas(turns, coming):
            assert stream is not None
            self._made += 1
            names = [f"{turn.name} of flotilla {self._made}" for turn in together]
            try:
                server = self._site.serve(stream, names, lambda *report: self._dropped.put(report))
            except DataError:  # there is no room for it, say
                server = None
            if server is None:
                self._stream = None
                return {}
            for turn, name in zip(together, names, strict=True):
                self._servers[name], self._kept[turn.name] = server, name
        found: dict[str, Stream] = {}
        for turn in turns:
            turn.consumer = self._kept.pop(turn.name, "")
            if turn.consumer:
                found[turn.name] = self._servers[turn.consumer].consumer(turn.consumer)
        return found

    def _flotillas(self, turns: Sequence[Turn], coming: Sequence[Turn]) -> list[list[Turn]]:
        """Turns that are to read together, and have no stream yet; one of them at least begins."""
        fresh = [turn for turn in [*turns, *coming] if turn.name not in self._kept]
        begun = {turn.name for turn in turns}
        return [found for found in _flotillas(self._settings, fresh) if begun & {turn.name for turn in found}]

    def left(self, turn: Turn) -> None:
        """No worker has the turn any longer: nobody waits for it."""
        name, turn.consumer = turn.consumer, ""
        server = self._servers.pop(name, None)
        if server is None:
            return
        if server in self._servers.values():
            server.leave(name)
        else:
            server.close()

    def late(self) -> Iterator[tuple[str, str]]:
        """Consumers for which others have waited for too long, and the reason, each once."""
        while not self._dropped.empty():
            name, reason = self._dropped.get()
            if reason not in (serving.LEFT, serving.WENT_BACK, serving.ABSENT):
                yield name, reason

    def relax(self, on: bool) -> None:
        """Let nobody wait for others (True), as while the run is paused, or wait again."""
        for server in set(self._servers.values()):
            server.relax(on)

    def close(self) -> None:
        """End all servers."""
        servers, self._servers = set(self._servers.values()), {}
        for server in servers:
            server.close()


def _flotillas(settings: Settings, turns: Sequence[Turn]) -> Iterator[list[Turn]]:
    """Turns that can read together, two or more at a time."""
    by_batches: dict[Any, list[tuple[int, Turn]]] = {}
    for turn in turns:
        if len(turn.pending) != 1 or turn.pending[0].group.serial:
            continue
        pending = turn.pending[0]
        seeds = {settings.seed if row["data_seed"] is None else int(row["data_seed"]) for row in pending.group.rows}
        if len(seeds) == 1:
            key = int(pending.group.rows[0]["batch_size"]), seeds.pop()
            by_batches.setdefault(key, []).append((0 if pending.run is None else int(pending.run["steps"]), turn))
    for found in by_batches.values():
        found.sort(key=lambda one: one[0])
        together = [found[0]]
        for one in found[1:]:
            if one[0] - together[0][0] > serving.WINDOW:
                yield from _several(together)
                together = []
            together.append(one)
        yield from _several(together)


def _several(found: Sequence[tuple[int, Turn]]) -> Iterator[list[Turn]]:
    if len(found) > 1:
        yield [turn for _, turn in found]
