"""Scores of training steps are stored as part of the step: on the device, in fixed memory, without the host.

A tape records the kernels that store them and runs them again on the same memory, like a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import hfta_nb as hfta
from hfta_nb.models.accumulators import OfFunction, OfObject
from hfta_nb.models.metrics import Metric, checked
from hfta_nb.train.scores import EpochScores
from hfta_nb.train.step import ArrayStep
from hfta_nb.train.step.graph import StepGraph
from tests.contract.captured_steps import MEMBERS, ROW, StandIn, assert_same, batch, build
from tests.contract.zoo.packages import package

CLASSES = 4
EPOCH = 5  # steps


@pytest.fixture(scope="module")
def tm() -> Any:
    return package("torchmetrics")


class Tape(TorchDispatchMode):
    """Runs the kernels that were called within again, on the memory that they were called with."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._schema.name not in ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero"), func
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def run(self) -> None:
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            parts = zip(out, again, strict=True) if isinstance(out, tuple | list) else [(out, again)]
            for room, value in parts:
                if isinstance(value, Tensor) and value.untyped_storage()._cdata != room.untyped_storage()._cdata:
                    room.copy_(value)


def _rank(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(-1) == target).double().mean()


def _sums(output: Tensor, target: Tensor) -> Tensor:
    return torch.stack([(output.argmax(-1) == target).sum(), torch.ones_like(target).sum()]).double()


def _logits(output: Tensor, target: Tensor) -> Tensor:
    return output


def _metrics(tm: Any) -> dict[str, Metric]:
    accuracy = tm.classification.MulticlassAccuracy(CLASSES, average="micro", validate_args=False)
    return {
        "rank": Metric(_rank),
        "share": Metric(_sums, finish=lambda sums: sums[0] / sums[1]),
        "accuracy": Metric(_logits, accumulator=partial(OfObject, accuracy)),
        "mean": Metric(_logits, accumulator=partial(OfFunction, _best)),
    }


def _best(output: Tensor, target: Tensor) -> Tensor:
    return output.amax(-1).mean()


def _scores(metrics: dict[str, Metric], device: torch.device, steps: int = 2) -> EpochScores:
    return EpochScores(["loss", *metrics], metrics, steps, MEMBERS, torch.float64, device, counted=True)


def _given(number: int, device: torch.device) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(number)
    each = torch.randn(MEMBERS, generator=generator, dtype=torch.float64).to(device)
    logits = torch.randn(MEMBERS, 6, CLASSES, generator=generator).to(device)
    sums = torch.stack([each, each.abs() + 1], 1)
    scores = {"loss": each, "rank": each * 2, "share": sums, "accuracy": logits, "mean": logits}
    return scores, torch.randint(0, CLASSES, (6,), generator=generator).to(device)


def test_kernels_alone_keep_the_scores(tm: Any, device: torch.device) -> None:
    metrics = _metrics(tm)
    taped, plain = _scores(metrics, device, EPOCH), _scores(metrics, device, EPOCH)
    plain.counted = False
    rooms, y = _given(0, device)
    tape = Tape()
    for number in range(3 * EPOCH):
        scores, target = _given(number, device)
        for name, value in scores.items():
            rooms[name].copy_(value)
        y.copy_(target)
        step = number % EPOCH
        taped.begin(step)
        guard = taped.guard()
        if number < 3:  # what is first made is made now
            taped.take(rooms, y)
        elif number == 3:
            with tape:
                taped.take(rooms, y)
            assert tape.calls
            kept = guard
        else:
            tape.run()
            assert guard is kept
        taped.end(6)
        plain.record(step, scores, 6, target)
        if step == EPOCH - 1:
            found, wanted = taped.means(), plain.means()
            assert all(torch.equal(found[n], wanted[n]) for n in ["loss", *metrics])


def test_more_steps_than_were_foreseen_are_another_memory(device: torch.device) -> None:
    metrics = {"rank": Metric(_rank)}
    scores = _scores(metrics, device)
    marks = []
    for step in range(5):
        scores.record(step, {k: v for k, v in _given(step, device)[0].items() if k in ("loss", "rank")}, 6)
        marks.append(scores.guard())
    assert marks[0] is marks[1]
    assert len({id(m) for m in marks}) == 3
    wanted = torch.stack([_given(k, device)[0]["loss"] for k in range(5)])
    assert torch.equal(scores.rows["loss"][:5], wanted)


def _counting(tm: Any) -> Any:
    class Counting(tm.MeanMetric):  # type: ignore[misc]
        batches = 0

        def update(self, value: Any, target: Any) -> None:
            self.batches += 1
            super().update(value.float().mean())

    return Counting()


ELSEWHERE: dict[str, Callable[[Any], Any]] = {
    "all values": lambda tm: tm.classification.BinaryAveragePrecision(),
    "one within another": lambda tm: tm.MinMaxMetric(tm.MeanMetric()),
    "a sum of two": lambda tm: tm.MeanMetric() + tm.MeanMetric(),
    "it counts in Python": _counting,
}


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_what_moves_or_notes_things_elsewhere_is_kept_beside_the_step(tm: Any, kind: str) -> None:
    metrics = checked({"own": ELSEWHERE[kind](tm)})
    scores = _scores(metrics, torch.device("cpu"))
    for step in range(2):
        given = {"loss": torch.ones(MEMBERS, dtype=torch.float64), "own": torch.ones(MEMBERS, 6) * step}
        scores.record(step, given, 6, torch.ones(6, dtype=torch.int64))
    assert scores.guard() is None


def _pair(metrics: dict[str, Metric]) -> list[tuple[ArrayStep, EpochScores]]:
    made = []
    for captured in (True, False):
        torch.manual_seed(0)
        array = hfta.fuse([build().double() for _ in range(MEMBERS)], [1, 2, 3])
        step = ArrayStep(array, [ROW] * MEMBERS, nn.functional.cross_entropy, metrics, 10)
        step.graph = StepGraph(StandIn(array.generators), step.tensors) if captured else None
        scores = EpochScores(["loss", *metrics], metrics, 2, MEMBERS, torch.float64, array.generators.device, captured)
        made.append((step, scores))
    return made


def _epoch(pair: list[tuple[ArrayStep, EpochScores]], first: int, steps: int) -> None:
    found = []
    for step, scores in pair:
        for number in range(steps):
            x, y = batch(first + number)
            scores.begin(number)
            assert step.train(x, y, scores) == {}
            scores.end(len(y))
        found.append(scores.means())
    assert list(found[0]) == list(found[1])
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])
    assert_same(pair[0][0], pair[1][0])


def test_a_captured_step_keeps_its_scores(tm: Any) -> None:
    metrics = _metrics(tm)
    pair = _pair(metrics)
    for epoch in range(5):
        _epoch(pair, 100 * epoch, 8)
    step, scores = pair[0]
    assert step.graph.notes() == ["captured as one graph"]
    assert len(step.graph.backend.made) == 1
    step, scores = pair[0][0].select([0, 2]), pair[0][1]
    scores.select([0, 2])
    guard = scores.guard()
    assert guard is not None
    scores.load_state(scores.state())
    assert scores.guard() is not guard


def test_metrics_that_can_t_be_captured_leave_the_step_its_graph() -> None:
    pair = _pair(checked({"rank": _rank}))
    step, scores = pair[0]
    backend, take, capture = step.graph.backend, scores.take, step.graph.backend.capture
    taken: list[Any] = []

    def noted(values: Any, y: Any) -> None:
        taken.append(values)
        take(values, y)

    def refused(part: Any) -> Any:
        before = len(taken)
        tensors = [*step.tensors().values(), *scores.tensors()]
        streams = [dict(s) for s in step.array.generators.states]
        kept = [t.clone() for t in tensors]
        part.run()  # a capture runs the step's Python, and no kernel
        for room, value in zip(tensors, kept, strict=True):
            room.data.copy_(value)
        step.array.generators.states = streams
        if len(taken) > before:
            raise RuntimeError("operation not permitted when stream is capturing")
        return capture(part)

    scores.take = noted
    backend.capture = refused
    for epoch in range(5):
        _epoch(pair, 100 * epoch, 8)
    reason = "metrics beside the graph: operation not permitted when stream is capturing"
    assert step.graph.notes() == ["captured as one graph", reason]
    assert len(backend.made) == 1
    assert backend.made[0].runs > 10
