"""The use of threads is chosen by measurement and kept."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.execution_schedule import schedules_of
from hfta_nb.engine.array.schedule_trial import Trial
from hfta_nb.engine.members import threads
from hfta_nb.errors import FusionError
from hfta_nb.train.step import ArrayStep
from tests.contract.branches import CPU, MEMBERS, SEEDS, batch, branches
from tests.contract.replay import backward, mlp
from tests.contract.serial import make

pytestmark = pytest.mark.usefixtures("two_threads")


def test_unknown_ways_are_refused() -> None:
    array = hfta.fuse([mlp(), mlp()])
    with pytest.raises(FusionError, match="kernels, one, blocks"):
        array.threads = "many"
    array.threads = "one"
    assert array.select([0]).threads == "one"
    table = array.explain()
    assert "on one thread" in list(table["how"])


def _tried(array: FusedArray, took: dict[str, float], rest: float = 1.0) -> list[str]:
    """Try ways on steps that take what is said, in seconds; gives the names of the ways in order."""
    x, y = batch()
    found = Trial(array._calls, schedules_of(array._state), replaying=True)
    names = []
    while not found.done:
        names.append(str(found.way))
        backward(array, F.mse_loss, x, y)
        found.took(took.get(names[-1], rest))
    return list(dict.fromkeys(names))


def test_the_fastest_way_is_found_on_one_thread_and_then_on_several() -> None:
    one = "on one thread"
    array = hfta.fuse(make(mlp, MEMBERS, torch.float64, CPU), SEEDS)
    names = _tried(array, {"1 on one thread": 0.8, "1 side by side": 0.5, "1 with threads in every kernel": 0.9})
    assert names == [f"4 {one}", f"1 {one}", "1 with threads in every kernel", "1 side by side"]
    assert (array.block_size, array.threads) == (1, "blocks")
    assert branches(array) == [2]  # and what was recorded for the others has gone

    array = hfta.fuse(make(mlp, MEMBERS, torch.float64, CPU), SEEDS)
    names = _tried(array, {f"4 {one}": 0.5, "4 with threads in every kernel": 5.0, "2 side by side": 0.49})
    assert names == [f"4 {one}", f"1 {one}", "4 with threads in every kernel", "2 side by side"]
    assert (array.block_size, array.threads) == (4, "one")  # not clearly slower, and more at once

    array = hfta.fuse(make(mlp, MEMBERS, torch.float64, CPU), SEEDS)
    _tried(array, {"4 with threads in every kernel": 0.3})
    assert (array.block_size, array.threads) == (4, "kernels")


def test_one_member_has_a_choice_of_threads_too() -> None:
    for took, way in ((0.5, "kernels"), (0.97, "one"), (3.0, "one")):
        array = hfta.fuse(make(mlp, 1, torch.float64, CPU), SEEDS[:1])
        names = _tried(array, {"1 with threads in every kernel": took})
        assert names == ["1 on one thread", "1 with threads in every kernel"]
        assert (array.block_size, array.threads) == (1, way)
    torch.set_num_threads(1)
    array = hfta.fuse(make(mlp, 2, torch.float64, CPU), SEEDS[:2])
    assert _tried(array, {}) == ["2", "1"]
    assert array.threads == "kernels"
    torch.set_num_threads(2)


def test_threads_that_can_not_win_what_trying_them_costs_are_not_tried() -> None:
    """A step that is replayed takes 0.1 ms, so that threads save 6 ms in 125 of them; recording took 0.2 s."""
    array = hfta.fuse(make(mlp, 1, torch.float64, CPU), SEEDS[:1])
    found = Trial(array._calls, schedules_of(array._state), replaying=True)
    names: list[str] = []
    while not found.done:
        names.append(str(found.way))
        found.took(0.01 if len(names) <= 2 else 0.1 if len(names) <= 4 else 1e-4)
    assert set(names) == {"1 on one thread"}
    assert (array.threads, found.complete) == ("one", False)


def test_threads_are_judged_by_steps_that_nobody_records() -> None:
    array = hfta.fuse(make(mlp, 1, torch.float64, CPU), SEEDS[:1])
    found = Trial(array._calls, schedules_of(array._state), replaying=True)
    first = []
    while not found.done:
        if found.way.threads == "kernels":
            first.append(array._calls.steps.waiting)
        found.took(0.5 if found.way.threads == "kernels" else 1.0)
    assert first[:3] == [True, True, False]  # as ever, and then recorded
    assert array.threads == "kernels"


def test_a_way_that_is_slower_replayed_than_another_that_was_not_is_tried_no_further() -> None:
    """As where the machine is disturbed: recording four members takes so long that one at a time is left as it is."""
    array = hfta.fuse(make(mlp, MEMBERS, torch.float64, CPU), SEEDS)
    found = Trial(array._calls, schedules_of(array._state), replaying=True)
    names: list[str] = []
    while not found.done:
        names.append(str(found.way))
        whole = names[-1] == "4 on one thread"
        found.took(1.05 if not whole else 1.0 if names.count(names[-1]) <= 2 else 500.0 if len(names) < 6 else 2.0)
    assert set(names) == {"1 on one thread", "4 on one thread"}
    assert names.count("1 on one thread") == 1
    assert not found.complete


class Branches(nn.Module):
    """Control flow that `vmap` can't follow: members run one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(x)
        return out.relu() if float(out.detach().sum()) > 0 else out


def test_members_that_run_one_at_a_time_have_a_choice_of_threads() -> None:
    array = hfta.fuse(make(Branches, MEMBERS, torch.float64, CPU), SEEDS)
    names = _tried(array, {"1 with threads in every kernel": 0.5})
    assert names == ["4 on one thread", "1 on one thread", "1 with threads in every kernel", "1 side by side"]
    assert (array.block_size, array.threads) == (1, "kernels")


def test_what_tuning_finds_trains_as_alone() -> None:
    array, other = (hfta.fuse(make(mlp, MEMBERS, torch.float64, CPU), SEEDS) for _ in range(2))
    other.capture, other.threads = False, "one"
    x, y = batch()
    assert set(array.tune(F.mse_loss, x, y, budget_s=0.1)) <= {1, 2, 4}
    assert array.threads in threads.THREAD_MODES
    assert any("on one thread" in how for how in array.explain()["how"])  # what was tried
    other.block_size = array.block_size
    for _ in range(4):
        torch.testing.assert_close(
            backward(array, F.mse_loss, x, y), backward(other, F.mse_loss, x, y), atol=1e-12, rtol=0
        )


def test_a_study_is_trained_and_resumed_on_the_same_threads() -> None:
    rows = [{"lr": 1e-2, "optimizer": "adam", "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}] * MEMBERS
    rows = [{**row, "lr_scheduler": "none"} for row in rows]
    x, y = batch()

    def made() -> ArrayStep:
        return ArrayStep(hfta.fuse(make(mlp, MEMBERS, torch.float64, CPU), SEEDS), rows, F.mse_loss, {}, epochs=1)

    step, again = made(), made()
    step.array.threads, step.array.block_size = "blocks", 2
    for _ in range(5):
        step.train(x, y)
    again.load_state(step.state())
    assert (again.array.threads, again.array.block_size) == ("blocks", 2)
    for _ in range(5):
        assert torch.equal(step.train(x, y)["loss"], again.train(x, y)["loss"])
