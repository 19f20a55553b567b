"""One stream for several processes: each batch made once, slow and dead consumers dropped, nobody else disturbed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import hfta_nb as hfta
from hfta_nb import data
from hfta_nb.data import Demand, StreamServer, serving
from hfta_nb.errors import DataError
from tests.core.test_shared_streams import HELD, STREAMS, curves, study
from tests.core.test_stream_workers import Drawing, Fatal, same, stream
from tests.polling import eventually

LONG_S = 120.0


def read(consumer: data.Stream, passes: int = 2) -> list[Any]:
    return [b for epoch in range(passes) for b in consumer.training.batches(16, 3, epoch)]


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """What each gives, all of them at the same time."""
    found: dict[int, Any] = {}

    def run(number: int) -> None:
        found[number] = works[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    return [found[number] for number in range(len(works))]


@pytest.fixture
def plain() -> data.Stream:
    return stream(Drawing())


def test_all_consumers_get_the_batches_of_the_stream_and_each_is_made_once(plain: data.Stream) -> None:
    alone = read(plain)
    with StreamServer(plain, ["a", "b", "c"], demand=Demand(most=1)) as server:
        consumers = [pickle.loads(pickle.dumps(server.consumer(name))) for name in "abc"]  # noqa: S301 - as for a process
        found = in_threads(*(lambda s=s: read(s) for s in consumers))
        assert all(same(one, alone) for one in found)
        assert server.workers.made == len(alone)
        assert server.dropped == {}
        held = list(consumers[0].validation.batches(8, 0, 0))
        assert same(held, list(plain.validation.batches(8, 0, 0)))


def test_a_fast_consumer_waits_for_the_slowest(plain: data.Stream) -> None:
    with StreamServer(plain, ["fast", "slow"], window=1, patience_s=LONG_S, demand=Demand(most=1)) as server:
        got: list[Any] = []
        fast = threading.Thread(target=lambda: got.extend(read(server.consumer("fast"), 1)), daemon=True)
        with closing(server.consumer("slow").training.batches(16, 3, 0)) as slow:
            fast.start()
            for number in range(3):
                next(slow)
                assert len(got) <= number + 2
                assert len(server._entries) <= server.window + server.workers.ahead + 1
            rest = list(slow)
            fast.join(LONG_S)
        assert len(rest) == 1
        assert server.dropped == {}


def test_a_slow_consumer_is_dropped_and_goes_on_by_itself(plain: data.Stream) -> None:
    told: list[tuple[str, str]] = []
    how: dict[str, Any] = {"window": 1, "patience_s": 0.05, "demand": Demand(most=1)}
    with StreamServer(plain, ["a", "slow"], on_dropped=lambda *given: told.append(given), **how) as server:
        slow = server.consumer("slow").training.batches(16, 3, 0)
        first = threading.Thread(target=lambda: found.append(next(slow)))
        found: list[Any] = []
        first.start()
        assert same(read(server.consumer("a")), read(plain))  # it does nothing meanwhile
        first.join(LONG_S)
        assert told == [("slow", "others waited 0.05 s for it")]
        found += list(slow)
        assert same(found, read(plain, 1))


def test_a_consumer_that_never_comes_is_dropped(plain: data.Stream) -> None:
    with StreamServer(plain, ["a", "absent"], patience_s=0.05, demand=Demand(most=1)) as server:
        assert same(read(server.consumer("a"), 1), read(plain, 1))
        assert server.dropped == {"absent": serving.ABSENT}


def test_a_killed_consumer_is_dropped_and_holds_nothing_back(plain: data.Stream) -> None:
    context = multiprocessing.get_context("fork")
    with StreamServer(plain, ["a", "b"], window=1, patience_s=LONG_S, demand=Demand(most=1)) as server:
        consumer = server.consumer("b")

        def die() -> None:
            batches = consumer.training.batches(16, 3, 0)
            next(batches)
            os.kill(os.getpid(), signal.SIGKILL)

        process = context.Process(target=die)
        process.start()
        assert same(read(server.consumer("a")), read(plain))
        process.join()
        assert server.dropped == {"b": "it left"}
        eventually(lambda: not server._entries, "the last batch to be given back")
        again = server.consumer("b")  # resumed, it gets what it asks for
        assert same(list(again.training.batches(16, 3, 1, skip=2)), list(plain.training.batches(16, 3, 1, skip=2)))


def test_a_killed_worker_is_replaced(plain: data.Stream) -> None:
    with StreamServer(plain, ["a", "b"], demand=Demand(most=1)) as server:

        def killing(name: str) -> list[Any]:
            found = []
            for number, batch in enumerate(server.consumer(name).training.batches(8, 3, 0)):
                found.append(batch)
                if name == "a" and number % 3 == 0:
                    for pid in server.workers.processes:
                        os.kill(pid, signal.SIGKILL)
            return found

        found = in_threads(lambda: killing("a"), lambda: killing("b"))
        alone = list(plain.training.batches(8, 3, 0))
        assert same(found[0], alone)
        assert same(found[1], alone)
        assert server.workers.replaced >= 1


def test_errors_reach_every_consumer_and_so_does_the_end_of_the_server() -> None:
    with StreamServer(stream(Fatal("raises")), ["a", "b"], demand=Demand(most=1)) as server:

        def raised(name: str) -> str:
            with pytest.raises(DataError) as error:
                read(server.consumer(name))
            return str(error.value)

        assert all("sample 7 is broken" in words for words in in_threads(lambda: raised("a"), lambda: raised("b")))
        left = server.consumer("a")
    with pytest.raises(DataError, match="the server of the stream has ended"):
        read(left)
    assert not server.workers.folder.exists()


def test_only_map_style_datasets_can_be_served() -> None:
    with pytest.raises(DataError, match=r"can't be served.*map-style"):
        StreamServer(data.from_batches(lambda: [HELD], HELD), ["a"])


def test_studies_in_several_processes_train_on_one_stream(tmp_path: Path) -> None:
    given = STREAMS["dataset"]()
    whole = study(given, tmp_path / "whole", share_stream=False, epochs=2)
    list(whole.run())
    context = multiprocessing.get_context("fork")

    def train(name: str, consumer: data.Stream, width: int) -> None:
        torch.set_num_threads(1)
        grid = {"width": [width], "seed": [0, 1]}
        how = {"lr": 0.01, "dropout": 0.1, "batch_size": 16, "device": "cpu", "deterministic": True, "epochs": 2}
        list(hfta.Study("mlp", grid, consumer, directory=tmp_path / name, **how).run())

    with StreamServer(given, ["4", "5"], demand=Demand(most=1)) as server:
        processes = [context.Process(target=train, args=(n, server.consumer(n), int(n))) for n in ("4", "5")]
        for process in processes:
            process.start()
        for process in processes:
            process.join(LONG_S)
        assert [p.exitcode for p in processes] == [0, 0]
        batches = 3 + 2  # of a pass, and of its validation
        assert server.workers.made == 2 * batches
    expected = curves(whole)
    for number, name in enumerate(("4", "5")):
        found = hfta.Study.load(tmp_path / name, data=given)
        assert curves(found) == {m: expected[2 * number + m] for m in (0, 1)}
