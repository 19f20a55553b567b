"""Steps on one thread, and blocks of members side by side: what the same blocks compute in turn, to the last bit."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.array import FusedArray, threads
from hfta_nb.array.capture.lanes import lanes_of
from hfta_nb.array.capture.record import Recorder
from hfta_nb.array.trial import Trial, ways_of
from hfta_nb.errors import FusionError
from hfta_nb.step import ArrayStep
from tests.contract.rows import MODULES, ModuleRow
from tests.contract.serial import loss_of, make, target_for
from tests.contract.test_capture import NOT

MEMBERS, SEEDS = 4, [1, 2, 3, 4]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """Torch has two threads, whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2  # whatever has run here leaves that as it was
    torch.set_num_threads(before)


def _pair(build: Any, dtype: torch.dtype = torch.float64, block: int = 2) -> tuple[FusedArray, FusedArray]:
    """The same array twice: with blocks side by side, and in turn."""
    arrays = [hfta.fuse(make(build, MEMBERS, dtype, CPU), SEEDS) for _ in range(2)]
    for array, way in zip(arrays, ("blocks", "one"), strict=True):
        array.threads, array.block_size = way, block
    return arrays[0], arrays[1]


def _step(array: FusedArray, loss: Any, x: Any, y: Any) -> Tensor:
    for p in array.parameters():
        p.grad = None
    found = array.backward(loss, x, y)
    assert isinstance(found, Tensor)
    return found


def _same(a: FusedArray, b: FusedArray) -> None:
    for (name, p), (_, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None and q.grad is not None:
            assert torch.equal(p.grad, q.grad), name
    for p, q in zip(a.buffers(), b.buffers(), strict=True):
        assert torch.equal(p, q)
    for s, t in zip(a.generators.states, b.generators.states, strict=True):
        assert torch.equal(s["cpu"], t["cpu"])


def _lanes(array: FusedArray) -> list[int]:
    """How many threads what is replayed runs on, of each kind of call."""
    made = [s.program for s in array._steps._kinds]
    return [0 if p is None else 1 if p.lanes is None else len(p.lanes) for p in made]


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def _batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(6, n, dtype=dtype, generator=generator) for n in (5, 3))  # type: ignore[return-value]


@pytest.mark.parametrize("block", [2, 1])
@pytest.mark.parametrize("row", MODULES, ids=lambda r: r.name)
def test_blocks_side_by_side_are_those_in_turn(row: ModuleRow, block: int) -> None:
    array, other = _pair(row.build, block=block)
    target = target_for(row.build().to(torch.float64), row.x())
    for step in range(6):
        x, y = row.x(), target + step
        assert torch.equal(_step(array, loss_of, x, y), _step(other, loss_of, x, y))
        _same(array, other)
    if row.name not in NOT:
        assert _lanes(array) == [2]
    assert set(_lanes(other)) <= {0, 1}


def test_random_numbers_statistics_and_float32_are_those_in_turn() -> None:
    array, other = _pair(_mlp, torch.float32, block=1)
    for _ in range(8):
        x, y = _batch(torch.float32)
        losses, wanted = _step(array, F.mse_loss, x, y), _step(other, F.mse_loss, x, y)
        assert torch.equal(losses, wanted)
        _same(array, other)
    assert _lanes(array) == [2]


def test_members_that_do_not_divide_and_more_threads_than_blocks() -> None:
    x, y = _batch()
    for count, block, lanes in ((2, 3, 2), (4, 1, 4), (8, 2, 2), (3, 1, 3), (2, 4, 1)):
        torch.set_num_threads(count)
        array, other = _pair(_mlp, block=block)
        for _ in range(5):
            assert torch.equal(_step(array, F.mse_loss, x, y), _step(other, F.mse_loss, x, y))
            _same(array, other)
        assert _lanes(array) == [lanes]
    torch.set_num_threads(2)


def test_another_number_of_threads_is_another_program() -> None:
    array, other = _pair(_mlp, block=1)
    x, y = _batch()
    for count in (2, 1, 2):
        torch.set_num_threads(count)
        for _ in range(4):
            assert torch.equal(_step(array, F.mse_loss, x, y), _step(other, F.mse_loss, x, y))
    assert _lanes(array) == [2, 1]


def test_a_member_that_diverges_harms_no_other() -> None:
    array, other = _pair(_mlp)
    x, y = _batch()
    for step in range(6):
        if step == 4:
            with torch.no_grad():
                array.get_parameter("0.weight")[1] = torch.nan
        losses, wanted = _step(array, F.mse_loss, x, y), _step(other, F.mse_loss, x, y)
        rows = [0, 1, 2, 3] if step < 4 else [0, 2, 3]
        assert torch.equal(losses[rows], wanted[rows])
        for p, q in zip(array.parameters(), other.parameters(), strict=True):
            assert p.grad is not None
            assert q.grad is not None
            assert torch.equal(p.grad[rows], q.grad[rows])
    assert losses[1].isnan()


@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("lane", [0, 1])
def test_an_error_in_a_block_leaves_all_as_it_was(lane: int, error: BaseException) -> None:
    array, other = _pair(_mlp)
    x, y = _batch()
    for _ in range(4):
        _step(array, F.mse_loss, x, y)
        _step(other, F.mse_loss, x, y)
    program = next(iter(array._steps._kinds)).program
    assert program is not None
    assert program.lanes is not None
    ended = []

    def fails() -> None:
        raise error

    def late() -> None:
        time.sleep(0.05)
        ended.append(True)

    program.lanes.lanes[lane].insert(8, fails)
    program.lanes.lanes[1 - lane].append(late)
    if isinstance(error, Exception):
        assert torch.equal(_step(array, F.mse_loss, x, y), _step(other, F.mse_loss, x, y))  # as ever, from where it was
        assert _lanes(array) == [0]
    else:
        with pytest.raises(KeyboardInterrupt):
            _step(array, F.mse_loss, x, y)
        program.lanes.lanes[lane].remove(fails)
        assert torch.equal(_step(array, F.mse_loss, x, y), _step(other, F.mse_loss, x, y))
    assert ended
    _same(array, other)


def test_a_profiler_sees_every_block_and_numbers_stay() -> None:
    array, other = _pair(_mlp, block=1)
    x, y = _batch()
    for _ in range(4):
        _step(array, F.mse_loss, x, y)
        _step(other, F.mse_loss, x, y)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        losses = _step(array, F.mse_loss, x, y)
    assert torch.equal(losses, _step(other, F.mse_loss, x, y))
    assert sum(e.count for e in profiled.key_averages() if e.key == "aten::native_batch_norm") == MEMBERS
    assert _lanes(array) == [2]


def test_autocast_and_deterministic_algorithms() -> None:
    array, other = _pair(_mlp, torch.float32)
    x, y = _batch(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(5):
                assert torch.equal(_step(array, F.mse_loss, x, y), _step(other, F.mse_loss, x, y))
                _same(array, other)
    finally:
        torch.use_deterministic_algorithms(False)
    assert _lanes(array) == [2]


def test_while_another_caller_has_the_threads_blocks_run_in_turn() -> None:
    array, other = _pair(_mlp)
    x, y = _batch()
    for _ in range(4):
        _step(array, F.mse_loss, x, y)
        _step(other, F.mse_loss, x, y)
    busy, free = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        assert free.wait(60)

    holder = threading.Thread(target=threads.side_by_side, args=([lambda: None, hold],))
    holder.start()
    assert busy.wait(60)
    try:
        assert torch.equal(_step(array, F.mse_loss, x, y), _step(other, F.mse_loss, x, y))
    finally:
        free.set()
        holder.join()
    _same(array, other)
    assert _lanes(array) == [2]


def test_optimizer_steps_and_learning_rates_per_member() -> None:
    arrays = _pair(_mlp)
    made = [hfta.optim.Adam(a, lr=[1e-2, 2e-2, 3e-2, 4e-2], fused=True) for a in arrays]
    x, y = _batch()
    for _ in range(6):
        for array, optimizer in zip(arrays, made, strict=True):
            optimizer.zero_grad()
            array.backward(F.mse_loss, x, y)
            optimizer.step()
        for p, q in zip(arrays[0].parameters(), arrays[1].parameters(), strict=True):
            assert torch.equal(p, q)


# Which calls are lanes.


def _recorded(blocks: Any) -> Any:
    """What functions without arguments call, each a block."""
    recorder = Recorder(CPU)
    recorder.recording.lanes = len(blocks)
    with torch.no_grad(), recorder:
        for block in blocks:
            block()
            recorder.recording.blocks.append(len(recorder.recording.calls))
    return lanes_of(recorder.recording, recorder.recording.calls, ())


def test_blocks_that_depend_on_each_other_are_no_lanes() -> None:
    shared, rows, made = torch.zeros(4), torch.zeros(4, 3), []
    assert _recorded([lambda: shared.sin(), lambda: shared.cos()]) == [0, 1]
    assert _recorded([lambda: rows[:2].add_(1), lambda: rows[2:].add_(1)]) == [0, 1]
    assert _recorded([lambda: rows[:2].add_(1), lambda: rows[1:].add_(1)]) is None
    assert _recorded([lambda: shared.add_(1), lambda: shared.cos()]) is None
    assert _recorded([lambda: shared.cos(), lambda: shared.add_(1)]) is None
    assert _recorded([lambda: rows[:, 0].add_(1), lambda: rows[:, 1].add_(1)]) is None  # not next to each other
    assert _recorded([lambda: made.append(shared.cos()), lambda: made[0].sin()]) is None
    assert _recorded([lambda: shared.sin()]) is None


# The threads themselves.


def _threads() -> int:
    return torch.get_num_threads()


def test_what_runs_alone_leaves_no_trace() -> None:
    seen = {}
    beside = threading.Thread(target=lambda: seen.update(beside=_threads()))

    def within() -> None:
        with threads.Alone():
            seen["within"], seen["at hand"] = _threads(), threads.at_hand()
            with threads.Alone():
                seen["twice"] = threads.at_hand()
            beside.start()
            beside.join()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        within()
    seen["after"] = _threads()
    assert seen == {"within": 1, "at hand": 2, "twice": 2, "beside": 2, "after": 2}


def test_jobs_run_beside_each_other_on_one_thread_each() -> None:
    here, there = threading.Event(), threading.Event()
    counts = []

    def first() -> None:
        here.set()
        assert there.wait(60)
        counts.append(_threads())

    def second() -> None:
        there.set()
        assert here.wait(60)
        counts.append(_threads())

    for _ in range(3):
        here.clear()
        there.clear()
        threads.side_by_side([first, second])
    assert counts == [1] * 6
    assert sum(t.name == "hfta_nb block" for t in threading.enumerate()) <= 3  # made once, not each time


def test_the_first_error_comes_out_when_all_jobs_have_ended() -> None:
    ended = []

    def fails() -> None:
        raise ValueError("of the second")

    def late() -> None:
        time.sleep(0.02)
        ended.append(True)
        raise TypeError("of the third")

    for _ in range(2):
        with pytest.raises(ValueError, match="of the second"):
            threads.side_by_side([lambda: None, fails, late])
    assert ended == [True, True]
    threads.side_by_side([lambda: ended.append(True)] * 3)
    assert len(ended) == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_has_threads_of_its_own() -> None:
    threads.side_by_side([lambda: None, lambda: None])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of newer Pythons, as there are threads
        child = os.fork()
    if child == 0:
        done: list[int] = []
        threads.side_by_side([lambda: done.append(1), lambda: done.append(2)])
        os._exit(0 if sorted(done) == [1, 2] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_unknown_ways_are_refused() -> None:
    array = hfta.fuse([_mlp(), _mlp()])
    with pytest.raises(FusionError, match="kernels, one, blocks"):
        array.threads = "many"
    array.threads = "one"
    assert array.select([0]).threads == "one"
    table = array.explain()
    assert "on one thread" in list(table["how"])


# Which way is chosen.


def _tried(array: FusedArray, took: dict[str, float], rest: float = 1.0) -> list[str]:
    """Try ways on steps that take what is said, in seconds; gives the names of the ways in order."""
    x, y = _batch()
    found = Trial(array, ways_of(array), replaying=True)
    names = []
    while not found.done:
        names.append(str(found.way))
        _step(array, F.mse_loss, x, y)
        found.took(took.get(names[-1], rest))
    return list(dict.fromkeys(names))


def test_the_fastest_way_is_found_on_one_thread_and_then_on_several() -> None:
    one = "on one thread"
    array = hfta.fuse(make(_mlp, MEMBERS, torch.float64, CPU), SEEDS)
    names = _tried(array, {"1 on one thread": 0.8, "1 side by side": 0.5, "1 with threads in every kernel": 0.9})
    assert names == [f"4 {one}", f"1 {one}", "1 with threads in every kernel", "1 side by side"]
    assert (array.block_size, array.threads) == (1, "blocks")
    assert _lanes(array) == [2]  # and what was recorded for the others has gone

    array = hfta.fuse(make(_mlp, MEMBERS, torch.float64, CPU), SEEDS)
    names = _tried(array, {f"4 {one}": 0.5, "4 with threads in every kernel": 5.0, "2 side by side": 0.49})
    assert names == [f"4 {one}", f"1 {one}", "4 with threads in every kernel", "2 side by side"]
    assert (array.block_size, array.threads) == (4, "one")  # not clearly slower, and more at once

    array = hfta.fuse(make(_mlp, MEMBERS, torch.float64, CPU), SEEDS)
    _tried(array, {"4 with threads in every kernel": 0.3})
    assert (array.block_size, array.threads) == (4, "kernels")


def test_one_member_has_a_choice_of_threads_too() -> None:
    for took, way in ((0.5, "kernels"), (0.97, "one"), (3.0, "one")):
        array = hfta.fuse(make(_mlp, 1, torch.float64, CPU), SEEDS[:1])
        names = _tried(array, {"1 with threads in every kernel": took})
        assert names == ["1 on one thread", "1 with threads in every kernel"]
        assert (array.block_size, array.threads) == (1, way)
    torch.set_num_threads(1)
    array = hfta.fuse(make(_mlp, 2, torch.float64, CPU), SEEDS[:2])
    assert _tried(array, {}) == ["2", "1"]
    assert array.threads == "kernels"
    torch.set_num_threads(2)


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
    array, other = (hfta.fuse(make(_mlp, MEMBERS, torch.float64, CPU), SEEDS) for _ in range(2))
    other.capture, other.threads = False, "one"
    x, y = _batch()
    assert set(array.tune(F.mse_loss, x, y, budget_s=0.1)) <= {1, 2, 4}
    assert array.threads in threads.WAYS
    assert any("on one thread" in how for how in array.explain()["how"])  # what was tried
    other.block_size = array.block_size
    for _ in range(4):
        torch.testing.assert_close(_step(array, F.mse_loss, x, y), _step(other, F.mse_loss, x, y), atol=1e-12, rtol=0)


def test_a_study_is_trained_and_resumed_on_the_same_threads() -> None:
    rows = [{"lr": 1e-2, "optimizer": "adam", "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}] * MEMBERS
    rows = [{**row, "lr_scheduler": "none"} for row in rows]
    x, y = _batch()

    def made() -> ArrayStep:
        return ArrayStep(hfta.fuse(make(_mlp, MEMBERS, torch.float64, CPU), SEEDS), rows, F.mse_loss, {}, epochs=1)

    step, again = made(), made()
    step.array.threads, step.array.block_size = "blocks", 2
    for _ in range(5):
        step.train(x, y)
    again.load_state(step.state())
    assert (again.array.threads, again.array.block_size) == ("blocks", 2)
    for _ in range(5):
        assert torch.equal(step.train(x, y)["loss"], again.train(x, y)["loss"])


def test_outputs_losses_and_their_backward_run_on_one_thread_too() -> None:
    arrays = [hfta.fuse(make(_mlp, MEMBERS, torch.float64, CPU), SEEDS) for _ in range(2)]
    arrays[0].threads = "one"
    arrays[1].capture = False
    x, y = _batch()
    for _ in range(5):
        for array in arrays:
            array.zero_grad()
            array.losses(F.mse_loss, array(x), y).sum().backward()
        for p, q in zip(arrays[0].parameters(), arrays[1].parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, atol=1e-12, rtol=0)
    notes = arrays[0].explain()
    assert "replayed from a recording" in list(notes["how"][notes["function"] == "array(x)"])
    with torch.no_grad():
        found = [array.eval().evaluate(F.mse_loss, x, y) for array in arrays]
    torch.testing.assert_close(*found, atol=1e-12, rtol=0)
