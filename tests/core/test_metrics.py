"""Losses and metrics by task: their values, aggregation over batches, fused equal to alone."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb import losses
from hfta_nb.models import frechet, metrics
from hfta_nb.models.losses import IGNORED
from hfta_nb.models.metrics import Metric
from hfta_nb.train.scores import EpochScores


def _whole(metric: Metric, output: Tensor, target: Tensor, parts: int = 3) -> float:
    """The metric of many batches of unequal length."""
    assert metric.finish is not None
    cuts = [0, *sorted({1, len(output) // parts}), len(output)]
    sums = [metric.function(output[a:b], target[a:b]) for a, b in itertools.pairwise(cuts)]
    return metric.finish(torch.stack(sums).sum(0)).item()


def test_area_under_the_curve_is_scikit_learns() -> None:
    from sklearn.metrics import roc_auc_score

    torch.manual_seed(0)
    target = torch.randint(0, 2, (3000,))
    for scale in (0.01, 1.0, 30.0):
        logits = scale * (torch.randn(3000) + target)
        expected = roc_auc_score(target.numpy(), logits.numpy())
        assert metrics.auroc(logits, target).item() == pytest.approx(expected, abs=2e-3)
        assert _whole(metrics.auroc, logits, target) == pytest.approx(metrics.auroc(logits, target).item(), abs=1e-7)
    assert metrics.auroc(torch.tensor([-1.0, 1.0]), torch.tensor([0, 1])).item() == 1.0
    assert metrics.auroc(torch.tensor([0.0, 0.0, 0.0]), torch.tensor([0, 1, 1])).item() == 0.5
    assert math.isnan(metrics.auroc(torch.tensor([0.0, 1.0]), torch.tensor([1, 1])).item())


def test_mean_intersection_over_union() -> None:
    target = torch.tensor([[[0, 0], [1, 1]], [[0, 0], [0, 0]]])
    guess = torch.tensor([[[0, 1], [1, 1]], [[0, 0], [0, 1]]])
    logits = F.one_hot(guess, 3).double().movedim(-1, 1)
    # Class 0: 4 of 6; class 1: 2 of 4; class 2 is nowhere and does not count.
    assert metrics.mean_iou(logits, target).item() == pytest.approx((4 / 6 + 2 / 4) / 2)
    assert _whole(metrics.mean_iou, logits, target) == pytest.approx((4 / 6 + 2 / 4) / 2)
    each = [metrics.mean_iou(logits[i : i + 1], target[i : i + 1]).item() for i in range(2)]
    assert sum(each) / 2 != pytest.approx((4 / 6 + 2 / 4) / 2)
    points = logits.flatten(2).transpose(1, 2)
    assert metrics.mean_iou(points, target.flatten(1)).item() == pytest.approx((4 / 6 + 2 / 4) / 2)
    assert metrics.accuracy(logits, target).item() == metrics.accuracy(points, target.flatten(1)).item() == 6 / 8


def test_many_classes_are_told_by_their_top_five_too(tmp_path: Path) -> None:
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, (x, torch.arange(60) % 12), epochs=2, directory=tmp_path)
    assert study.metrics[2:] == ("train_accuracy", "val_accuracy", "train_top5", "val_top5")
    assert study.monitor == "val_accuracy"
    list(study.run())
    table = study.results()
    assert (table["val_top5"] >= table["val_accuracy"]).all()
    few = hfta.Study("mlp", {"lr": [1e-3]}, (x, torch.arange(60) % 10), directory=tmp_path / "few")
    assert "val_top5" not in few.metrics


def test_perplexity_counts_tokens() -> None:
    torch.manual_seed(0)
    logits, target = torch.randn(7, 5, 11), torch.randint(0, 11, (7, 5))
    target[0] = IGNORED
    target[2, :3] = IGNORED
    kept = target != IGNORED
    expected = F.cross_entropy(logits[kept], target[kept]).exp().item()
    assert _whole(metrics.perplexity, logits, target) == pytest.approx(expected, rel=1e-5)
    hits = (logits[kept].argmax(-1) == target[kept]).float().mean().item()
    assert _whole(metrics.token_accuracy, logits, target) == pytest.approx(hits)
    loss = losses.for_task("masked_language_model")
    assert loss(logits, target).item() == pytest.approx(math.log(expected), rel=1e-5)
    assert loss(logits[:1], target[:1]).item() == 0


def test_top5_and_tuples() -> None:
    logits = torch.arange(8.0).repeat(8, 1)
    target = torch.arange(8)
    assert metrics.top5(logits, target).item() == 5 / 8
    assert metrics.top5(logits[:, :3], target.clamp(max=2)).item() == 1
    # The first of a tuple is the prediction.
    assert metrics.accuracy((logits, logits[0]), target).item() == 1 / 8
    assert losses.for_task("classification")((logits, 0), target) == F.cross_entropy(logits, target)
    assert losses.for_task("click")(torch.zeros(3), torch.tensor([0, 1, 1])).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("serial", [False, True])
def test_a_study_reports_the_whole_set(serial: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(61, 4), torch.randint(0, 2, (61,))
    data = hfta.data.from_tensors(x, y, x[:30], y[:30], task="click")

    @hfta.family(metrics={"auroc": metrics.auroc, "near": lambda out, y: ((out > 0) == y).double().mean()})
    def scorer(scale: float = 1.0) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))

    study = hfta.Study(
        "scorer",
        {"lr": [0.0, 0.1]},
        data,
        epochs=2,
        batch_size=8,
        validation_batch_size=7,
        directory=tmp_path / "run",
        dtype="float64",
        serial=serial,
    )
    list(study.run())
    found = study.results()
    for member in (0, 1):
        with torch.no_grad():
            out = study.member(member).module().double()(x[:30].double())
        expected = metrics.auroc(out, y[:30]).item()
        assert found.loc[member, "val_auroc"] == pytest.approx(expected, abs=1e-12)
        near = ((out > 0) == y[:30]).double().mean().item()
        assert found.loc[member, "val_near"] == pytest.approx(near)
    # With lr 0 training's own value is that of the whole training set.
    with torch.no_grad():
        still = study.member(0).module().double()(x.double())
    assert found.loc[0, "train_auroc"] == pytest.approx(metrics.auroc(still, y).item(), abs=1e-12)
    assert study.check([1])["equal"].all()


def test_scores_of_an_epoch_go_on_with_fewer_members() -> None:
    metrics = {"ratio": Metric(lambda o, t: o, finish=lambda sums: sums[0] / sums[1]), "mean": Metric(lambda o, t: o)}
    names = ["loss", *metrics]
    scores = EpochScores(names, metrics, 1, 3, torch.float64, torch.device("cpu"))  # of more steps than were foreseen

    def step(batch: int, loss: list[float], size: int = 4) -> None:
        each = torch.tensor(loss, dtype=torch.float64)
        ratio = torch.stack([each, torch.ones_like(each)], 1)
        scores.record(batch, {"loss": each, "mean": 2 * each, "ratio": ratio}, size)

    step(0, [9.0, 9.0, 9.0])
    step(0, [1.0, 2.0, 3.0])  # another epoch
    scores.select([0, 2])
    again = EpochScores(names, metrics, 1, 2, torch.float64, torch.device("cpu"))
    again.load_state(scores.state())
    scores = again
    step(1, [3.0, 5.0], 2)
    found = scores.means()
    assert list(found) == ["loss", "ratio", "mean"]
    assert found["loss"].tolist() == pytest.approx([(4 * 1 + 2 * 3) / 6, (4 * 3 + 2 * 5) / 6])
    assert found["mean"].tolist() == pytest.approx([2 * v for v in found["loss"].tolist()])
    assert found["ratio"].tolist() == [2.0, 4.0]


def _gaussians(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    a = torch.randn(count, 5, generator=generator, dtype=torch.float64) @ mix
    return a, torch.randn(count, 5, generator=generator, dtype=torch.float64) + 0.3


def test_frechet_distance_is_that_of_a_direct_computation() -> None:
    import numpy as np
    from scipy.linalg import sqrtm

    a, b = _gaussians(200)
    # In three parts of unequal size.
    total = torch.stack([sum(frechet.sums(v[p]) for p in (slice(50), slice(50, 53), slice(53, 200))) for v in (a, b)])
    (mean_a, spread_a), (mean_b, spread_b) = (frechet.moments(row, 5) for row in total)
    np.testing.assert_allclose(spread_a.numpy(), np.cov(a.numpy().T), atol=1e-10)
    root = sqrtm(np.cov(a.numpy().T) @ np.cov(b.numpy().T)).real
    apart = np.square(a.numpy().mean(0) - b.numpy().mean(0)).sum()
    expected = apart + np.trace(np.cov(a.numpy().T) + np.cov(b.numpy().T) - 2 * root)
    found = frechet.distance(mean_a, spread_a, mean_b, spread_b)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(expected, rel=1e-9)
    assert frechet.distance(mean_b, spread_b, mean_a, spread_a).item() == pytest.approx(expected, rel=1e-9)
    # Of diagonal covariances it is a sum over features.
    wide, narrow = torch.tensor([1.0, 4.0]).double(), torch.tensor([9.0, 0.0]).double()
    shift = torch.tensor([0.5, 0.0]).double()
    diagonal = frechet.distance(shift, wide.diag(), 0 * shift, narrow.diag())
    assert diagonal.item() == pytest.approx(0.25 + (1 - 3) ** 2 + (2 - 0) ** 2)


def test_frechet_distance_of_images() -> None:
    images = hfta.data.load("photograph_patches").x_validation[:120]
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    distance = metrics.frechet_distance
    nothing = torch.zeros(len(images))
    found = [distance((images + scale * noise, images), nothing).item() for scale in (0.0, 0.1, 0.3, 1.0)]
    assert found[0] == pytest.approx(0.0, abs=1e-6)
    assert found == sorted(found)
    assert found[1] > 1e-3
    turned = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(1))]
    assert distance((turned, images), nothing).item() == pytest.approx(0.0, abs=1e-6)
    assert distance((images.flip(-2), images), nothing).item() > 0.01  # features know where something is
    assert not distance.maximize
    assert math.isnan(distance((images * math.nan, images), nothing).item())
    assert torch.equal(frechet.features(images[:2]), frechet.features(images[:2]))
    assert frechet.features(images[:2]).shape == (2, frechet.FEATURES)
    known = frechet.features(torch.linspace(-1, 1, 3 * 8 * 8).view(1, 3, 8, 8)).sum().item()
    assert known == pytest.approx(12.02416144879375, rel=1e-6)  # the same network everywhere


def test_frechet_distance_per_member() -> None:
    class Blur(nn.Module):
        def __init__(self, gain: float) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.tensor(gain, dtype=torch.float64))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.gain * x, x

    x = torch.rand(40, 3, 16, 16, dtype=torch.float64) * 2 - 1
    gains = [1.0, 0.5, 0.2]
    array = hfta.fuse([Blur(g) for g in gains])
    sums = array.evaluate(metrics.frechet_distance.function, x)
    assert sums.shape[:2] == (3, 2)
    finish = metrics.frechet_distance.finish
    assert finish is not None
    for row, gain in zip(sums, gains, strict=True):
        assert finish(row).item() == pytest.approx(metrics.frechet_distance((gain * x, x), None).item(), abs=1e-10)
