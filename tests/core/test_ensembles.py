"""Members that predict together, against a selection written out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import StudyError
from hfta_nb.models import ensembles

GRID = {"lr": [3e-2, 1e-2, 1e-3, 1e-4], "seed": [0, 1]}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    """Eight members, of which some are bad."""
    return trained(tmp_path_factory.mktemp("ensembles"), GRID, data())


def data(count: int = 60) -> hfta.Data:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(2 * count, 6, generator=draw)
    y = (x[:, :3] + 0.8 * torch.randn(2 * count, 3, generator=draw)).argmax(1)
    return hfta.data.from_tensors(x[:count], y[:count], x[count:], y[count:], name="blobs")


def trained(place: Path, grid: Any, data: Any, **options: Any) -> hfta.Study:
    how: dict[str, Any] = {"epochs": 4, "device": "cpu", "verify": "never"} | options
    study = hfta.Study("mlp", grid, data, directory=place, **how)
    study.fit(progress=False)
    return study


def probabilities(study: hfta.Study, member: int, at: Any = "best") -> Tensor:
    """Of the validation samples, by the plain module alone."""
    with torch.no_grad():
        return study.member(member).module(at)(study.data.x_validation).double().softmax(-1)


def log_loss(found: Tensor, y: Tensor) -> float:
    return -sum(float(row[int(k)].log()) for row, k in zip(found, y, strict=True)) / len(y)


def chosen_alone(found: list[Tensor], y: Tensor, most: int) -> tuple[list[int], list[float]]:
    """Caruana's selection with replacement, candidate by candidate."""
    taken, losses = list[int](), list[float]()
    for _ in range(most):
        tried = [log_loss(sum(found[i] for i in [*taken, new]) / (len(taken) + 1), y) for new in range(len(found))]
        taken.append(tried.index(min(tried)))
        losses.append(min(tried))
    return taken, losses


def test_greedy_selection_equals_a_loop(study: hfta.Study) -> None:
    y = study.data.y_validation
    found = [probabilities(study, i) for i in range(8)]
    taken, losses = chosen_alone(found, y, 12)
    ensemble = study.ensemble("greedy", most=12)
    assert ensemble.curve()["log_loss"].tolist() == pytest.approx(losses, abs=1e-9)
    count = losses.index(min(losses)) + 1
    assert {p.member: p.weight for p in ensemble.picks} == pytest.approx(
        {i: taken[:count].count(i) / count for i in set(taken[:count])}
    )
    scores = ensemble.scores()
    assert scores.loc["best member", "log_loss"] == pytest.approx(min(log_loss(p, y) for p in found))
    assert scores.loc["ensemble", "log_loss"] < scores.loc["best member", "log_loss"]


def test_a_number_takes_the_best_alike(study: hfta.Study) -> None:
    y = study.data.y_validation
    found = [probabilities(study, i) for i in range(8)]
    order = sorted(range(8), key=lambda i: log_loss(found[i], y))
    ensemble = study.ensemble(3)
    assert {p.member: p.weight for p in ensemble.picks} == pytest.approx(dict.fromkeys(order[:3], 1 / 3))
    means = [sum(found[i] for i in order[: k + 1]) / (k + 1) for k in range(8)]
    assert ensemble.curve()["log_loss"].tolist() == pytest.approx([log_loss(m, y) for m in means], abs=1e-9)
    hits = [float((m.argmax(-1) == y).double().mean()) for m in means]
    assert ensemble.curve()["accuracy"].tolist() == pytest.approx(hits)
    assert ensemble.curve().index.tolist() == list(range(1, 9))


def test_the_module_gives_mean_and_spread(study: hfta.Study) -> None:
    ensemble = study.ensemble("greedy", members=[0, 1, 2, 3, 4])
    module = ensemble.module()
    with torch.no_grad():
        mean, spread = module(ensemble.inputs(study.data.x_validation))
    each = {p: probabilities(study, p.member) for p in ensemble.picks}
    expected = sum(p.weight * found for p, found in each.items())
    apart = sum(p.weight * (found - expected) ** 2 for p, found in each.items())
    torch.testing.assert_close(mean.double(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(spread.double(), apart**0.5, atol=1e-5, rtol=0)
    assert not module.training
    assert log_loss(mean.double(), study.data.y_validation) == pytest.approx(
        ensemble.scores()["log_loss"].iloc[0], abs=1e-5
    )


def test_the_module_saves_and_exports(study: hfta.Study, tmp_path: Path) -> None:
    ensemble, x = study.ensemble(2), study.data.x_validation[:9]
    module = ensemble.module()
    torch.save(module.state_dict(), tmp_path / "ensemble.pt")
    other = study.ensemble(2).module()
    for p in other.parameters():
        nn.init.zeros_(p)
    other.load_state_dict(torch.load(tmp_path / "ensemble.pt", weights_only=True))
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(module, (x,), dynamic_shapes=(({0: batch},),))
    for run in (other, program.module()):
        for ours, theirs in zip(run(x[:5]), module(x[:5]), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


def test_confidence_that_is_right_is_calibrated() -> None:
    """Bins as in the paper: each counts by its samples."""
    found = torch.tensor([[0.9, 0.1]] * 10 + [[0.4, 0.6]] * 5, dtype=torch.float64)
    y = torch.tensor([0] * 9 + [1] + [1] * 3 + [0] * 2)
    assert ensembles.calibration_error(found, y) == pytest.approx(0.0, abs=1e-12)
    wrong = torch.tensor([0] * 4 + [1] * 6 + [1] * 3 + [0] * 2)
    assert ensembles.calibration_error(found, wrong) == pytest.approx(10 / 15 * 0.5)


def test_snapshots_are_candidates(tmp_path: Path) -> None:
    study = trained(tmp_path, {"lr": [1e-1, 3e-2]}, data(), keep_checkpoints=["best", "last"], epochs=6)
    moments = [(i, at) for i in (0, 1) for at in ("best", "last")]
    found = [probabilities(study, *moment) for moment in moments]
    taken, losses = chosen_alone(found, study.data.y_validation, 6)
    ensemble = study.ensemble("greedy", snapshots=True, most=6)
    assert ensemble.curve()["log_loss"].tolist() == pytest.approx(losses, abs=1e-9)
    known = {moments[i] for i in taken[: losses.index(min(losses)) + 1]}
    assert {(p.member, p.at) for p in ensemble.picks} == known


def test_numbers_are_averaged(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(80, 4, generator=draw)
    y = x.sum(1) + 0.1 * torch.randn(80, generator=draw)
    study = trained(tmp_path, {"lr": [1e-2, 1e-3]}, hfta.data.from_tensors(x[:50], y[:50], x[50:], y[50:]))
    ensemble = study.ensemble(2)
    with torch.no_grad():
        each = [study.member(i).module()(x[50:]).reshape(-1).double() for i in (0, 1)]
        mean, spread = ensemble.module()(x[50:])
    expected = (each[0] + each[1]) / 2
    torch.testing.assert_close(mean.reshape(-1).double(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(spread.reshape(-1).double(), (each[0] - each[1]).abs() / 2, atol=1e-6, rtol=1e-5)
    scores = ensemble.scores().loc["ensemble"]
    assert scores["mse"] == pytest.approx(float((expected - y[50:]).square().mean()), rel=1e-5)
    assert scores["mae"] == pytest.approx(float((expected - y[50:]).abs().mean()), rel=1e-5)


def test_the_data_of_a_loader_are_predicted_as_well(tmp_path: Path) -> None:
    held = data()
    pairs = [list(zip(x, y, strict=True)) for x, y in ((held.x, held.y), (held.x_validation, held.y_validation))]
    loaders = tuple(torch.utils.data.DataLoader(part, batch_size=16) for part in pairs)
    study = trained(tmp_path, {"lr": [1e-2, 3e-3]}, loaders, epochs=1)
    with torch.no_grad():
        found = [study.member(i).module()(held.x_validation).double().softmax(-1) for i in (0, 1)]
    losses = chosen_alone(found, held.y_validation, 3)[1]
    assert study.ensemble("greedy", most=3).curve()["log_loss"].tolist() == pytest.approx(losses, abs=1e-6)


def test_the_figure_shows_each_score(study: hfta.Study) -> None:
    ensemble = study.ensemble("greedy", most=5)
    axes = ensemble.figure().axes
    assert [a.get_title(loc="left") or a.get_ylabel() for a in axes] == ["accuracy", "log loss", "calibration error"]
    drawn = axes[1].get_lines()[1].get_ydata()
    assert list(drawn) == ensemble.curve()["log_loss"].tolist()


def untrained(place: Path) -> hfta.Study:
    return hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, data(), directory=place, device="cpu")


def clicks() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))


def clicked() -> hfta.Data:
    held = data()
    return hfta.data.from_tensors(held.x, (held.y > 0).float(), task="click")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s, p: s.ensemble("best"), "not a way to choose"),
        (lambda s, p: s.ensemble(0), "not a way to choose"),
        (lambda s, p: s.ensemble(9), "more than there are"),
        (lambda s, p: s.ensemble(members=[0, 11]), "11"),
        (lambda s, p: s.ensemble(members=[]), "not members"),
        (lambda s, p: s.ensemble(most=0), "not a number of members"),
        (lambda s, p: untrained(p).ensemble(), "no member has weights"),
        (lambda s, p: untrained(p).ensemble(members=[0]), "no weights were saved"),
        (lambda s, p: hfta.Study(clicks, {"lr": [1e-3]}, clicked(), directory=p).ensemble(), "no mean that is known"),
    ],
)
def test_what_is_no_ensemble_says_so(study: hfta.Study, tmp_path: Path, call: Any, words: str) -> None:
    with pytest.raises(StudyError, match=words):
        call(study, tmp_path / "other")


def test_members_that_see_different_inputs_are_not_averaged(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(40, 1, 8, 8, generator=draw), torch.arange(40) % 4
    pictures = hfta.data.from_tensors(x[:20], y[:20], x[20:], y[20:])
    study = hfta.Study("cnn", {"normalize": [False, True]}, pictures, epochs=1, directory=tmp_path, verify="never")
    study.fit(progress=False)
    with pytest.raises(StudyError, match="different inputs"):
        study.ensemble()
    only = study.ensemble(members=[1])
    assert [p.member for p in only.picks] == [1]
    mean, _ = only.module()(only.inputs(x[20:]))
    assert log_loss(mean.detach().double(), y[20:]) == pytest.approx(only.scores()["log_loss"].iloc[0], abs=1e-5)


def test_equal_candidates_are_taken_in_order() -> None:
    one = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
    found = torch.stack([one, one.clone(), torch.full_like(one, torch.nan)])
    y = torch.tensor([0, 1])
    assert ensembles.greedy(found, y, True, 3) == [0, 0, 0]
    assert ensembles.ranked(found, y, True) == [0, 1, 2]
    assert list(itertools.islice(ensembles.scores_of(one, y, True), 3)) == ["accuracy", "log_loss", "ece"]
