"""Pools of Ray actors, on a small cluster of this machine."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import queue
import random
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hfta_nb as hfta
from hfta_nb import data
from hfta_nb import events as ev
from hfta_nb.data import serving
from hfta_nb.errors import WorkerError
from hfta_nb.workers.pools import OnRay, Terms, on_ray
from hfta_nb.workers.pools.addresses import check_address
from hfta_nb.workers.pools.ray_child import RayChild, in_words
from hfta_nb.workers.pools.ray_stream import RayServer
from hfta_nb.workers.pools.site import ChildSite
from tests.call_log import instances
from tests.core.test_serving import plain as plain
from tests.core.test_serving import read
from tests.core.test_shared_streams import Noisy, assert_same
from tests.core.test_stream_workers import same as same_batches
from tests.executors.test_pool_streams import starts, two
from tests.executors.test_pools import make, same
from tests.fleet.test_devices_of_a_study import Unlucky, equal
from tests.fleet.test_devices_of_a_study import data as devices_data
from tests.fleet.test_devices_of_a_study import one as one
from tests.fleet.test_devices_of_a_study import study as several
from tests.polling import descendants, eventually

if importlib.util.find_spec("ray") is None:  # importing it would take each process that collects seconds
    pytest.skip("Ray is not installed", allow_module_level=True)
OFTEN = Terms(checkpoint_every_s=0.0, restarts=20)
DIES = ["rank 0", "rank 1"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Ray with two CPUs and a small object store."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_TQDM_PATCH_PRINT", "0")  # it would put its own print in place of the builtin
        patch.setenv("RAY_AUTH_MODE", "disabled")  # it would write a token into the home
        patch.setenv("RAY_raylet_start_wait_time_s", "60")  # else 15, which a busy machine may not keep
        patch.setenv("RAY_worker_niceness", "0")  # else 15: beside other tests, actors would hardly run
        import ray

        for tries_left in reversed(range(6)):
            try:
                ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False, log_to_driver=False)
                break
            except Exception:  # Ray waits 30 seconds for one of its processes, which a cold disk may not keep
                ray.shutdown()
                gc.collect()  # of its processes, which would warn in another test
                if not tries_left:
                    raise
        yield ray
        ray.shutdown()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[RayChild]:
    """All actors that are asked for."""
    return instances(RayChild, monkeypatch)


def killed(study: hfta.Study, workers: list[RayChild], kills: int, chance: float) -> list[ev.Event]:
    """The events of a run in which actors are killed at random moments."""
    random_, found, left = random.Random(1), [], kills
    for event in study.run(executor=OnRay(terms=OFTEN)):
        found.append(event)
        if left and isinstance(event, ev.EpochDone) and random_.random() < chance:
            there = [w for w in workers if w.ready and w.alive]
            os.kill(int(random_.choice(there).name.split()[2]), 9)
            left -= 1
    assert left == 0
    return found


def nothing_left_behind(cluster: Any, workers: list[RayChild], strategy: str = "STRICT_PACK") -> None:
    """A run leaves the cluster that was there before it, and nothing of its own."""
    assert not any(worker.alive for worker in workers)
    assert cluster.is_initialized()  # it was there before the run
    places = [cluster.util.placement_group_table(worker.place) for worker in workers]
    assert {place["strategy"] for place in places} == {strategy}
    assert {place["state"] for place in places} == {"REMOVED"}
    eventually(lambda: not descendants("RayRank"), "actors of other devices to end")


@pytest.mark.long
def test_an_actor_that_is_killed_changes_nothing(tmp_path: Path, cluster: Any, workers: list[RayChild]) -> None:
    grid = {"width": [4], "lr": [1e-3, 1e-2]}  # they train for a second, so that one is killed at work
    plain, study = (make(tmp_path / name, 400, grid) for name in ("plain", "killed"))
    list(plain.run())
    events = killed(study, workers, 1, 1.0)
    again = [e for e in events if isinstance(e, ev.PhaseChanged) and e.phase == "starting again"]
    assert len(again) == 1
    assert "ActorDiedError" in again[0].detail
    same(study, plain)
    same(hfta.Study.load(tmp_path / "killed"), plain)
    nothing_left_behind(cluster, workers)


@pytest.mark.long
def test_actors_that_are_killed_change_nothing(tmp_path: Path, cluster: Any, workers: list[RayChild]) -> None:
    """Three groups on two CPUs: an actor is asked for per group, and those that are there train all."""
    plain, study = (make(tmp_path / name, 400) for name in ("plain", "killed"))
    list(plain.run())
    events = killed(study, workers, 1, 0.4)
    again = [e for e in events if isinstance(e, ev.PhaseChanged) and e.phase == "starting again"]
    assert len(again) == 1
    assert all("ActorDiedError" in e.detail for e in again)
    same(study, plain)
    same(hfta.Study.load(tmp_path / "killed"), plain)
    nothing_left_behind(cluster, workers)


@pytest.mark.long
def test_twenty_kills(tmp_path: Path, cluster: Any, workers: list[RayChild]) -> None:
    plain = make(tmp_path / "plain", 40)
    list(plain.run())
    study = make(tmp_path / "killed", 40)
    killed(study, workers, 20, 0.3)
    same(study, plain)


def devices_die(made: hfta.Study, executor: OnRay, dies: str, workers: list[RayChild]) -> list[ev.Event]:
    """The events of a run in which one of an array's devices is killed after the first epoch."""
    events, left = [], dies != "nobody"
    for event in made.run(executor=executor):
        events.append(event)
        if left and isinstance(event, ev.EpochDone):
            left = False
            other = descendants("RayRank")
            assert len(other) == 1
            os.kill(other[0].pid if dies == "rank 1" else int(workers[0].name.split()[2]), 9)
    assert not left
    return events


@pytest.mark.long
@pytest.mark.parametrize("dies", ["nobody", *DIES])
def test_several_actors_train_one_array(
    tmp_path: Path, one: hfta.Study, cluster: Any, workers: list[RayChild], dies: str
) -> None:
    """It comes to what one device comes to, whoever dies."""
    made = several(tmp_path, 1)
    terms = Terms(rates={"array 0": [10.0, 19.0]}, paradigm="global", most=2, checkpoint_every_s=0.0)
    events = devices_die(made, OnRay(terms=terms), dies, workers)
    assert starts(events)[0].startswith("on 2 devices of Ray actor ")
    again = [e.detail for e in events if isinstance(e, ev.PhaseChanged) and e.phase == "starting again"]
    assert len(again) == (dies != "nobody")
    if again:
        lost = "lost one of its devices (rank 1 " if dies == "rank 1" else "ActorDiedError"
        assert lost in again[0]
        assert "going on from its last checkpoint" in again[0]
    equal(made, one)
    nothing_left_behind(cluster, workers, "PACK")


@pytest.mark.long
def test_an_actor_has_the_devices_of_a_study(
    tmp_path: Path, one: hfta.Study, cluster: Any, workers: list[RayChild]
) -> None:
    made = several(tmp_path, 2)
    assert starts(list(made.run(executor="ray")))[0].startswith("on 2 devices of Ray actor ")
    equal(made, one)


@pytest.mark.long
def test_its_address_is_that_of_ray(cluster: Any) -> None:
    check_address(cluster.get_runtime_context().gcs_address)


@pytest.mark.parametrize("fails", [2, 3])
def test_ray_is_started_again_where_its_processes_are_late(fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def init(address: str | None, **_: Any) -> None:
        calls.append("init")
        if calls.count("init") <= fails:
            raise RuntimeError("the current node timed out during startup")

    ray = types.SimpleNamespace(init=init, shutdown=lambda: calls.append("shutdown"))
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(WorkerError, match="timed out during startup") if fails == 3 else contextlib.nullcontext():
        on_ray._connect(None)
    assert calls == (["init", "shutdown"] * 3)[: 2 * fails] + ["init"] * (fails < 3)


def test_a_cluster_elsewhere_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str | None] = []

    def init(address: str | None, **_: Any) -> None:
        calls.append(address)
        raise ConnectionError("refused")

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(init=init, shutdown=lambda: None))
    with pytest.raises(WorkerError, match="Ray can't be reached"):
        on_ray._connect("ray://head:10001")
    assert calls == ["ray://head:10001"]


def test_what_an_actor_died_of_is_told_without_what_is_around() -> None:
    trace = "\x1b[36mray::Actor.__init__()\x1b[39m (pid=1)" + "\n  File ^^^^" * 200 + "\nTypeError: no such argument"
    told = in_words(RuntimeError(trace))
    assert told.startswith("died (RuntimeError: ray::Actor.__init__() (pid=1) File")
    assert told.endswith("TypeError: no such argument)")
    assert len(told) < 500


@pytest.mark.long
def test_more_than_this_machine_has_is_refused(cluster: Any) -> None:
    """Ray would wait without end."""
    assert on_ray._is_head()
    assert on_ray._room({"CPU": 1.0}, 1) == 2
    assert on_ray._room({"CPU": 1.0}, 2) == 1
    with pytest.raises(WorkerError, match="CPU: Ray on this machine has not so much; got '3'; accepted: up to 2"):
        on_ray._room({"CPU": 1.0}, 3)
    with pytest.raises(WorkerError, match="GPU: Ray on this machine has not so much"):
        on_ray._room({"CPU": 1.0, "GPU": 1.0}, 1)


@pytest.mark.long
def test_an_error_of_another_actor_is_told(tmp_path: Path, cluster: Any) -> None:
    study = hfta.Study(Unlucky, {"lr": [0.1]}, devices_data(), devices=2, epochs=1, device="cpu", directory=tmp_path)
    events = list(study.run(executor=OnRay(terms=Terms(restarts=0))))
    [reason] = {e.reason for e in events if isinstance(e, ev.MemberChanged) and e.state == ev.FAILED}
    assert "rank 1 MemberError" in reason
    assert "no luck on this rank" in reason


@pytest.mark.long
def test_another_cluster_than_that_of_this_process_is_refused(tmp_path: Path, cluster: Any) -> None:
    study = make(tmp_path, 1)
    with pytest.raises(WorkerError, match="connected to another Ray cluster"):
        study.run(executor="ray", address="ray://elsewhere:10001")
    assert not study.store.exists


@pytest.mark.long
def test_requests_reach_actors(tmp_path: Path, cluster: Any) -> None:
    study = make(tmp_path, 100_000)
    control = hfta.Control()
    for event in study.run(control, executor="ray", workers=1):
        if isinstance(event, ev.MemberChanged) and event.state == ev.RUNNING:
            control.stop(5)
        if isinstance(event, ev.MemberChanged) and event.variant == 5 and event.state == ev.STOPPED:
            control.stop()
    assert study.history.members[5].reason == "stopped by request"
    assert study.history.state == ev.STOPPED
    assert study.store.has_checkpoint


@pytest.mark.long
@pytest.mark.parametrize("dies", ["nobody", "an actor", "the stream"])
def test_actors_read_one_stream(
    tmp_path: Path, cluster: Any, workers: list[RayChild], monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    """Whoever dies, the others go on, and the results are those of streams of one's own."""
    servers: list[RayServer] = []
    monkeypatch.setattr(on_ray, "RayServer", lambda *given: servers.append(RayServer(*given)) or servers[-1])
    made, alone = two(Noisy(), tmp_path / "made"), two(Noisy(), tmp_path / "alone", share_stream=False)
    list(alone.run())
    events, killed = [], dies == "nobody"
    for event in made.run(executor=OnRay(terms=OFTEN)):
        if isinstance(event, ev.EpochDone) and not killed:
            killed = True
            if dies == "the stream":
                cluster.kill(servers[0].actor)
            else:
                os.kill(int(next(w for w in workers if w.ready).name.split()[2]), 9)
        events.append(event)
    assert [text.endswith(", reading the same batches as others") for text in starts(events)[:2]] == [True, True]
    assert len(servers) == 1 or dies == "the stream"  # both begin again, perhaps together
    assert_same(made, alone)


@pytest.mark.long
def test_a_slow_actor_is_told_of(cluster: Any, monkeypatch: pytest.MonkeyPatch, plain: data.Stream) -> None:
    monkeypatch.setattr(serving, "PATIENCE_S", 0.1)
    told: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    server = RayServer(plain, ["a", "slow", "gone"], lambda *given: told.put(given))
    try:
        server.leave("gone")
        assert same_batches(read(server.consumer("a")), read(plain))
        assert {told.get(timeout=60), told.get(timeout=60)} == {
            ("gone", serving.LEFT),
            ("slow", serving.ABSENT),
        }
    finally:
        server.close()


def test_a_node_of_another_version_is_told() -> None:
    site = ChildSite(1)
    worker = site.started(lambda hear, ended: types.SimpleNamespace(name="Ray actor 1 on here"))
    worker._hear({"ready": worker.name, "version": "0.0.1"}, b"")
    with pytest.raises(WorkerError, match=r"another version of hfta_nb.*accepted: 0\..*install"):
        site.wait(1.0)


SCRIPT = """
import sys
import torch
import hfta_nb as hfta

class Net(torch.nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 3))
    def forward(self, x):
        return self.layers(x)

def worst(output, target):
    return torch.nn.functional.cross_entropy(output, target)

study = hfta.Study(Net, {"lr": [0.1, 0.2]}, "iris", loss=worst, epochs=1, device="cpu", directory=sys.argv[1])
print(list(study.fit(progress=False, executor="ray", address=sys.argv[2], workers=1)["state"]))
"""


@pytest.mark.long
def test_what_is_defined_in_a_script_is_sent(tmp_path: Path, cluster: Any) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    address = cluster.get_runtime_context().gcs_address
    command = [sys.executable, str(file), str(tmp_path / "run"), address]
    package = {**os.environ, "PYTHONPATH": str(Path(hfta.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=package, timeout=300)
    assert "['COMPLETE', 'COMPLETE']" in done.stdout, done.stderr


@pytest.mark.long
def test_the_object_store_is_empty_after_many_runs(tmp_path: Path, cluster: Any) -> None:
    used = []
    for number in range(6):
        study = hfta.Study(
            "mlp", {"lr": [0.1]}, devices_data(), epochs=1, device="cpu", directory=tmp_path / f"{number}"
        )
        list(study.run(executor="ray", workers=1))
        gc.collect()
        used.append(
            cluster.cluster_resources()["object_store_memory"] - cluster.available_resources()["object_store_memory"]
        )
    assert max(used) < 10_000_000, used
