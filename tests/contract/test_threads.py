"""Steps on one thread, and blocks of members in parallel: bitwise equal to the same blocks in sequence."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import hfta_nb as hfta
from hfta_nb.engine.members import threads
from hfta_nb.engine.replay.parallel_branches import branches_of
from hfta_nb.engine.replay.record import Recorder
from tests.contract.branches import CPU, MEMBERS, SEEDS, batch, branches, pair
from tests.contract.replay import NOT, backward, mlp, same
from tests.contract.rows import MODULES, ModuleRow
from tests.contract.serial import loss_of, make, target_for

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.mark.each("row", every=2)
@pytest.mark.parametrize("block", [2, 1])
@pytest.mark.parametrize("row", MODULES, ids=lambda r: r.name)
def test_blocks_side_by_side_are_those_in_turn(row: ModuleRow, block: int) -> None:
    array, other = pair(row.build, block=block)
    target = target_for(row.build().to(torch.float64), row.x())
    for step in range(6):
        x, y = row.x(), target + step
        assert torch.equal(backward(array, loss_of, x, y), backward(other, loss_of, x, y))
        same(array, other, 0)
    if row.name not in NOT:
        assert branches(array) == [2]
    assert set(branches(other)) <= {0, 1}


def test_random_numbers_statistics_and_float32_are_those_in_turn() -> None:
    array, other = pair(mlp, torch.float32, block=1)
    for _ in range(8):
        x, y = batch(torch.float32)
        losses, wanted = backward(array, F.mse_loss, x, y), backward(other, F.mse_loss, x, y)
        assert torch.equal(losses, wanted)
        same(array, other, 0)
    assert branches(array) == [2]


def test_members_that_do_not_divide_and_more_threads_than_blocks() -> None:
    x, y = batch()
    for count, block, wanted in ((2, 3, 2), (4, 1, 4), (8, 2, 2), (3, 1, 3), (2, 4, 1)):
        torch.set_num_threads(count)
        array, other = pair(mlp, block=block)
        for _ in range(5):
            assert torch.equal(backward(array, F.mse_loss, x, y), backward(other, F.mse_loss, x, y))
            same(array, other, 0)
        assert branches(array) == [wanted]
    torch.set_num_threads(2)


def test_another_number_of_threads_is_another_program() -> None:
    array, other = pair(mlp, block=1)
    x, y = batch()
    for count in (2, 1, 2):
        torch.set_num_threads(count)
        for _ in range(4):
            assert torch.equal(backward(array, F.mse_loss, x, y), backward(other, F.mse_loss, x, y))
    assert branches(array) == [2, 1]


def test_a_member_that_diverges_harms_no_other() -> None:
    array, other = pair(mlp)
    x, y = batch()
    for step in range(6):
        if step == 4:
            with torch.no_grad():
                array.get_parameter("0.weight")[1] = torch.nan
        losses, wanted = backward(array, F.mse_loss, x, y), backward(other, F.mse_loss, x, y)
        rows = [0, 1, 2, 3] if step < 4 else [0, 2, 3]
        assert torch.equal(losses[rows], wanted[rows])
        for p, q in zip(array.parameters(), other.parameters(), strict=True):
            assert p.grad is not None
            assert q.grad is not None
            assert torch.equal(p.grad[rows], q.grad[rows])
    assert losses[1].isnan()


@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("branch", [0, 1])
def test_an_error_in_a_block_leaves_all_as_it_was(branch: int, error: BaseException) -> None:
    array, other = pair(mlp)
    x, y = batch()
    for _ in range(4):
        backward(array, F.mse_loss, x, y)
        backward(other, F.mse_loss, x, y)
    program = next(iter(array._calls.steps)).program
    assert program is not None
    assert program.branches is not None
    ended = []

    def fails() -> None:
        raise error

    def late() -> None:
        time.sleep(0.05)
        ended.append(True)

    program.branches.branches[branch].insert(8, fails)
    program.branches.branches[1 - branch].append(late)
    if isinstance(error, Exception):
        # As ever, from where it was.
        assert torch.equal(backward(array, F.mse_loss, x, y), backward(other, F.mse_loss, x, y))
        assert branches(array) == [0]
    else:
        with pytest.raises(KeyboardInterrupt):
            backward(array, F.mse_loss, x, y)
        program.branches.branches[branch].remove(fails)
        assert torch.equal(backward(array, F.mse_loss, x, y), backward(other, F.mse_loss, x, y))
    assert ended
    same(array, other, 0)


def test_a_profiler_sees_every_block_and_numbers_stay() -> None:
    array, other = pair(mlp, block=1)
    x, y = batch()
    for _ in range(4):
        backward(array, F.mse_loss, x, y)
        backward(other, F.mse_loss, x, y)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        losses = backward(array, F.mse_loss, x, y)
    assert torch.equal(losses, backward(other, F.mse_loss, x, y))
    assert sum(e.count for e in profiled.key_averages() if e.key == "aten::native_batch_norm") == MEMBERS
    assert branches(array) == [2]


def test_autocast_and_deterministic_algorithms() -> None:
    array, other = pair(mlp, torch.float32)
    x, y = batch(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(5):
                assert torch.equal(backward(array, F.mse_loss, x, y), backward(other, F.mse_loss, x, y))
                same(array, other, 0)
    finally:
        torch.use_deterministic_algorithms(False)
    assert branches(array) == [2]


def test_while_another_caller_has_the_threads_blocks_run_in_turn() -> None:
    array, other = pair(mlp)
    x, y = batch()
    for _ in range(4):
        backward(array, F.mse_loss, x, y)
        backward(other, F.mse_loss, x, y)
    busy, free = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        assert free.wait(60)

    holder = threading.Thread(target=threads.run_parallel, args=([lambda: None, hold],))
    holder.start()
    assert busy.wait(60)
    try:
        assert torch.equal(backward(array, F.mse_loss, x, y), backward(other, F.mse_loss, x, y))
    finally:
        free.set()
        holder.join()
    same(array, other, 0)
    assert branches(array) == [2]


def test_optimizer_steps_and_learning_rates_per_member() -> None:
    arrays = pair(mlp)
    made = [hfta.optim.Adam(a, lr=[1e-2, 2e-2, 3e-2, 4e-2], fused=True) for a in arrays]
    x, y = batch()
    for _ in range(6):
        for array, optimizer in zip(arrays, made, strict=True):
            optimizer.zero_grad()
            array.backward(F.mse_loss, x, y)
            optimizer.step()
        for p, q in zip(arrays[0].parameters(), arrays[1].parameters(), strict=True):
            assert torch.equal(p, q)


# Which calls are branches.


def _recorded(blocks: Any) -> Any:
    """What functions without arguments call, each a block."""
    recorder = Recorder(CPU)
    recorder.trace.branches = len(blocks)
    with torch.no_grad(), recorder:
        for block in blocks:
            block()
            recorder.trace.blocks.append(len(recorder.trace.calls))
    return branches_of(recorder.trace, recorder.trace.calls, ())


def test_blocks_that_depend_on_each_other_are_no_branches() -> None:
    shared, rows, made = torch.zeros(4), torch.zeros(4, 3), []
    assert _recorded([lambda: shared.sin(), lambda: shared.cos()]) == [0, 1]
    assert _recorded([lambda: rows[:2].add_(1), lambda: rows[2:].add_(1)]) == [0, 1]
    assert _recorded([lambda: rows[:2].add_(1), lambda: rows[1:].add_(1)]) is None
    assert _recorded([lambda: shared.add_(1), lambda: shared.cos()]) is None
    assert _recorded([lambda: shared.cos(), lambda: shared.add_(1)]) is None
    assert _recorded([lambda: rows[:, 0].add_(1), lambda: rows[:, 1].add_(1)]) is None  # not next to each other
    assert _recorded([lambda: made.append(shared.cos()), lambda: made[0].sin()]) is None
    assert _recorded([lambda: shared.sin()]) is None


def test_outputs_losses_and_their_backward_run_on_one_thread_too() -> None:
    arrays = [hfta.fuse(make(mlp, MEMBERS, torch.float64, CPU), SEEDS) for _ in range(2)]
    arrays[0].threads = "one"
    arrays[1].capture = False
    x, y = batch()
    for _ in range(5):
        for array in arrays:
            array.zero_grad()
            array.losses(F.mse_loss, array(x), y).sum().backward()
        for p, q in zip(arrays[0].parameters(), arrays[1].parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, atol=1e-12, rtol=0)
    notes = arrays[0].explain()
    assert "recorded" in list(notes["how"][notes["function"] == "array(x)"])
    with torch.no_grad():
        found = [array.eval().evaluate(F.mse_loss, x, y) for array in arrays]
    torch.testing.assert_close(*found, atol=1e-12, rtol=0)
