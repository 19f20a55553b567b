"""Memory: what is counted and predicted, and how arrays are divided to fit."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hfta_nb import Study, fuse
from hfta_nb import events as ev
from hfta_nb.engine.kernels.strategy import timing_cache
from hfta_nb.engine.replay import program_cache
from hfta_nb.engine.replay.storage_refs import Addresses
from hfta_nb.errors import StudyError
from hfta_nb.train import Trainer, capacity, memory
from hfta_nb.train.memory import MemoryModel, Meter, free_bytes, shown
from hfta_nb.train.plan import Group

GRID = {"lr": [1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 0.2]}
ASKED: dict[str, Any] = {"epochs": 2, "dtype": "float64", "device": "cpu"}


def curves(study: Study) -> dict[int, dict[str, list[float]]]:
    return {i: {name: c.values for name, c in m.curves.items()} for i, m in study.history.members.items()}


def test_a_model_through_two_points() -> None:
    model = MemoryModel.of_points(1, 130, 2, 160)
    assert (model.fixed_bytes, model.member_bytes) == (100, 30)
    assert [model.bytes(m) for m in (1, 2, 10)] == [130, 160, 400]
    assert [model.capacity(free) for free in (99, 129, 130, 400, 429)] == [0, 0, 1, 10, 10]
    assert model.corrected(10, 500) == MemoryModel(100, 40)
    assert MemoryModel.of_points(2, 160, 3, 190) == model
    assert MemoryModel.of_points(1, 10, 2, 30) == MemoryModel(0, 20)  # no member takes less than nothing


def test_the_meter_counts_what_lives(device: torch.device) -> None:
    meter = Meter(device)
    with meter:
        a = torch.zeros(1 << 20, device=device)
        b = a + 1
        view = b[:10]
        del b
        assert meter.held_bytes == 8 << 20
        del view
        c = torch.zeros(1 << 19, device=device)
    assert (meter.held_bytes, meter.peak_bytes) == (6 << 20, 8 << 20)
    del a
    assert meter.held_bytes == 2 << 20
    with meter:  # goes on
        d = torch.zeros(1 << 21, device=device)
    assert meter.peak_bytes == 10 << 20
    del c, d


def test_the_meter_sees_the_backward(device: torch.device) -> None:
    net = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512)).to(device)
    x = torch.zeros(2048, 512, device=device)
    meter = Meter(device)
    with meter:
        out = net(x)
        meter.see()
        forward = meter.peak_bytes
        out.sum().backward()
    assert forward >= 2 * x.nbytes
    assert meter.peak_bytes > forward
    del out
    gc.collect()
    gradients = sum(p.nbytes for p in net.parameters())
    assert gradients <= meter.held_bytes < gradients + (1 << 20)


def test_free_memory_keeps_a_margin(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_bytes(device) > 0
    if device.type == "cpu":
        monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: type("M", (), {"available": 1000})())
        assert free_bytes(device) <= 800


def test_memory_of_cuda_graphs_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [
        {"device": device, "total_size": 1000, "allocated_size": 200, "segment_pool_id": pool}
        for device, pool in [(0, (0, 0)), (0, (0, 7)), (0, (3, 0)), (1, (0, 8))]
    ]
    for name, value in {
        "mem_get_info": (10_000, 20_000), "memory_reserved": 4000, "memory_allocated": 800,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    assert free_bytes(torch.device("cuda", 0)) == int(0.9 * (10_000 + 3200 - 1600))


def test_the_limit_of_a_container(tmp_path: Path) -> None:
    assert memory._left_in_container(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    (tmp_path / "memory.stat").write_text("anon 300\ninactive_file 50\n")
    assert memory._left_in_container(tmp_path) == 650
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._left_in_container(tmp_path) is None


def test_bytes_for_people() -> None:
    assert [shown(n) for n in (0, 999, 1536, 3 << 30)] == ["0 B", "999 B", "1.5 KiB", "3 GiB"]


@pytest.mark.only(family="cnn")
@pytest.mark.parametrize(("family", "data"), [("mlp", "iris"), ("cnn", "digits")])
def test_the_prediction_is_what_is_measured(family: str, data: str, tmp_path: Path) -> None:
    """Of an array of six, from two members and three."""
    study = Study(family, {"seed": range(6)}, data, directory=tmp_path / "run", device="cpu")
    row = study.plan().iloc[0]
    assert row["capacity"] >= 6
    assert row["fixed_bytes"] >= 0
    group = study.plan_groups[0]
    assert group.measured
    peak = capacity.peak_of(Trainer(study.settings(), [group], ev.Control()), group, 6)
    assert peak == pytest.approx(group.fixed_bytes + 6 * group.memory_bytes, rel=0.05)


def test_first_steps_tell_what_they_took(tmp_path: Path) -> None:
    study = Study("mlp", GRID, "iris", directory=tmp_path / "run", **ASKED)
    events = list(study.run())
    found = [e for e in events if isinstance(e, ev.MemoryMeasured)]
    assert len(found) == 1
    assert found[0].members == 6
    assert found[0].peak_bytes > 6 * 3 * 8 * study.groups()[0].parameters  # with gradients and two states
    assert study.groups()[0].memory_bytes * 6 == pytest.approx(found[0].peak_bytes, rel=0.01)


@pytest.mark.long
def test_as_many_as_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Study("mlp", GRID, "iris", directory=tmp_path / "plain", **ASKED)
    list(plain.run())
    one = capacity.model_of(Trainer(plain.settings(), plain.plan_groups, ev.Control()), plain.plan_groups[0])
    monkeypatch.setattr(capacity, "free_bytes", lambda device: one.bytes(4) + one.member_bytes // 2)
    study = Study("mlp", GRID, "iris", directory=tmp_path / "run", **ASKED)
    assert len(study.plan(measure=False)) == 1
    table = study.plan()
    assert list(table["members"]) == [3, 3]
    assert set(table["capacity"]) == {4}
    assert "4 members fit in" in table["split_because"].iloc[1]
    phases = [e.phase for e in study.run() if isinstance(e, ev.PhaseChanged)]
    assert "measuring memory" not in phases  # once is enough
    again = Study("mlp", GRID, "iris", directory=tmp_path / "again", **ASKED)
    events = list(again.run())
    assert "measuring memory" in [e.phase for e in events if isinstance(e, ev.PhaseChanged)]
    assert [len(g.variants) for g in again.history.groups] == [3, 3]
    for other in (study, again):
        assert _apart(curves(other), curves(plain)) < 1e-12
    monkeypatch.setattr(capacity, "free_bytes", lambda device: 1000)
    none = Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", directory=tmp_path / "none", **ASKED)
    assert list(none.plan()["members"]) == [1, 1]
    assert list(none.plan()["capacity"]) == [0, 0]


@pytest.mark.parametrize("serial", [False, True])
def test_what_no_memory_holds_is_said_and_not_tried(
    serial: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: Any, **more: Any) -> Any:
        raise AssertionError("it was built")

    monkeypatch.setattr("hfta_nb.train.schedule.Schedule.build", never)
    study = Study("mlp", {"lr": [1e-3]}, "iris", directory=tmp_path, serial=serial, width=1_000_000, **ASKED)
    assert study.plan(measure=False)["capacity"].isna().all()
    found = study.plan()
    assert list(found["capacity"]) == [0]
    assert found["memory_bytes"][0] > 10**12


@pytest.mark.only(capacity=[4, "auto"])
@pytest.mark.parametrize("capacity", [1, 2, 4, 6, 100, "auto"])
def test_results_do_not_depend_on_capacity(capacity: Any, tmp_path: Path) -> None:
    plain = Study("mlp", GRID, "iris", directory=tmp_path / "plain", **ASKED)
    study = Study("mlp", GRID, "iris", directory=tmp_path / "run", capacity=capacity, **ASKED)
    for each in (plain, study):
        list(each.run())
    assert _apart(curves(study), curves(plain)) < 1e-12
    sizes = [len(g.variants) for g in study.groups()]
    assert sum(sizes) == 6
    if isinstance(capacity, int):
        assert max(sizes) <= capacity
        assert len(sizes) == -(-6 // capacity)


@pytest.mark.long
def test_auto_takes_what_is_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {1: 100.0, 2: 190.0, 4: 192.0}
    tried: list[int] = []

    def rate(trainer: Trainer, group: Group, members: int) -> float | None:
        tried.append(members)
        return rates[members]

    monkeypatch.setattr(capacity, "_rate", rate)
    timing_cache._kept.cache_clear()
    study = Study("mlp", GRID, "iris", directory=tmp_path / "run", capacity="auto", **ASKED)
    table = study.plan()
    assert tried == [1, 2, 4]
    assert list(table["members"]) == [2, 2, 2]
    assert "2 members are fastest: 190 samples/s, 4 give 192" in table["split_because"].iloc[1]
    study = Study("mlp", GRID, "iris", directory=tmp_path / "again", capacity="auto", **ASKED)
    rates.update({4: 300.0, 6: 400.0})
    tried.clear()
    assert list(study.plan()["members"]) == [2, 2, 2]  # what was measured once holds
    assert tried == []
    timing_cache._kept.cache_clear()
    study = Study("mlp", GRID, "iris", directory=tmp_path / "more", capacity="auto", **ASKED)
    assert list(study.plan()["members"]) == [6]
    assert tried == [1, 2, 4, 6]
    rates.pop(4)
    timing_cache._kept.cache_clear()
    monkeypatch.setattr(capacity, "_rate", lambda trainer, group, members: rates.get(members))
    study = Study("mlp", GRID, "iris", directory=tmp_path / "less", capacity="auto", **ASKED)
    assert list(study.plan()["members"]) == [2, 2, 2]
    assert "4 members ran out of memory" in study.plan()["split_because"].iloc[1]


def test_a_measured_peak_divides_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two arrays of three were planned; the first turns out to take twice what was predicted."""
    trainer_free = {"bytes": 10**12}
    monkeypatch.setattr("hfta_nb.train.schedule.free_bytes", lambda device: trainer_free["bytes"])
    study = Study("mlp", GRID, "iris", directory=tmp_path / "run", capacity=3, **ASKED)
    study.plan()
    trainer = Trainer(study.settings(), study.plan_groups, ev.Control())
    first = trainer.waiting.popleft().group
    model = MemoryModel(first.fixed_bytes, first.memory_bytes)
    trainer_free["bytes"] = 0
    trainer.measured(first, model.bytes(3), 0)
    assert [len(g.variants) for g in trainer.arrays] == [3, 3]  # as predicted
    twice = 2 * model.bytes(3)
    fits = model.corrected(3, twice).bytes(2)  # two would fit
    trainer_free["bytes"] = fits
    trainer.measured(first, twice, 0)
    assert [len(g.variants) for g in trainer.arrays] == [3, 1, 2]
    assert "as measured in array 0" in trainer.arrays[2].reason
    assert sorted(g.index for g in trainer.arrays) == [0, 1, 2]


def test_activations_are_computed_again_if_more_fit_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "free_bytes", lambda device: 250)
    models = {False: MemoryModel(0, 100), True: MemoryModel(0, 40)}
    monkeypatch.setattr(capacity, "model_of", lambda trainer, group: models[group.checkpointed])
    plain = Study("mlp", GRID, "iris", directory=tmp_path / "never", checkpointing="never", **ASKED)
    assert list(plain.plan()["members"]) == [2, 2, 2]
    study = Study("mlp", GRID, "iris", directory=tmp_path / "auto", **ASKED)
    assert list(study.plan()["members"]) == [6]
    assert "computed again" in study.groups()[0].strategy
    for each in (plain, study):
        list(each.run())
    assert _apart(curves(study), curves(plain)) < 1e-10
    trainer = Trainer(study.settings(), study.plan_groups, ev.Control())
    assert not trainer.build(study.plan_groups[0]).array.capture  # type: ignore[attr-defined]
    models[True] = MemoryModel(0, 95)  # hardly worth a second forward
    study = Study("mlp", GRID, "iris", directory=tmp_path / "hardly", **ASKED)
    assert list(study.plan()["members"]) == [2, 2, 2]
    assert "computed again" not in study.groups()[0].strategy
    monkeypatch.setattr(capacity, "free_bytes", lambda device: 700)
    study = Study("mlp", GRID, "iris", directory=tmp_path / "easy", **ASKED)
    assert list(study.plan()["members"]) == [6]
    assert "computed again" not in study.groups()[0].strategy


@pytest.mark.parametrize("strategy", ["fixed", "measured"])
def test_recording_a_step_takes_little_more_than_the_step(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> nn.Module:
        layers = [m for _ in range(8) for m in (nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU())]
        return nn.Sequential(*layers, nn.Linear(32, 4))

    monkeypatch.setattr(program_cache, "watched", lambda: False)  # the meter looks on
    array = fuse([build(), build()])
    array.strategy, array.block_size = strategy, 2
    x, y = torch.randn(256, 32), torch.zeros(256, dtype=torch.long)
    peaks = []
    for _ in range(3):
        array.zero_grad()
        with Meter(torch.device("cpu")) as meter:
            array.backward(nn.functional.cross_entropy, x, y)
        peaks.append(meter.peak_bytes)
    assert "recorded" in set(array.explain()["how"])
    assert max(peaks[1:]) < 1.6 * peaks[0]


def test_an_address_is_kept_and_the_memory_is_not() -> None:
    addresses, tensor = Addresses(), torch.zeros(1000)
    storage = tensor.untyped_storage()
    address, gone = storage._cdata, weakref.ref(storage)
    addresses.keep(storage)
    del tensor, storage
    assert gone() is None
    held = [torch.zeros(1000) for _ in range(50)]
    assert address not in [t.untyped_storage()._cdata for t in held]


def test_steps_are_recorded_only_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.can_record(torch.device("cpu"), 100, 300)
    assert not memory.can_record(torch.device("cpu"), 101, 300)
    assert memory.can_record(torch.device("cuda"), 101, 600)
    monkeypatch.setattr(capacity, "model_of", lambda trainer, group: MemoryModel(0, 100))
    made = []
    for free in (600, 3 * 600):
        monkeypatch.setattr(capacity, "free_bytes", lambda device, free=free: free)
        study = Study("mlp", GRID, "iris", directory=tmp_path / str(free), **ASKED)
        assert list(study.plan()["members"]) == [6]
        trainer = Trainer(study.settings(), study.plan_groups, ev.Control())
        made.append(trainer.build(study.plan_groups[0]).array.capture)  # type: ignore[attr-defined]
    assert made == [False, True]


def test_wrong_checkpointing() -> None:
    with pytest.raises(StudyError, match="checkpointing: unknown choice"):
        Study("mlp", GRID, "iris", checkpointing="sometimes")


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, "most", [1]])
def test_wrong_capacities(wrong: Any) -> None:
    with pytest.raises(StudyError, match="capacity: not a number of members"):
        Study("mlp", GRID, "iris", capacity=wrong)


def test_saved_and_loaded(tmp_path: Path) -> None:
    study = Study("mlp", GRID, "iris", directory=tmp_path / "run", capacity=2, **ASKED)
    study.save(tmp_path / "run")
    again = Study.load(tmp_path / "run")
    assert again.capacity == 2
    assert len(again.groups()) == 3
    assert "capacity=2" in again.to_code()


def _apart(a: dict[int, Any], b: dict[int, Any]) -> float:
    assert a.keys() == b.keys()
    return max(
        abs(x - y) for i in b for name in b[i] for x, y in zip(a[i][name], b[i][name], strict=True)
    )  # fmt: skip
