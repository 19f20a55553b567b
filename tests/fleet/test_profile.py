"""Rates and memory of groups: measurement, storage, and memory limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import hfta_nb as hfta
from hfta_nb import fleet
from hfta_nb.errors import FleetError
from hfta_nb.workers.fleet.arrays import Arrays
from hfta_nb.workers.fleet.profile import Profile, Trial, profile, rate_of


class Bench:
    """Groups that take a second per batch on one device after 28 slower ones, and a clock that they move.

    Attributes:
        opened: name, members and devices, in the order in which they were opened.
    """

    def __init__(self, samples: dict[str, int], memory: dict[str, int] | None = None) -> None:
        self.samples, self.memory = samples, memory or {}
        self.now_s, self.opened = 0.0, list[tuple[str, int, int]]()
        self.batches = 0

    def clock(self) -> float:
        return self.now_s

    @contextmanager
    def opens(self, name: str, members: int, devices: int) -> Iterator[Trial]:
        self.opened.append((name, members, devices))
        self.batches = 0
        yield _Trial(self, name, members, devices)


class _Trial:
    def __init__(self, bench: Bench, name: str, members: int, devices: int) -> None:
        self.bench, self.name, self.members, self.devices = bench, name, members, devices

    def train(self) -> int:
        self.bench.batches += 1
        self.bench.now_s += 0.05 if self.bench.batches <= 28 else 0.01 / self.devices
        return self.bench.samples[self.name]

    def memory_bytes(self) -> int:
        return self.members * self.bench.memory.get(self.name, 1)


def test_the_last_20_of_48_batches_count() -> None:
    bench = Bench({"a": 3})
    with bench.opens("a", 1, 1) as trial:
        assert rate_of(trial, bench.clock) == pytest.approx(300, rel=1e-9)
    assert bench.batches == 48


def test_slow_batches_are_warm_sooner() -> None:
    class Slow(_Trial):
        def train(self) -> int:
            self.bench.batches += 1
            self.bench.now_s += 1.5
            return 3

    bench = Bench({})
    assert rate_of(Slow(bench, "a", 1, 1), bench.clock) == pytest.approx(2.0, rel=1e-9)
    assert bench.batches == 22


@pytest.mark.parametrize(
    ("samples", "gpus", "per_node", "most"),
    [
        ({"a": 10, "b": 25}, 8, 1, 3),  # 2.5 times as fast
        ({"a": 10, "b": 10}, 8, 3, 6),  # two nodes
        ({"a": 10, "b": 25}, 2, 3, 2),  # no more than there are
    ],
)
def test_all_are_measured_on_one_device_and_then_on_more(
    samples: dict[str, int], gpus: int, per_node: int, most: int
) -> None:
    bench = Bench(samples)
    found = profile(bench.opens, dict.fromkeys(samples, 4), gpus, gpus_per_node=per_node, clock=bench.clock)
    assert bench.opened[:2] == [("a", 4, 1), ("b", 4, 1)]
    assert sorted(bench.opened) == [(name, 4, m) for name in "ab" for m in range(1, most + 1)]
    for name, measured in found.groups.items():
        assert measured.members == 4
        assert measured.rates == pytest.approx([100 * m * samples[name] for m in range(1, most + 1)], rel=1e-9)
    assert sum(fleet.create_flotilla(found.rates, gpus).values()) == gpus


def test_what_does_not_fit_is_measured_with_half_its_members() -> None:
    bench = Bench({"a": 1, "b": 1}, {"a": 10, "b": 3})
    found = profile(bench.opens, {"a": 12, "b": 12}, 1, free_bytes=40, clock=bench.clock)
    assert {name: (m.members, m.memory_bytes) for name, m in found.groups.items()} == {
        "a": (3, (30,)),
        "b": (12, (36,)),
    }
    with pytest.raises(FleetError, match="a: not even one member"):
        profile(bench.opens, {"a": 2}, 1, free_bytes=9, clock=bench.clock)


def test_running_out_of_memory_says_the_same() -> None:
    bench = Bench({"a": 1})

    @contextmanager
    def opens(name: str, members: int, devices: int) -> Iterator[Trial]:
        if members > 2 or devices > 1:
            raise RuntimeError("CUDA error: out of memory")
        with bench.opens(name, members, devices) as trial:
            yield trial

    found = profile(opens, {"a": 8}, 4, clock=bench.clock)
    assert found.groups["a"].members == 2
    assert len(found.groups["a"].rates) == 1


def test_another_error_is_raised() -> None:
    @contextmanager
    def opens(name: str, members: int, devices: int) -> Iterator[Trial]:
        raise KeyError(name)
        yield

    with pytest.raises(KeyError):
        profile(opens, {"a": 8}, 4)


def measured(bench: Bench, path: Path) -> Profile:
    return profile(bench.opens, dict.fromkeys(bench.samples, 2), 2, cache=path, clock=bench.clock)


def test_what_was_measured_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "profile.json"
    first = measured(Bench({"a": 1, "b": 2}), path)
    again = Bench({"a": 1, "b": 2, "c": 3})
    found = measured(again, path)
    assert {name for name, _, _ in again.opened} == {"c"}
    assert {name: found.groups[name] for name in "ab"} == dict(first.groups)
    assert [p.name for p in path.parent.iterdir()] == ["profile.json"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"2 members on 1 devices: a": [0, 1]}', '{"2 members on 1 devices: a": 1}']
)
def test_a_damaged_file_is_measured_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text, encoding="utf-8")
    bench = Bench({"a": 1})
    assert math.isclose(measured(bench, path).groups["a"].rates[0], 100)
    assert bench.opened == [("a", 2, 1), ("a", 2, 2)]


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert measured(Bench({"a": 1}), tmp_path / "file" / "profile.json").groups["a"].members == 2


@pytest.mark.parametrize("members", [{}, {"a": 0}, ["a"]])
def test_wrong_members(members: object) -> None:
    with pytest.raises(FleetError, match="members"):
        profile(Bench({}).opens, members, 1)  # type: ignore[arg-type]


# Arrays of a study.


def test_the_arrays_of_a_study_are_measured_and_planned() -> None:
    study = hfta.Study("mlp", {"depth": [1, 3], "lr": [1e-3, 1e-2]}, "digits", epochs=1, padding="never", device="cpu")
    groups = {f"array {group.index}": group for group in study.plan_groups}
    assert len(groups) == 2
    found = profile(Arrays(study.settings(), groups), {name: len(g.variants) for name, g in groups.items()}, 1)
    assert [m.members for m in found.groups.values()] == [2, 2]
    least = [3 * 4 * 2 * group.parameters for group in groups.values()]  # parameters, gradients, one state: float32
    assert all(m.memory_bytes[0] > bytes_ for m, bytes_ in zip(found.groups.values(), least, strict=True))
    plan = fleet.plan(found.rates, 1, 1, samples_per_epoch=1000)
    assert sorted(name for flotilla in plan.flotillas for name in flotilla.finished) == sorted(groups)


@pytest.mark.long
def test_an_array_is_measured_on_several_devices(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "digits", epochs=1, device="cpu")
    found = study.profile(tmp_path / "kept.json", devices=2).groups["array 0"]
    assert len(found.rates) == len(found.memory_bytes) == 2
    assert study.profile(tmp_path / "kept.json", devices=2).groups["array 0"] == found
