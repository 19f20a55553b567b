"""Training steps on a GPU: they never wait for the device, and each step is one graph.

On a CPU, the same steps run without a graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.models.accumulators import OfFunction
from hfta_nb.models.metrics import Metric
from hfta_nb.models.phases import Phase
from hfta_nb.train.scores import EpochScores
from hfta_nb.train.step import ArrayStep, Precision
from tests.contract.captured_steps import Pair

MEMBERS = 3
SETTLED = 12
"""Steps after which a step is captured: some as ever, recorded, bound, warming up."""
ROW = {
    "optimizer": "adam", "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "momentum": 0.9,
    "nesterov": False, "lr_scheduler": "none", "t_max": None, "eta_min": 0.0, "step_size": 1, "gamma": 0.5,
}  # fmt: skip

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@contextmanager
def nothing_waits(device: torch.device) -> Iterator[None]:
    """Within, it is an error to wait for the GPU."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _build() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Dropout(0.2), nn.Linear(36, 5))  # fmt: skip


def _right(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(-1) == target).float().mean()


def _hits(output: Tensor, target: Tensor) -> Tensor:
    hits = output.argmax(-1) == target
    return torch.stack([hits.sum(), torch.ones_like(hits).sum()]).float()


def _logits(output: Tensor, target: Tensor) -> Tensor:
    return output


def _largest(output: Tensor, target: Tensor) -> Tensor:
    return output.amax(-1).mean()


METRICS = {
    "right": Metric(_right),
    "share": Metric(_hits, finish=lambda sums: sums[0] / sums[1]),
    "largest": Metric(_logits, accumulator=partial(OfFunction, _largest)),  # member by member, in Python
}
CASES: dict[str, dict[str, Any]] = {
    "adam": {},
    "adamw": {"optimizer": "adamw"},
    "sgd": {"optimizer": "sgd"},
    "clipping": {"max_norm": [None, 0.1, 1.0]},
    "drops at different epochs": {"lr_scheduler": "step", "step_size": [1, 2, 2], "lr": 0.01},
    "cosine": {"lr_scheduler": "cosine", "optimizer": "sgd", "max_norm": 1.0},
}


def _step(device: torch.device, precision: str = "fp32", **row: Any) -> tuple[ArrayStep, EpochScores]:
    torch.manual_seed(0)
    array = hfta.fuse([_build().to(device) for _ in range(MEMBERS)], [1, 2, 3])
    row = {"lr": [1e-2, 2e-2, 5e-3], **row}
    rows = [{**ROW, **{k: v[i] if isinstance(v, list) else v for k, v in row.items()}} for i in range(MEMBERS)]
    step = ArrayStep(array, rows, nn.functional.cross_entropy, METRICS, 10, Precision(precision, device))
    scores = EpochScores(["loss", *METRICS], METRICS, SETTLED, MEMBERS, torch.float32, device)
    return step, scores


def _batch(number: int, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(8, 2, 8, 8, generator=generator)
    return x.to(device), torch.randint(0, 5, (8,), generator=generator).to(device)


def _epoch(step: ArrayStep, scores: EpochScores, batches: list[tuple[Tensor, Tensor]]) -> None:
    for number, (x, y) in enumerate(batches):
        scores.begin(number)
        step.train(x, y, scores)
        scores.end(len(x))
    step.end_epoch()


def _precisions(device: torch.device) -> list[str]:
    return ["fp32", "tf32", "bf16", "fp16"] if device.type == "cuda" else ["fp32", "bf16"]


@pytest.mark.only(case=["clipping", "cosine"])
@pytest.mark.parametrize("case", CASES)
def test_no_step_waits_for_the_device(case: str, device: torch.device) -> None:
    for precision in _precisions(device):
        step, scores = _step(device, precision, **CASES[case])
        batches = [_batch(n, device) for n in range(SETTLED)]
        _epoch(step, scores, batches)
        with nothing_waits(device):
            for _ in range(4):
                _epoch(step, scores, batches[:4])
        found = scores.means()
        assert all(value.isfinite().all() for value in found.values()), precision
        assert device.type == "cpu" or step.graph is not None
        if step.graph is not None:
            assert step.graph.notes() == ["captured as one graph"], precision


@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("case", CASES)
def test_the_graph_computes_what_the_step_computes(case: str, precision: str) -> None:
    device = torch.device("cuda", 0)
    found = []
    for captured in (True, False):
        step, scores = _step(device, precision, **CASES[case])
        step.graph = step.graph if captured else None
        means = []
        for epoch in range(5):
            _epoch(step, scores, [_batch(100 * epoch + n, device) for n in range(6)])
            means.append(torch.stack(list(scores.means().values())))
        found.append((step, torch.stack(means)))
    (one, means), (other, wanted) = found
    assert one.graph is not None
    assert one.graph.notes() == ["captured as one graph"]
    torch.testing.assert_close(means, wanted, rtol=1e-3 if precision == "fp32" else 5e-2, atol=0.05)
    for a, b in zip(one.array.generators.states, other.array.generators.states, strict=True):
        assert all(torch.equal(a[k], b[k]) for k in a)  # the same random numbers
    assert one.updates[0].optimizer.rows(0, "lr") == other.updates[0].optimizer.rows(0, "lr")


@needs_gpu
def test_surgery_and_other_sizes_are_captured_anew() -> None:
    device = torch.device("cuda", 0)
    step, scores = _step(device, lr_scheduler="cosine")
    batches = [_batch(n, device) for n in range(SETTLED)]
    _epoch(step, scores, batches)
    step.array.copy_member(0, 1)
    _epoch(step, scores, batches)
    step = step.select([2, 0])
    scores.select([2, 0])
    _epoch(step, scores, batches)
    _epoch(step, scores, [(x[:5], y[:5]) for x, y in batches])
    assert step.graph is not None
    assert step.graph.notes() == ["captured as one graph"]
    assert scores.means()["loss"].isfinite().all()


def test_phases_keep_the_loss_of_those_that_are_not_due(device: torch.device) -> None:
    loss = nn.functional.cross_entropy
    phases = [Phase("first", ["one"], loss), Phase("second", ["two"], loss, every=2)]
    array = hfta.fuse([Pair().to(device) for _ in range(MEMBERS)], [1, 2, 3])
    rows = [{**ROW, "lr": 0.01, "max_norm": 1.0}] * MEMBERS
    step = ArrayStep(array, rows, phases, {}, 10)
    scores = EpochScores(["loss", "first_loss", "second_loss"], {}, 24, MEMBERS, torch.float32, device)
    x, y = torch.randn(8, 6, device=device), torch.randint(0, 4, (8,), device=device)
    _epoch(step, scores, [(x, y)] * 24)
    kept = scores.rows["second_loss"]
    assert torch.equal(kept[1::2], kept[::2])
    assert torch.allclose(scores.rows["loss"], scores.rows["first_loss"] + kept)
    assert bool((scores.rows["first_loss"][1:] != scores.rows["first_loss"][:-1]).all())


@needs_gpu
@pytest.mark.parametrize("size", [1, 2, MEMBERS])
def test_blocks_of_members_are_captured(size: int) -> None:
    device = torch.device("cuda", 0)
    step, scores = _step(device)
    plain, wanted = _step(device)
    step.array.block_size = size
    plain.graph = None
    for one, kept in ((step, scores), (plain, wanted)):
        _epoch(one, kept, [_batch(n, device) for n in range(20)])
    assert step.graph is not None
    assert step.graph.notes() == ["captured as one graph"]
    torch.testing.assert_close(scores.means()["loss"], wanted.means()["loss"], rtol=1e-2, atol=1e-2)


@needs_gpu
def test_a_person_s_own_stream() -> None:
    """Data that come from another thread and stream, and a run within a stream that is not the default one."""
    x = torch.randn(256, 6)
    data = x, (x[:, 0] > 0).long()
    curves = []
    for stream in (None, torch.cuda.Stream()):
        study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, data=data, epochs=3, batch_size=16, device="cuda")
        with torch.cuda.stream(stream):
            list(study.run())
        curves.append(study.results()["val_loss"].tolist())
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)
