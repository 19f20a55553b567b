"""Workers that read one stream together: each batch is made once, and whoever is slow or dies is left out."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import hfta_nb as hfta
from hfta_nb import data
from hfta_nb import events as ev
from hfta_nb.data import serving
from hfta_nb.workers.pools import Processes, Terms, processes
from hfta_nb.workers.processes.child_process import ChildProcess
from tests.core.test_serving import plain as plain
from tests.core.test_serving import read
from tests.core.test_shared_streams import HELD, Noisy, assert_same, curves
from tests.core.test_stream_workers import same
from tests.executors.test_pool_processes import workers as workers
from tests.forked import forked as forked
from tests.polling import gone

pytestmark = pytest.mark.usefixtures("forked")
LONGEST_S = 60.0
TWO = Processes(2, threads=1, terms=Terms(checkpoint_every_s=0.0))


class Counted(Noisy):
    """Counts samples that are read by this process and those that it forks, in a table that is too large to be put
    back."""

    def __init__(self) -> None:
        super().__init__()
        self.read = torch.zeros(2**18, dtype=torch.int64).share_memory_()

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        self.read[0] += 1
        return super().__getitem__(i)


def streamed(dataset: Any) -> data.Stream:
    found = data.from_dataset(dataset, torch.utils.data.TensorDataset(*HELD), in_memory=False)
    assert isinstance(found, data.Stream)
    return found


def starts(events: list[ev.Event]) -> list[str]:
    return [e.detail for e in events if isinstance(e, ev.PhaseChanged) and e.phase == "starting"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    """Two arrays, each on a stream of its own in this process."""
    made = two(Noisy(), tmp_path_factory.mktemp("alone") / "run", share_stream=False)
    list(made.run())
    return made


def two(dataset: Any, place: Path, widths: Any = (4, 5), epochs: int = 3, **more: Any) -> hfta.Study:
    how = {"padding": "never", "lr": 0.01, "dropout": 0.1, "batch_size": 16, "device": "cpu", "deterministic": True}
    grid = {"width": list(widths), "seed": [0, 1]}
    return hfta.Study("mlp", grid, streamed(dataset), directory=place, epochs=epochs, verify="never", **how, **more)


@pytest.mark.long
def test_processes_read_one_stream(tmp_path: Path, alone: hfta.Study) -> None:
    """Each sample is read once in a pass for both, by processes that the run has forked."""
    counted = Counted()
    made = two(counted, tmp_path)
    counted.read.zero_()
    events = list(made.run(executor=TWO))
    assert counted.read[0].item() == 3 * len(counted)
    assert len(starts(events)) == 2
    assert all(text.endswith(", reading the same batches as others") for text in starts(events))
    assert_same(made, alone)


@pytest.mark.long
def test_processes_that_are_not_to_share_read_their_own(tmp_path: Path, alone: hfta.Study) -> None:
    counted = Counted()
    made = two(counted, tmp_path, share_stream=False)
    counted.read.zero_()
    events = list(made.run(executor=TWO))
    assert counted.read[0].item() == 0  # each worker has a copy
    assert not any("stream" in text for text in starts(events))
    assert_same(made, alone)


@pytest.mark.long
def test_a_consumer_that_is_killed_goes_on_alone(
    tmp_path: Path, alone: hfta.Study, workers: list[ChildProcess]
) -> None:
    made, events = two(Noisy(), tmp_path), []
    for event in made.run(executor=TWO):
        if isinstance(event, ev.EpochDone) and not any(gone(w.pid) for w in workers):
            os.kill(workers[0].pid, signal.SIGKILL)
        events.append(event)
    assert len(starts(events)) == 3
    assert "stream" not in starts(events)[-1]
    assert_same(made, alone)


@pytest.mark.long
def test_the_next_flotilla_reads_together_from_where_its_arrays_are(tmp_path: Path) -> None:
    """All of an array's members are stopped: two others are checkpointed, not at the same batch, to make room for a
    fourth."""
    terms = Terms(paradigm="global", alpha=0.9, checkpoint_every_s=0.0)
    how: dict[str, Any] = {"widths": [4, 5, 6, 7], "epochs": 30}
    made, control, events, stopped = two(Noisy(), tmp_path / "made", **how), hfta.Control(), [], set()
    for event in made.run(control, executor=Processes(3, threads=1, terms=terms)):
        if isinstance(event, ev.EpochDone) and event.epoch == 2 and not stopped:
            stopped |= set(event.variants)
            for variant in event.variants:
                control.stop(variant)
        events.append(event)
    shared = [text.endswith(", reading the same batches as others") for text in starts(events)]
    assert shared[:3] == [True] * 3
    assert sorted(shared[3:6]) == [False, True, True]  # the fourth begins where nobody is any longer
    alone = two(Noisy(), tmp_path / "alone", share_stream=False, **how)
    list(alone.run())
    assert {v: c for v, c in curves(made).items() if v not in stopped} == {
        v: c for v, c in curves(alone).items() if v not in stopped
    }


@pytest.mark.long
def test_a_pause_does_not_wait_for_those_that_read_together(tmp_path: Path, alone: hfta.Study) -> None:
    made, control, states = two(Noisy(), tmp_path), hfta.Control(), []
    for event in made.run(control, executor=TWO):
        if isinstance(event, ev.EpochDone) and not states:
            control.pause()
            states.append("asked")
        if isinstance(event, ev.RunChanged):
            states.append(event.state)
            if event.state == ev.PAUSED:
                control.resume()
    assert states == ["asked", ev.PAUSED, ev.RUNNING, ev.COMPLETE]
    assert_same(made, alone)


@pytest.mark.long
def test_a_slow_consumer_is_checkpointed_and_goes_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is halted. The other one does not wait for it, and ends before it goes on."""
    servers: list[data.StreamServer] = []

    def server(*given: Any, **more: Any) -> data.StreamServer:
        servers.append(data.StreamServer(*given, **more))
        return servers[-1]

    monkeypatch.setattr(processes, "StreamServer", server)
    made, events, pids = two(Noisy(), tmp_path / "made", epochs=60), [], {}
    for event in made.run(executor=TWO):
        events.append(event)
        if isinstance(event, ev.ArrayPlaced):
            pids[event.group] = int(event.worker.split()[1])
        if isinstance(event, ev.EpochDone) and event.group == 1 and event.epoch == 1:
            os.kill(pids[1], signal.SIGSTOP)
            servers[0].patience_s = 0.3  # before, it would be that with which a process may begin later
        if isinstance(event, ev.MemberChanged) and (event.variant, event.state) == (0, ev.COMPLETE):
            assert "leaving the round" in [e.phase for e in events if isinstance(e, ev.PhaseChanged)]
            os.kill(pids[1], signal.SIGCONT)
    waiting = [e for e in events if isinstance(e, ev.MemberChanged) and e.state == ev.WAITING]
    assert {(e.variant, e.reason) for e in waiting} == {(v, "to go on in the next round") for v in (2, 3)}
    assert [text.count("the same batches") for text in starts(events)] == [1, 1, 0]
    alone = two(Noisy(), tmp_path / "alone", epochs=60, share_stream=False)
    list(alone.run())
    assert_same(made, alone)


# The server.


def test_a_consumer_that_leaves_before_it_has_asked(plain: data.Stream) -> None:
    with data.StreamServer(plain, ["a", "b"], patience_s=LONGEST_S) as server:
        server.leave("b")
        consumer = server.consumer("a")  # kept: it leaves when it goes
        assert same(read(consumer), read(plain))
        assert server.dropped == {"b": serving.LEFT}


def test_consumers_of_a_paused_run_don_t_wait_for_each_other(plain: data.Stream) -> None:
    with data.StreamServer(plain, ["a", "b"], window=1, patience_s=LONGEST_S) as server:
        server.relax(True)
        consumer = server.consumer("a")  # kept: it leaves when it goes
        assert same(read(consumer), read(plain))
        assert server.dropped == {}


def test_a_consumer_that_goes_back_holds_nobody_back(plain: data.Stream) -> None:
    with data.StreamServer(plain, ["a", "b"], window=1, patience_s=LONGEST_S) as server:
        server.relax(True)
        read(server.consumer("b"), 1)
        again = server.consumer("b").training.batches(16, 3, 0)
        next(again)
        server.relax(False)
        consumer = server.consumer("a")  # kept: it leaves when it goes
        assert same(read(consumer), read(plain))
        assert server.dropped == {"b": serving.WENT_BACK}
        again.close()
