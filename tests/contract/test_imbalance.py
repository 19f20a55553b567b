"""Remedies for imbalanced classes: different ones in one array equal the loop that one would write for each."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import WeightedRandomSampler

import hfta_nb as hfta
from hfta_nb.data.order import order
from hfta_nb.errors import DistributedError, GridError
from hfta_nb.models import imbalance, metrics

DRAW = torch.Generator().manual_seed(1)
X = torch.randn(90, 6, generator=DRAW, dtype=torch.float64)
Y = (X[:, 0] > 0.9).long() + (X[:, 1] > 1.1).long()
XV, YV = torch.randn(30, 6, generator=DRAW, dtype=torch.float64), torch.randint(0, 3, (30,), generator=DRAW)
COUNTS = torch.bincount(Y).double()
BATCH, EPOCHS, RATE = 16, 3, 0.1
REMEDIES: list[dict[str, Any]] = [
    {},
    {"class_weight": "balanced"},
    {"class_weight": "effective"},
    {"class_weight": (0.5, 2.0, 3.0)},
    {"focal_gamma": 2.0},
    {"tau": 1.5},
    {"label_smoothing": 0.2},
    {"weaken": 0.8, "weaken_gamma": 0.5},
    {"sampling": "balanced"},
    {"sampling": "balanced", "tau": 0.5, "weaken": 0.3},
    {"class_weight": "balanced", "focal_gamma": 0.5, "tau": 0.3, "label_smoothing": 0.1, "weaken": 1.0},
]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def weights(kind: Any) -> Tensor | None:
    if kind == "balanced":
        return COUNTS.sum() / (3 * COUNTS)
    if kind == "effective":
        found = (1 - 0.999) / (1 - 0.999**COUNTS)
        return found * 3 / found.sum()
    return None if kind is None else torch.tensor(kind, dtype=torch.float64)


def own_loss(logits: Tensor, y: Tensor, given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The sum of losses, and what it is divided by, as papers and torch have them."""
    weight = weights(given.get("class_weight"))
    logits = logits + given.get("tau", 0.0) * (COUNTS / COUNTS.sum()).log()
    smoothing, gamma = given.get("label_smoothing", 0.0), given.get("focal_gamma")
    mass = torch.tensor(float(len(y))) if weight is None else weight[y].sum()
    if gamma is None:
        return F.cross_entropy(logits, y, weight=weight, label_smoothing=smoothing, reduction="sum"), mass
    chances, each = logits.softmax(1), 0
    for c in range(3):
        aim = (1 - smoothing) * (y == c).double() + smoothing / 3
        each = each - aim * (1 if weight is None else weight[c]) * (1 - chances[:, c]) ** gamma * chances[:, c].log()
    return each.sum(), mass


def weakened(x: Tensor, y: Tensor, given: dict[str, Any]) -> Tensor:
    ratio = (COUNTS.min() / COUNTS) ** given.get("weaken_gamma", 1.0)
    keep = (1 - given.get("weaken", 0.0) * (1 - ratio) / 2)[y].unsqueeze(1)
    return keep * x + (1 - keep) * torch.cat([x[-1:], x[:-1]])


def alone(given: dict[str, Any], every: int = 1) -> nn.Module:
    torch.manual_seed(0)
    module = model().double()
    optimizer = torch.optim.SGD(module.parameters(), RATE, momentum=0.9)
    for epoch in range(EPOCHS):
        mixed = order(len(X), 0, epoch)
        if given.get("sampling") == "balanced":
            generator = torch.Generator().manual_seed(zlib.crc32(f"0/{epoch}".encode()))
            mixed = torch.tensor(list(WeightedRandomSampler((1 / COUNTS)[Y].tolist(), len(X), generator=generator)))
        listed = torch.split(mixed, BATCH)
        for start in range(0, len(listed), every):
            optimizer.zero_grad()
            group = listed[start : start + every]
            pairs = [own_loss(module(weakened(X[rows], Y[rows], given)), Y[rows], given) for rows in group]
            if every == 1:
                total = pairs[0][0] / pairs[0][1]
            else:  # of mini-batches of unlike size each counts by its share
                shares = [mass / len(rows) for (_, mass), rows in zip(pairs, group, strict=True)]
                means = [total / mass * share for (total, mass), share in zip(pairs, shares, strict=True)]
                total = sum(means) / sum(shares) * len(group) / every  # type: ignore[arg-type]
            total.backward()
            optimizer.step()
    return module


def study(folder: Path, grid: Any = REMEDIES, **options: Any) -> hfta.Study:
    given: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH, "optimizer": "sgd", "lr": RATE, "momentum": 0.9,
                             "dtype": "float64", "device": "cpu", "keep_checkpoints": ["best", "last"]}  # fmt: skip
    return hfta.Study(model, grid, (X, Y, XV, YV), directory=folder, **{**given, **options})


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("serial", [False, True], ids=["fused", "serial"])
def test_each_remedy_is_as_in_the_loop_of_one_s_own(serial: bool, every: int, tmp_path: Path) -> None:
    found = study(tmp_path, serial=serial, accumulate_grad_batches=every)
    assert len(found.plan_groups) == (len(REMEDIES) if serial else 1)
    found.fit(progress=False)
    for id, given in enumerate(REMEDIES):
        state, module = found.member(id).module(at="last").state_dict(), alone(given, every)
        for name, value in module.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-10, msg=lambda m, g=given: f"{g}: {m}")
        # Validation compares members by the plain loss.
        plain = F.cross_entropy(module(XV), YV).item()
        assert found.history.members[id].curves["val_loss"].values[-1] == pytest.approx(plain, rel=1e-9)
    assert found.check(members=[1, 7, 8])["equal"].all()


class Parts(nn.Module):
    """A model of two parts, the features of the first of which a loop of one's own can mix."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.features(x))
        return found


@pytest.mark.parametrize("at", ["features", pytest.param("features.0", marks=pytest.mark.long)])
def test_features_of_a_layer_are_mixed_as_in_the_loop_of_one_s_own(at: str, tmp_path: Path) -> None:
    grid = {"weaken": [0.0, 0.6, 1.0], "weaken_at": [at], "lr": [RATE, RATE / 2]}
    options: dict[str, Any] = {"momentum": 0.9, "dtype": "float64", "batch_size": BATCH, "epochs": EPOCHS}
    found = hfta.Study(Parts, grid, (X, Y, XV, YV), optimizer="sgd", device="cpu", directory=tmp_path,
                       keep_checkpoints=["best", "last"], **options)  # fmt: skip
    assert len(found.plan_groups) == 1
    found.fit(progress=False)
    for variant in found.variants:
        torch.manual_seed(0)
        module = Parts().double()
        optimizer = torch.optim.SGD(module.parameters(), variant.config["lr"], momentum=0.9)
        parts = [module.features, module.head] if at == "features" else [*module.features, module.head]
        for epoch in range(EPOCHS):
            for rows in order(len(X), 0, epoch).split(BATCH):
                optimizer.zero_grad()
                features = weakened(parts[0](X[rows]), Y[rows], {"weaken": variant.config["weaken"]})
                F.cross_entropy(nn.Sequential(*parts[1:])(features), Y[rows]).backward()
                optimizer.step()
        state = found.member(variant.id).module(at="last").state_dict()
        for name, value in module.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-10)
        loss = F.cross_entropy(module.eval()(XV), YV).item()
        assert found.history.members[variant.id].curves["val_loss"].values[-1] == pytest.approx(loss, rel=1e-9)
    assert found.check(members=[1, 4])["equal"].all()


def test_a_layer_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(GridError, match=r"weaken_at: no such layer; got 'featurs'; accepted: .*features"):
        hfta.Study(Parts, {"weaken": [0.5], "weaken_at": ["featurs"]}, (X.float(), Y), directory=tmp_path)


def test_a_run_that_is_interrupted_goes_on_to_the_bit(tmp_path: Path) -> None:
    options: dict[str, Any] = {"deterministic": True, "dtype": "float32"}
    whole = study(tmp_path / "whole", **options)
    whole.fit(progress=False)
    parts = study(tmp_path / "parts", **options)
    for number, event in enumerate(parts.run()):
        if isinstance(event, hfta.events.StepsDone) and number > 5:
            break
    again = hfta.Study.load(tmp_path / "parts", family=model, data=(X, Y, XV, YV))
    again.fit(progress=False, resume=True)
    for id in range(len(REMEDIES)):
        one, other = (s.member(id).module(at="last").state_dict() for s in (whole, again))
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"class_weight": [(1.0, 2.0)]}, r"class_weight: not a weight for each class; .* 3 weights"),
        ({"class_weight": ["balancd"]}, "class_weight: no weights of classes; .*balanced, effective"),
        ({"class_weight": [(1.0, -2.0, 1.0)]}, "class_weight: not a weight for each class"),
        ({"focal_gamma": [-1.0]}, "focal_gamma"),
        ({"tau": ["much"]}, "tau"),
        ({"label_smoothing": [1.5]}, "label_smoothing"),
        ({"weaken": [2.0]}, "weaken"),
    ],
)
def test_what_is_refused(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(GridError, match=words):
        study(tmp_path, given)


def test_other_losses_and_streams_are_told(tmp_path: Path) -> None:
    with pytest.raises(GridError, match="tau is for the usual loss of classes"):
        study(tmp_path / "0", {"tau": [1.0]}, loss=nn.MultiMarginLoss())
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X.float(), Y), batch_size=9)
    with pytest.raises(GridError, match=r"class_weight: the classes of .* are not counted"):
        hfta.Study(model, {"class_weight": ["balanced"]}, (loader, loader), directory=tmp_path / "1")
    grid = [{"class_weight": (1.0, 2.0, 3.0)}, {"focal_gamma": 1.0}]
    read = hfta.Study(model, grid, (loader, loader), epochs=1, accumulate_grad_batches=2, directory=tmp_path / "2")
    read.fit(progress=False)
    assert read.check()["equal"].all()


@pytest.mark.long
def test_inputs_are_not_mixed_across_devices(tmp_path: Path) -> None:
    with pytest.raises(DistributedError, match="weaken: each rank has a part of the mini-batch"):
        study(tmp_path, {"weaken": [0.0, 0.5]}, devices=2).fit(progress=False)


def test_rules_by_hand() -> None:
    assert imbalance.weights_of("balanced", [90, 9, 1]).tolist() == pytest.approx([100 / 270, 100 / 27, 100 / 3])
    assert imbalance.shares_kept(1.0, 1.0, [100, 10, 1]).tolist() == pytest.approx([0.505, 0.55, 1.0])
    assert imbalance.shares_kept(0.5, 0.5, [100, 1, 0]).tolist() == pytest.approx([1 - 0.25 * 0.9, 1.0, 1.0])


def test_the_workbench_offers_them() -> None:
    specs = hfta.family("mlp").specs_for("digits")
    assert {name for name, spec in specs.items() if spec.group == "imbalance"} == set(imbalance.AXES)
    assert not set(imbalance.AXES) & set(hfta.family("mlp").specs_for("diabetes"))
    assert "weaken" not in hfta.family("unet").specs_for("photographs")


# The paper's check: step imbalance of ratio 100; the early gap of per-class training accuracy shrinks.


def test_weakening_shrinks_the_early_gap_of_classes(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(10).repeat_interleave(torch.tensor([500] * 5 + [5] * 5))
    x = (2.5 * torch.randn(10, 20, generator=draw))[y] + torch.randn(len(y), 20, generator=draw)
    grid = {"weaken": [0.0, 0.5], "seed": [0, 1, 2]}
    found = hfta.Study("mlp", grid, (x, y, x, y), metrics=[f"recall_{c}" for c in range(10)], monitor="val_loss",
                       epochs=5, lr=1e-3, width=64, device="cpu", directory=tmp_path)  # fmt: skip
    assert len(found.plan_groups) == 1
    found.fit(progress=False)

    def gap(weaken: float) -> float:
        """Of the training accuracy on large and small classes: over the first epochs and the seeds."""
        ids = [v.id for v in found.variants if v.config["weaken"] == weaken]
        curves = [[found.history.members[i].curves[f"val_recall_{c}"].values for c in range(10)] for i in ids]
        means = torch.tensor(curves).mean((0, 2))
        return float(means[:5].mean() - means[5:].mean())

    assert gap(0.0) > 0.5
    assert gap(0.5) < gap(0.0) - 0.02


def test_metrics_of_classes_are_scikit_learns() -> None:
    from sklearn import metrics as sk

    torch.manual_seed(0)
    logits, y = torch.randn(60, 4), torch.randint(0, 4, (60,))
    guess = logits.argmax(1)
    y[:10] = -100
    kept = y != -100
    expected = {
        "balanced_accuracy": sk.balanced_accuracy_score(y[kept], guess[kept]),
        "macro_f1": sk.f1_score(y[kept], guess[kept], average="macro"),
        "recall_2": sk.recall_score(y[kept], guess[kept], average=None)[2],
        "precision_2": sk.precision_score(y[kept], guess[kept], average=None)[2],
    }
    for name, value in expected.items():
        metric = metrics.built_in(name)
        assert metric(logits, y).item() == pytest.approx(value, rel=1e-6)
        assert metric.finish is not None
        parts = [metric.function(logits[a:b], y[a:b]) for a, b in ((0, 7), (7, 40), (40, 60))]
        assert metric.finish(torch.stack(parts).sum(0)).item() == pytest.approx(value, rel=1e-6)
