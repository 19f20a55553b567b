"""Missing targets: losses and metrics leave them out, their gradient is zero, and denominators are of whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb import losses
from hfta_nb.data.order import order
from hfta_nb.errors import DataError, FamilyError
from hfta_nb.models import metrics
from hfta_nb.models.losses import IGNORED, for_task
from hfta_nb.models.model_zoo.unet import build

N, C = 6, 4
KNOWN = torch.tensor([True, False, True, True, False, True])
CLASSES = torch.tensor([0, 3, 1, 2, 2, 3])
OTHERS = torch.tensor([0, 1, 1, 2, 0, 3])  # other classes where nothing is known
NUMBERS = torch.linspace(-1, 1, N * C, dtype=torch.float64).view(N, C)
BITS = (NUMBERS > 0).double()
SMOOTHING, DELTAS = [0.0, 0.1, 0.5], [0.1, 1.0, 3.0]


def _huber(out: Tensor, y: Tensor, i: int) -> Tensor:
    return F.huber_loss(out, y, delta=DELTAS[i])


def _smooth(out: Tensor, y: Tensor, i: int) -> Tensor:
    return F.cross_entropy(out, y, label_smoothing=SMOOTHING[i])


ROWS: dict[str, tuple[Any, Callable[[Tensor, Tensor, int], Tensor], Tensor]] = {
    "classification": (for_task("classification"), lambda o, y, i: F.cross_entropy(o, y), CLASSES),
    "shares": (for_task("classification"), lambda o, y, i: F.cross_entropy(o, y), NUMBERS.softmax(-1)),
    "regression": (for_task("regression"), lambda o, y, i: F.mse_loss(o, y), NUMBERS),
    "click": (for_task("click"), lambda o, y, i: F.binary_cross_entropy_with_logits(o, y), BITS),
    "cross_entropy": (losses.NamedLoss("cross_entropy"), lambda o, y, i: F.cross_entropy(o, y), CLASSES),
    "l1": (losses.NamedLoss("l1"), lambda o, y, i: F.l1_loss(o, y), NUMBERS),
    "bce": (losses.NamedLoss("bce"), lambda o, y, i: F.binary_cross_entropy_with_logits(o, y), BITS),
    "huber": (losses.huber_loss(delta=DELTAS), _huber, NUMBERS),
    "smoothing": (losses.cross_entropy(label_smoothing=SMOOTHING), _smooth, CLASSES),
    "smoothed shares": (losses.cross_entropy(label_smoothing=SMOOTHING), _smooth, NUMBERS.softmax(-1)),
}
rows = pytest.mark.parametrize("row", ROWS)


def _missing(y: Tensor, known: Tensor) -> Tensor:
    """The targets, with what says that they are missing elsewhere."""
    away = torch.nan if y.is_floating_point() else IGNORED
    return torch.where(known.view(-1, *[1] * (y.ndim - 1)), y, away)


def _array() -> tuple[hfta.FusedArray, list[nn.Module]]:
    modules = []
    for seed in range(3):
        torch.manual_seed(seed)
        modules.append(nn.Linear(5, C).double())
    return hfta.fuse(modules), modules


X = torch.randn(N, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@rows
@pytest.mark.parametrize("masked", [False, True], ids=["marked", "masked"])
def test_what_is_missing_does_not_count(row: str, masked: bool) -> None:
    loss, plain, y = ROWS[row]
    target: Any = {"y": y, "mask": KNOWN} if masked else _missing(y, KNOWN)
    array, modules = _array()
    for _ in range(3):  # the last ones are replayed
        array.zero_grad()
        found = array.backward(loss, X, target)
    for i, module in enumerate(modules):
        value = plain(module(X[KNOWN]), y[KNOWN], i)
        value.backward()
        torch.testing.assert_close(found[i], value.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(array.weight.grad[i], module.weight.grad, rtol=1e-12, atol=1e-12)


@rows
def test_gradients_are_zero_and_labels_change_nothing(row: str) -> None:
    loss, _, y = ROWS[row]
    if isinstance(loss, losses.MemberLoss):
        loss = losses.MemberLoss(loss.function, loss.formula, **loss.shared, **{k: v[1] for k, v in loss.own.items()})
    other = OTHERS if not y.is_floating_point() else torch.where(KNOWN.unsqueeze(1), y, 0.5)
    found = []
    for labels in (y, other):
        output = X[:, :C].clone().requires_grad_()
        value = loss(output, {"labels": labels, "mask": KNOWN.int()})
        value.backward()
        assert output.grad is not None
        assert bool((output.grad[~KNOWN] == 0).all())
        assert bool((output.grad[KNOWN] != 0).any())
        found.append((value.detach(), output.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@rows
def test_a_mask_of_ones_and_one_of_zeros(row: str) -> None:
    loss, plain, y = ROWS[row]
    array, modules = _array()
    ones = array.backward(loss, X, {"y": y, "mask": torch.ones(N)})
    for i, module in enumerate(modules):
        torch.testing.assert_close(ones[i], plain(module(X), y, i).detach(), rtol=1e-12, atol=1e-12)
    array.zero_grad()
    for target in (_missing(y, KNOWN & False), {"y": y, "mask": torch.zeros(N)}):
        assert array.backward(loss, X, target).tolist() == [0, 0, 0]
        assert bool((array.weight.grad == 0).all())


def test_metrics_are_those_of_what_is_known() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(40, 7, dtype=torch.float64), torch.randint(7, (40,))
    known = torch.rand(40) > 0.4
    for metric in (metrics.accuracy, metrics.top5, metrics.mean_iou, metrics.perplexity, metrics.token_accuracy):
        expected = metric(logits[known], labels[known])
        for target in (torch.where(known, labels, IGNORED), {"y": labels, "mask": known}):
            torch.testing.assert_close(metric(logits, target), expected)
    scores, hits, numbers = logits[:, 0], labels % 2, logits[:, 1]
    expected = metrics.auroc(scores[known], hits[known])
    torch.testing.assert_close(metrics.auroc(scores, {"y": hits, "mask": known}), expected)
    torch.testing.assert_close(metrics.auroc(scores, torch.where(known, hits, IGNORED)), expected)
    expected = (scores - numbers)[known].abs().mean()
    torch.testing.assert_close(metrics.mae(scores, torch.where(known, numbers, torch.nan)), expected)
    assert metrics.accuracy(logits, torch.full((40,), IGNORED)) == 0


# Studies, against the loop that one would write.

DRAW = torch.Generator().manual_seed(1)
INPUTS = torch.randn(44, 5, generator=DRAW, dtype=torch.float64)
AIMS = INPUTS[:, :2].sin()
HIDDEN = torch.rand(44, 2, generator=DRAW) > torch.linspace(0.1, 1.0, 44).unsqueeze(1)  # the last ones have nearly none
TRAIN, EPOCHS, RATE, BATCH = 33, 3, 0.1, 4


def _given(masked: bool) -> tuple[Any, ...]:
    def part(rows: slice) -> Any:
        if masked:
            return {"y": torch.where(HIDDEN, AIMS, 1e6)[rows], "mask": HIDDEN[rows]}
        return torch.where(HIDDEN, AIMS, torch.nan)[rows]

    return INPUTS[:TRAIN], part(slice(TRAIN)), INPUTS[TRAIN:], part(slice(TRAIN, None))


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def _alone(seed: int, every: int) -> nn.Module:
    """Each optimizer step by the mean over all known targets of its mini-batches."""
    torch.manual_seed(seed)
    module = _model().double()
    optimizer = torch.optim.SGD(module.parameters(), RATE, momentum=0.9)
    for epoch in range(EPOCHS):
        for group in _groups(epoch, every):
            rows = torch.cat(group)
            optimizer.zero_grad()
            errors = (module(INPUTS[rows]) - AIMS[rows])[HIDDEN[rows]] ** 2
            (errors.sum() / max(1, len(errors)) * len(group) / every).backward()
            optimizer.step()
    return module


def _groups(epoch: int, every: int) -> Iterator[list[Tensor]]:
    listed = list(torch.split(order(TRAIN, 0, epoch), BATCH))
    for start in range(0, len(listed), every):
        yield listed[start : start + every]


@pytest.mark.parametrize("masked", [False, True], ids=["nan", "mask"])
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("serial", [False, True], ids=["fused", "serial"])
def test_a_study_is_as_the_loop_of_one_s_own(masked: bool, every: int, serial: bool, tmp_path: Path) -> None:
    study = hfta.Study(_model, {"seed": [0, 1]}, _given(masked), epochs=EPOCHS, batch_size=BATCH, optimizer="sgd",
                       lr=RATE, momentum=0.9, accumulate_grad_batches=every, loss="mse", dtype="float64", device="cpu",
                       serial=serial, keep_checkpoints=["best", "last"], directory=tmp_path)  # fmt: skip
    study.fit(progress=False)
    for seed in range(2):
        module = study.member(seed).module(at="last")
        for name, value in _alone(seed, every).state_dict().items():
            torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-10, atol=1e-10)
    assert study.check(members=[0])["equal"].all()
    with torch.no_grad():
        errors = (module(INPUTS[TRAIN:]) - AIMS[TRAIN:])[HIDDEN[TRAIN:]].abs()
    assert study.history.members[1].curves["val_mae"].values[-1] == pytest.approx(errors.mean().item(), rel=1e-9)


def test_a_group_of_batches_that_is_interrupted_goes_on_to_the_bit(tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH, "lr": RATE, "accumulate_grad_batches": 4,
                               "loss": "mse", "device": "cpu", "deterministic": True,
                               "keep_checkpoints": ["best", "last"]}  # fmt: skip
    whole = hfta.Study(_model, {"seed": [0, 1]}, _given(False), directory=tmp_path / "whole", **options)
    whole.fit(progress=False)
    parts = hfta.Study(_model, {"seed": [0, 1]}, _given(False), directory=tmp_path / "parts", **options)
    for number, event in enumerate(parts.run()):
        if isinstance(event, hfta.events.StepsDone) and number > 5:
            break
    again = hfta.Study.load(tmp_path / "parts", family=_model, data=_given(False))
    again.fit(progress=False, resume=True)
    for id in range(2):
        one, other = (s.member(id).module(at="last").state_dict() for s in (whole, again))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_what_is_refused(tmp_path: Path) -> None:
    x, y = INPUTS, torch.randint(3, (44,))
    with pytest.raises(DataError, match="mask: not of the shape of the targets"):
        hfta.data.from_tensors(x, {"y": y, "mask": torch.ones(44, 7)}, task="classification")
    with pytest.raises(FamilyError, match="one tensor of targets, and a mask beside it"):
        hfta.Study("mlp", {"lr": [0.1]}, (x, {"y": y, "z": y}))


def test_u_net_with_a_mask_trains_on_what_is_annotated(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images, labels = torch.rand(12, 1, 8, 8), torch.randint(0, 2, (12, 8, 8))
    mask = torch.zeros(12, 1, 8, 8)
    mask[:, :, 2:6, 1:7] = 1
    x, marked = torch.cat([images, mask], 1), torch.where(mask[:, 0] > 0, labels, IGNORED)
    net = build(width=2, depth=1, masked=True, in_channels=2).eval()
    coated = net(x)
    assert bool((coated[:, :, mask[0, 0] == 0] == 0).all())
    assert bool((coated[:, :, mask[0, 0] == 1] != 0).any())
    assert net.state_dict().keys() == build(width=2, depth=1, in_channels=2).state_dict().keys()
    options: dict[str, Any] = {"width": 2, "depth": 1, "epochs": 1, "deterministic": True, "device": "cpu"}
    found = []
    for number in range(3):
        rest = torch.where(mask[:, 0] > 0, labels, min(number, 1))
        data = hfta.data.from_tensors(x, {"y": rest, "mask": mask[:, 0]} if number < 2 else marked, task="segmentation")
        place = tmp_path / str(number)
        study = hfta.Study("unet", {"masked": [True], "lr": [1e-3, 1e-2]}, data, directory=place, **options)
        study.fit(progress=False)
        assert study.check(members=[1])["equal"].all()
        found.append(study.results())
    for column in ("val_loss", "val_accuracy", "val_mean_iou", "train_loss"):
        assert list(found[0][column]) == list(found[1][column]) == list(found[2][column])
