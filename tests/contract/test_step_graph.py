"""Captured steps: when they are captured, captured again or given up, and that they equal uncaptured steps.

On a CPU, a stand-in captures: it runs the step again on the memory that it was captured with. Decisions, and the
restoration after a failure, are the same. If there is a GPU, the backend is a CUDA graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import MemberGenerators
from hfta_nb.engine.kernels.capture import MOST_FAILURES, Part
from hfta_nb.models.phases import Phase
from hfta_nb.train.scores import EpochScores
from hfta_nb.train.step import ArrayStep, PlainStep, Precision
from hfta_nb.train.step.graph import WARM_STEPS
from tests.contract.captured_steps import (
    CPU,
    MEMBERS,
    ROW,
    SETTLED,
    Captured,
    Pair,
    assert_same,
    batch,
    build,
    graph_of,
    steps_of,
    train_both,
)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_a_step_is_captured_once_and_then_run(optimizer: str) -> None:
    step, plain = steps_of(CPU, optimizer=optimizer)
    train_both([step, plain], range(20))
    backend = step.graph.backend
    assert len(backend.made) == 1
    assert backend.made[0].runs > 10
    assert backend.warmed == WARM_STEPS
    how = step.array.explain().set_index("function")["how"]
    assert how["training step"] == "captured as one graph"
    assert int(step.updates[0].optimizer.state_of(1)["state"][0].get("step", 20)) == 20


@pytest.mark.parametrize("kept", [False, True])
def test_a_captured_step_costs_the_host_the_same_whatever_the_members(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither are their random streams read, nor the inputs taken apart anew."""

    class Unread:
        def get_state(self) -> Tensor:
            raise AssertionError("a stream is read")

    step, plain = steps_of(CPU)
    scores = [EpochScores(["loss", "right"], step._metrics, 20, MEMBERS, torch.float64, CPU, True) for _ in range(2)]

    def train(numbers: range) -> None:
        for number in numbers:
            for one, keep in zip((step, plain), scores, strict=True):
                keep.begin(number)
                one.train(*batch(number), keep if kept else None)
                keep.end(5)

    train(range(SETTLED + 1))
    captured = step.graph.backend.made[0]
    with monkeypatch.context() as patch:
        patch.setattr(step, "_guards", lambda *_: pytest.fail("all is looked at anew"))
        train(range(SETTLED + 1, 14))
        patch.setattr(captured, "run", dict)
        patch.setattr(step.array.generators, "own", [Unread()] * MEMBERS)
        step.train(*batch(14), scores[0] if kept else None)
    assert_same(step, plain)
    for name in ("loss", "right"):
        assert torch.equal(scores[0].rows[name][:14], scores[1].rows[name][:14])


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_streams_are_registered_where_a_step_draws(rate: float) -> None:
    array = hfta.fuse([nn.Sequential(nn.Linear(6, 4), nn.Dropout(rate)).double() for _ in range(MEMBERS)], [1, 2, 3])
    step = ArrayStep(array, [ROW] * MEMBERS, nn.functional.cross_entropy, {}, 10)
    step.graph = graph_of(step)
    for number in range(SETTLED + 1):
        step.train(*batch(number))
    assert step.graph.notes() == ["captured as one graph"]
    assert step.graph.backend.draws is bool(rate)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_clipping_is_part_of_the_step(precision: str) -> None:
    pair, alone = [], []
    limits = [None, 0.05, 0.5]
    for captured in (True, False):
        torch.manual_seed(0)
        modules = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(MEMBERS)]
        rows = [{**ROW, "optimizer": "sgd", "lr": 0.5, "max_norm": limit} for limit in limits]
        make = Precision(precision)
        if captured:
            seeded = [MemberGenerators.seeded([i], CPU) for i in range(MEMBERS)]
            loss = nn.functional.cross_entropy
            alone = [
                PlainStep(copy.deepcopy(m), r, loss, {}, 10, g, make)
                for m, r, g in zip(modules, rows, seeded, strict=True)
            ]
        step = ArrayStep(hfta.fuse(modules, [1, 2, 3]), rows, nn.functional.cross_entropy, {}, 10, make)
        step.graph = graph_of(step) if captured else None
        pair.append(step)
    for number in range(14):
        x, y = batch(number)
        losses = [step.train(x.float(), y)["loss"] for step in pair]
        assert torch.equal(*losses)
        own = torch.cat([step.train(x.float(), y)["loss"] for step in alone])
        torch.testing.assert_close(losses[0], own, rtol=1e-5 if precision == "fp32" else 2e-2, atol=1e-5)
    assert_same(*pair)
    assert pair[0].graph.notes() == ["captured as one graph"]
    free = ArrayStep(hfta.fuse(modules, [1, 2, 3]), [{**r, "max_norm": None} for r in rows], loss, {}, 10, make)
    for number in range(14):
        x, y = batch(number)
        last = free.train(x.float(), y)["loss"]
    assert torch.allclose(last[0], losses[0][0], rtol=1e-5)
    assert not torch.allclose(last[1:], losses[0][1:], rtol=1e-2)


def test_a_batch_of_another_size_is_another_kind() -> None:
    step, plain = steps_of(CPU)
    train_both([step, plain], range(12))
    train_both([step, plain], range(12, 24), size=3)
    train_both([step, plain], range(24, 28))
    assert len(step.graph.backend.made) == 2


def test_scores_stay_as_they_were_given() -> None:
    step, _ = steps_of(CPU)
    kept = [step.train(*batch(n)) for n in range(12)]
    before = [{k: v.clone() for k, v in scores.items()} for scores in kept]
    step.train(*batch(12))
    for old, now in zip(before, kept, strict=True):
        assert all(torch.equal(old[k], now[k]) for k in old)


def test_learning_rates_go_on_changing() -> None:
    step, plain = steps_of(CPU)
    for epoch in range(4):
        train_both([step, plain], range(epoch * 24, epoch * 24 + 24))
        for one in (step, plain):
            one.end_epoch()
    assert len(step.graph.backend.made) == 4  # on a CPU a learning rate is part of the call


def _selected(step: ArrayStep) -> ArrayStep:
    other = step.select([2, 0])
    assert other.graph is None  # this is a CPU
    other.graph = graph_of(other) if step.graph is not None else None
    return other


def _copied(step: ArrayStep) -> ArrayStep:
    step.array.copy_member(0, 1)
    return step


def _loaded(step: ArrayStep) -> ArrayStep:
    step.load_state(step.state())
    return step


def _other_blocks(step: ArrayStep) -> ArrayStep:
    step.array.block_size = 1
    return step


def _evaluated(step: ArrayStep) -> ArrayStep:
    step.evaluate(*batch(99))
    return step


def _frozen(step: ArrayStep) -> ArrayStep:
    step.array.get_parameter("0.bias").requires_grad_(False)
    return step


def _rate_of_dropout(step: ArrayStep) -> ArrayStep:
    step.array.get_submodule("3").p = 0.6
    return step


def _without_a_gradient(step: ArrayStep) -> ArrayStep:
    step.array.get_parameter("0.bias").grad = None
    return step


def _other_decay(step: ArrayStep) -> ArrayStep:
    step.updates[0].optimizer.param_groups[0]["weight_decay"] = 0.1
    return step


CHANGES = [_selected, _copied, _loaded, _other_blocks, _evaluated, _frozen, _rate_of_dropout]
CHANGES += [_without_a_gradient, _other_decay]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__.strip("_"))
def test_what_changes_between_two_steps_is_noticed(change: Callable[[ArrayStep], ArrayStep]) -> None:
    pair = list(steps_of(CPU))
    train_both(pair, range(12))
    pair = [change(step) for step in pair]
    train_both(pair, range(12, 26))
    assert pair[0].graph.notes() == ["captured as one graph"]


def test_random_streams_that_are_set_are_taken_over() -> None:
    step, plain = steps_of(CPU)
    train_both([step, plain], range(12))
    for one in (step, plain):
        one.array.generators.keep(1, {"cpu": torch.Generator().manual_seed(77).get_state()})
    train_both([step, plain], range(12, 18))
    assert step.graph.notes() == ["captured as one graph"]


def test_a_capture_that_no_longer_stands_is_made_anew_at_once() -> None:
    step, plain = steps_of(CPU)
    train_both([step, plain], range(12))
    backend = step.graph.backend
    backend.made[0].standing = False
    train_both([step, plain], range(12, 16))
    assert len(backend.made) == 2
    assert backend.warmed == WARM_STEPS


def test_what_can_t_be_captured_runs_as_ever_and_is_told() -> None:
    step, plain = steps_of(CPU, fails="operation not permitted when stream is capturing\nmore of that")
    train_both([step, plain], range(12))
    assert step.graph.notes() == ["not captured: operation not permitted when stream is capturing"]
    assert "not captured: operation not permitted when stream is capturing" in set(step.array.explain()["how"])


@pytest.mark.parametrize("what", ["scores", "weights", "error"])
def test_a_capture_that_does_something_else_is_not_used_and_leaves_no_trace(what: str) -> None:
    step, plain = steps_of(CPU)
    backend = step.graph.backend
    capture = backend.capture

    def wrong(part: Part) -> Captured:
        made = capture(part)
        run = made.run

        def other() -> Any:
            scores = run()
            if what == "error":
                raise RuntimeError("lost")
            if what == "weights":
                step.array.arenas[0].data.add_(1e-3)
            return {k: v + 1 if what == "scores" else v for k, v in scores.items()}

        made.run = other
        return made

    backend.capture = wrong
    train_both([step, plain], range(14))
    reason = "lost" if what == "error" else "captured, it gives other numbers"
    [note] = step.graph.notes()
    assert note.startswith(f"not captured: {reason}")


def test_a_step_that_is_not_replayed_is_not_captured() -> None:
    step, plain = steps_of(CPU)
    for one in (step, plain):
        one.array.capture = False
    train_both([step, plain], range(12))
    assert step.graph.backend.made == []


def test_what_changes_again_and_again_is_let_alone() -> None:
    step, plain = steps_of(CPU)
    epochs = MOST_FAILURES + 3
    for epoch in range(epochs):
        start = epoch * SETTLED
        train_both([step, plain], range(start, start + SETTLED))
        for one in (step, plain):
            one.end_epoch()
    assert len(step.graph.backend.made) == MOST_FAILURES
    assert "not captured: what it depends on changes again and again" in step.graph.notes()


@pytest.mark.parametrize("fails", ["", "not here"])
def test_loss_scales_go_on_changing(fails: str) -> None:
    pair = []
    for captured in (True, False):
        torch.manual_seed(0)
        array = hfta.fuse([build() for _ in range(MEMBERS)], [1, 2, 3])
        step = ArrayStep(array, [ROW] * MEMBERS, nn.functional.cross_entropy, {}, 10, Precision("fp16"))
        step.scaler = hfta.optim.GradScaler(array, init_scale=[2.0**22, 2.0**10, 2.0**20], growth_interval=3)
        step.graph = graph_of(step, fails) if captured else None
        pair.append(step)
    for number in range(24):
        x, y = batch(number)
        losses = [step.train(x.float(), y)["loss"] for step in pair]
        assert torch.equal(*losses)
        assert pair[0].scaler.get_scale() == pair[1].scaler.get_scale()
    assert_same(*pair)
    assert pair[0].scaler.get_scale()[0] < 2.0**22
    assert pair[0].scaler.get_scale()[1] > 2.0**10
    assert pair[0].graph.notes() == ["captured as one graph" if not fails else "not captured: not here"]


def test_phases_of_another_pace() -> None:
    loss = nn.functional.cross_entropy
    phases = [Phase("first", ["one"], loss), Phase("second", ["two"], loss, every=2)]
    pair = []
    for captured in (True, False):
        torch.manual_seed(0)
        array = hfta.fuse([Pair().double() for _ in range(MEMBERS)], [1, 2, 3])
        step = ArrayStep(array, [ROW] * MEMBERS, phases, {}, 10)
        step.graph = graph_of(step) if captured else None
        pair.append(step)
    train_both(pair, range(40))
    assert len(pair[0].graph.backend.made) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_on_a_gpu_the_step_is_one_cuda_graph(optimizer: str) -> None:
    device = torch.device("cuda", 0)
    pair = []
    for captured in (True, False):
        torch.manual_seed(0)
        array = hfta.fuse([build().to(device) for _ in range(MEMBERS)], [1, 2, 3])
        rows = [{**ROW, "optimizer": optimizer, "lr": lr} for lr in (1e-2, 2e-2, 5e-3)]
        step = ArrayStep(array, rows, nn.functional.cross_entropy, {}, 10)
        step.graph = step.graph if captured else None
        pair.append(step)
    for epoch in range(3):
        for number in range(epoch * 12, epoch * 12 + 12):
            x, y = (v.to(device) for v in batch(number))
            losses = [step.train(x.float(), y)["loss"] for step in pair]
            assert torch.allclose(*losses, rtol=1e-4)
        for step in pair:
            step.end_epoch()
    assert pair[0].graph.notes() == ["captured as one graph"]
    for a, b in zip(pair[0].array.parameters(), pair[1].array.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)
    for one, other in zip(pair[0].array.generators.states, pair[1].array.generators.states, strict=True):
        assert all(torch.equal(one[k], other[k]) for k in one)
