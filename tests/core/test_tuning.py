"""Schedules tried on training steps: which are tried, which is chosen, and that training is unchanged."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from benchmarks.suite.beginning import paid_after
from hfta_nb import events as ev
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.execution_schedule import ExecutionSchedule, schedules_of
from hfta_nb.engine.array.native_libraries import libraries_of
from hfta_nb.engine.array.schedule_trial import Trial, fastest, keep, known
from hfta_nb.engine.kernels.native import build
from hfta_nb.engine.kernels.strategy import timing_cache
from hfta_nb.train.step import ArrayStep

ROW = {"optimizer": "adam", "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "lr_scheduler": "none"}
MEMBERS = 6


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is found is kept, for this test alone."""
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path / "cache"))
    timing_cache._kept.cache_clear()
    yield
    timing_cache._kept.cache_clear()


def _array(members: int = MEMBERS, dtype: torch.dtype = torch.float64) -> FusedArray:
    torch.manual_seed(0)
    made = [nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 3)) for _ in range(members)]
    return hfta.fuse([m.to(dtype) for m in made], list(range(members)))


def _step(array: FusedArray) -> ArrayStep:
    return ArrayStep(array, [{**ROW, "lr": 1e-3 * (i + 1)} for i in range(len(array))], F.cross_entropy, {}, epochs=1)


def _batch(size: int = 16, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 6, dtype=dtype, generator=generator), torch.arange(size) % 3


def _run(trial: Trial, plain: dict[int, float], replayed: dict[int, float]) -> list[int]:
    """Tell a trial of such times; the block sizes of its steps."""
    sizes: list[int] = []
    count: dict[int, int] = {}
    while not trial.done:
        size = trial.way.block_size
        sizes.append(size)
        count[size] = count.get(size, 0) + 1
        recorded = trial.calls.steps.at_once
        trial.took(replayed[size] if recorded and count[size] > 3 else 2 * plain[size] if recorded else plain[size])
    return sizes


def test_what_is_hopeless_is_run_once_and_the_fastest_is_chosen() -> None:
    array = _array()
    trial = Trial(array._calls, schedules_of(array._state), True)
    sizes = _run(trial, {6: 1e-3, 4: 1.1e-3, 1: 5.0}, {6: 0.8e-3, 4: 0.5e-3, 1: 1e-9})
    assert sizes.count(1) == 1
    assert sizes[:4] == [6, 4, 1, 6]
    assert (array.block_size, trial.way.block_size in (6, 4)) == (4, True)
    assert not array._calls.steps.waiting
    assert not array._calls.steps.at_once


@pytest.mark.parametrize(("dtype", "fastest_size"), [(torch.float32, 1), (torch.float64, 4)])
def test_images_of_members_alone_are_replayed_where_that_is_faster_than_it_looks(
    dtype: torch.dtype, fastest_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "available", tuple)
    array = hfta.fuse([nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()).to(dtype) for _ in range(MEMBERS)])
    trial = Trial(array._calls, schedules_of(array._state), True)
    sizes = _run(trial, {6: 0.1, 4: 0.11, 1: 0.22}, {6: 0.08, 4: 0.05, 1: 0.03})
    assert (array.block_size, sizes.count(1) > 1) == (fastest_size, fastest_size == 1)


def test_more_members_at_once_unless_fewer_are_clearly_faster() -> None:
    assert fastest(
        {ExecutionSchedule(6): 1.0, ExecutionSchedule(4): 0.96, ExecutionSchedule(1): 0.97}
    ) == ExecutionSchedule(6)
    assert fastest(
        {ExecutionSchedule(6): 1.0, ExecutionSchedule(4): 0.94, ExecutionSchedule(1): 0.93}
    ) == ExecutionSchedule(4)
    assert fastest({}) is None


def test_another_way_is_not_recorded_where_that_is_not_won_back() -> None:
    """One after another a step takes 0.1 s, the first way that is recorded 0.099 s: 125 steps win less than it cost."""
    times = {6: 0.101, 4: 0.102, 1: 0.1}
    found = []
    for steps in (0.0, 1e6):
        array = _array()
        array.settings.planned_steps = steps
        trial = Trial(array._calls, schedules_of(array._state), True)
        seen = _run_with_recording_that_takes(trial, times, {6: 0.08, 4: 0.09, 1: 0.0995}, 5.0)
        found.append((array.block_size, {size for size, count in seen.items() if count > 2}))
    assert found == [(1, {1}), (6, {6, 4, 1})]


@pytest.mark.parametrize(
    ("step_s", "planned", "recorded"), [(0.3, 0.0, {6}), (0.05, 0.0, {6, 4}), (0.3, 130.0, {6, 4})]
)
def test_a_loop_of_unknown_length_regains_a_trial_within_ten_seconds(
    step_s: float, planned: float, recorded: set[int]
) -> None:
    """Another recording costs eight replayed steps, and 15% of a step is what it may gain."""
    array = _array()
    array.settings.planned_steps = planned
    trial = Trial(array._calls, schedules_of(array._state), True)
    times = {6: step_s, 4: 1.1 * step_s, 1: 9 * step_s}
    seen = _run_with_recording_that_takes(trial, times, {6: 0.4 * step_s, 4: 0.41 * step_s}, 2.0 * step_s)
    assert {size for size, count in seen.items() if count > 2} == recorded


def test_another_block_size_is_recorded_where_a_part_of_a_step_pays_for_it() -> None:
    """Replaying wins much, but another block size can only win a part of what a replayed step takes."""
    plain, replayed = {6: 0.1, 4: 0.11, 1: 0.12}, {6: 1e-3, 4: 0.5e-3, 1: 1.1e-3}
    array = _array()
    brief = Trial(array._calls, schedules_of(array._state), True)
    seen = _run_with_recording_that_takes(brief, plain, replayed, 1.0)
    assert {size for size, count in seen.items() if count > 2} == {6}
    assert (array.block_size, brief.complete) == (6, False)
    keep(array._state, "such steps", brief, schedules_of(array._state))
    assert known(array._state, "such steps", brief.ways) == {ExecutionSchedule(6): 1e-3}
    array.settings.planned_steps = 1e6
    assert known(array._state, "such steps", brief.ways) is None  # in a long run it pays to try all
    array.block_size = MEMBERS
    long = Trial(array._calls, schedules_of(array._state), True)
    seen = _run_with_recording_that_takes(long, plain, replayed, 1.0)
    assert {size for size, count in seen.items() if count > 2} == {6, 4, 1}
    assert (array.block_size, long.complete) == (4, True)
    keep(array._state, "such steps", long, schedules_of(array._state))
    assert known(array._state, "such steps", long.ways) == {
        ExecutionSchedule(6): 1e-3,
        ExecutionSchedule(4): 0.5e-3,
        ExecutionSchedule(1): 1.1e-3,
    }
    array.settings.planned_steps = 0.0  # short runs stay as they were
    assert known(array._state, "such steps", long.ways) == {ExecutionSchedule(6): 1e-3}


@pytest.mark.parametrize("first", ["complete", "brief"])
@pytest.mark.parametrize("steps", [0.0, 1e6], ids=["short", "long"])
def test_what_two_have_tried_at_once_is_what_the_first_has_found(first: str, steps: float) -> None:
    """One of them has skipped schedules, and the other has not: all take what was kept first, from then on."""
    array = _array()
    array.settings.planned_steps = steps
    trials = {}
    for name, size in (("complete", 4), ("brief", 6)):
        trials[name] = Trial(array._calls, schedules_of(array._state), True)
        _run(trials[name], {6: 1e-3, 4: 1.1e-3, 1: 5.0}, {6: 0.8e-3 if size == 4 else 0.1e-3, 4: 0.5e-3, 1: 1e-9})
        trials[name].complete = name == "complete"
    ways = trials["brief"].ways
    found = []
    for name in sorted(trials, key=lambda name: name != first):
        keep(array._state, "such steps", trials[name], ways)
        found.append(fastest(known(array._state, "such steps", ways) or {}))
    assert found == [ExecutionSchedule(4 if first == "complete" else 6)] * 2


def _run_with_recording_that_takes(
    trial: Trial, plain: dict[int, float], replayed: dict[int, float], seconds: float
) -> dict[int, int]:
    count: dict[int, int] = {}
    recorded: dict[int, int] = {}
    while not trial.done:
        size = trial.way.block_size
        count[size] = count.get(size, 0) + 1
        if not trial.calls.steps.at_once:
            trial.took(plain[size])
            continue
        recorded[size] = recorded.get(size, 0) + 1
        trial.took(seconds if recorded[size] <= 2 else replayed[size])
    return count


def test_a_model_that_runs_one_by_one_has_no_choice() -> None:
    array = _array()
    trial = Trial(array._calls, schedules_of(array._state), True)
    array.block_size = 1  # as a call does where `vmap` can't follow
    trial.took(1.0)
    assert trial.done
    assert array.block_size == 1


def test_a_model_that_runs_one_by_one_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    array = _array()
    trial = Trial(array._calls, ways := schedules_of(array._state), True)
    array.block_size = 1
    trial.took(1.0)
    keep(array._state, "such steps", trial, ways)
    assert known(array._state, "such steps", ways) == {}


def test_training_is_what_it_is_without() -> None:
    tried, plain = _step(_array()), _step(_array())
    tried.tune_at_first()
    batch = _batch()
    assert tried.measures(*batch)
    for number in range(20):
        a, b = tried.train(*batch)["loss"], plain.train(*batch)["loss"]
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, msg=f"step {number}")
        assert tried.tuning is None
    assert f"block size {tried.array.block_size}: tried" in " ".join(tried.array.explain()["how"])
    for name, value in plain.weights().items():
        torch.testing.assert_close(tried.weights()[name], value, rtol=1e-9, atol=1e-9)


def test_what_was_found_is_kept_for_the_next_array_and_the_next_process() -> None:
    first = _step(_array(dtype=torch.float32))
    first.tune_at_first()
    batch = _batch(dtype=torch.float32)
    losses = [first.train(*batch)["loss"] for _ in range(8)]
    size = first.array.block_size
    for _ in range(2):
        other = _step(_array(dtype=torch.float32))
        other.tune_at_first()
        assert not other.measures(*batch)
        assert all(torch.equal(loss, other.train(*batch)["loss"]) for loss in losses)  # to the bit
        assert other.array.block_size == size
        assert "found before" in other.array.settings.tuned
        timing_cache._kept.cache_clear()  # as in a new process, which reads the file
    wider = _step(_array(MEMBERS + 1))
    wider.tune_at_first()
    assert wider.measures(*_batch())


def test_a_short_run_tries_nothing() -> None:
    step = _step(_array())
    step.plan("never", 12, brief=True)
    step.tune_at_first()
    assert not step.measures(*_batch())
    step.train(*_batch())
    assert step.array.block_size == MEMBERS
    assert step.array.settings.tuned == ""


@pytest.mark.parametrize(
    ("steps", "ends", "brief"),
    [(0, True, False), (1, True, True), (39, True, True), (40, True, False), (8, False, False)],
)
@pytest.mark.usefixtures("self_tuning")
def test_so_few_steps_that_an_array_ends_with_are_not_recorded(steps: int, ends: bool, brief: bool) -> None:
    step = _step(_array())
    step.plan("never", steps, brief=ends)
    for _ in range(4):
        step.train(*_batch())
    assert step.array.settings.brief == brief
    assert bool(list(step.array._calls.steps)) != brief
    told = f"{steps} steps: all members at once, not recorded, as preparing faster ones takes as long as 40 steps"
    assert (told in list(step.array.explain()["how"])) == brief


@pytest.mark.usefixtures("self_tuning")
def test_a_short_run_goes_on_as_it_began_until_it_is_extended() -> None:
    whole, first, rest = _step(_array()), _step(_array()), _step(_array())
    for step in (whole, first, rest):
        step.plan("never", 8, brief=True)
    losses = [whole.train(*_batch())["loss"] for _ in range(8)]
    for _ in range(5):
        first.train(*_batch())
    rest.load_state(first.state())
    assert all(torch.equal(loss, rest.train(*_batch())["loss"]) for loss in losses[5:])
    assert rest.array.settings.brief
    rest.plan("never", 80, brief=True)
    assert not rest.array.settings.brief
    assert not rest.array.settings.tuned


def test_a_step_that_fails_chooses_nothing() -> None:
    step = _step(_array())
    step.tune_at_first()
    with pytest.raises(Exception, match=r"shape|size"):
        step.train(torch.randn(16, 5, dtype=torch.float64), torch.arange(16) % 3)
    assert not step.array._calls.steps.waiting
    assert step.array.block_size == MEMBERS
    assert all(p.grad is None for p in step.array.parameters())
    step.train(*_batch())


def test_members_that_leave_end_the_trying() -> None:
    step = _step(_array())
    step.tune_at_first()
    fewer = step.select([0, 2])
    assert fewer.tuning is None
    fewer.train(*_batch())


def test_tuning_beforehand_leaves_inputs_without_gradients() -> None:
    array = _array()
    x, y = _batch()
    x.requires_grad_()
    found = array.tune(F.cross_entropy, x, y, budget_s=0.01)
    assert set(found) == {1, 4, MEMBERS}
    assert x.grad is None


def test_the_libraries_that_a_model_may_use() -> None:
    def names(*modules: nn.Module) -> tuple[str, ...]:
        return libraries_of(hfta.fuse([nn.Sequential(*copy.deepcopy(modules)) for _ in range(2)])._state)

    assert names(nn.Linear(2, 2)) == ("product", "rows")
    assert names(nn.Linear(2, 2).double()) == ()
    assert names(nn.ReLU()) == ()
    assert names(nn.LSTM(2, 2)) == ("lstm", "product", "rows")
    assert names(nn.TransformerEncoderLayer(4, 2)) == ("attention", "product", "rows")
    assert names(nn.Conv2d(1, 1, 1)) == names(nn.BatchNorm1d(2), nn.Conv2d(1, 1, 1))
    assert names(nn.GroupNorm(1, 2)) == ("images", "norm", "product", "rows")
    array = hfta.fuse([nn.Linear(2, 2), nn.Linear(2, 2)])
    array.strategy = "fixed"
    assert libraries_of(array._state) == ()


def test_when_a_beginning_is_paid() -> None:
    assert paid_after([5, 1, 1, 1, 1, 1], [2, 2, 2, 2, 2, 2], 1.0) == 4
    assert paid_after([1, 1], [2, 2], 1.0) == 1
    assert paid_after([9, 1], [2, 2], 1.0) == 2 + 6
    assert paid_after([9, 2], [2, 2], 0.0) is None
    assert paid_after([1, 9, 1, 1, 1], [3, 3, 3, 3, 3], 2.0) == 4  # ahead, behind again, and ahead


def _study(place: Path, epochs: int, lrs: list[float]) -> hfta.Study:
    x, y = torch.randn(64, 6), torch.arange(64) % 3
    data = hfta.data.from_tensors(x, y, x, y, task="classification")

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    how = {"optimizer": "adam", "epochs": epochs, "batch_size": 16, "device": "cpu", "directory": place}
    return hfta.Study(build, {"lr": lrs}, data, loss=F.cross_entropy, **how)


def _told(study: hfta.Study) -> list[str]:
    return [e.detail for e in study.run() if isinstance(e, ev.PhaseChanged) and e.phase == "training"]


@pytest.mark.usefixtures("self_tuning")
def test_a_run_tells_how_many_ways_it_has_tried(tmp_path: Path) -> None:
    study = _study(tmp_path / "run", 15, [1e-3, 2e-3, 5e-3, 1e-2])
    told = _told(study)
    tried = [re.fullmatch(r"tuning: (\d) of (\d) ways tried", detail) for detail in told if "tuning" in detail]
    counts = [int(found[1]) for found in tried if found]
    assert len(counts) == len(tried) > 0
    assert counts == sorted(set(counts))
    assert {int(found[2]) for found in tried if found} == {2}  # two and four members at once
    assert counts[-1] <= 2
    assert told[-1] == ""
    again = _told(_study(tmp_path / "again", 15, [1e-3, 2e-3, 5e-3, 1e-2]))
    assert [detail for detail in again if "tuning" in detail] == []


@pytest.mark.usefixtures("self_tuning")
def test_a_short_study_says_how_it_runs(tmp_path: Path) -> None:
    study = _study(tmp_path / "run", 2, [1e-3, 1e-2])
    assert [detail.partition(",")[0] for detail in _told(study)] == ["8 steps: all members at once"]
    with pytest.raises(hfta.errors.StudyError, match="a short run has no time for it"):
        study.speedup()
