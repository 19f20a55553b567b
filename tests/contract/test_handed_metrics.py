"""Metrics as users write them: over what they are computed, which way is better, and numbers in `evaluate`."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning, FamilyError, StudyError
from hfta_nb.train import whole_sets
from hfta_nb.train.batches import Batch
from hfta_nb.train.step import OUTPUT
from tests.contract.handed_over import Regressor, macro_f1, numbers

SEEDS = (0, 1, 2)
X, Y = numbers(24, 4).float(), torch.randint(3, (24,), generator=torch.Generator().manual_seed(1))
HELD = numbers(1500, 4, seed=2).float(), torch.randint(3, (1500,), generator=torch.Generator().manual_seed(3))


def classifier() -> nn.Module:
    return Regressor(3)


def study(place: Path, metrics: Any, **options: Any) -> hfta.Study:
    options = {"epochs": 2, "batch_size": 24, "optimizer": "sgd", "lr": 0.1, "loss": "cross_entropy", **options}
    return hfta.Study(classifier, {"seed": list(SEEDS)}, (X, Y, *HELD), metrics=metrics, device="cpu",
                      dtype="float64", directory=place, **options)  # fmt: skip


def values(of: hfta.Study, name: str) -> Tensor:
    rows = [of.history.members[variant.id].curves[name].values for variant in of.variants]
    return torch.tensor(rows, dtype=torch.float64)


def alone(metric: Callable[[Any, Any], Any], epochs: int = 2) -> tuple[Tensor, Tensor]:
    """Training and validation of the user's own loop, ``[M, epochs]`` each; the whole set is one batch."""
    training, validation = [], []
    for seed in SEEDS:
        torch.manual_seed(seed)
        model = classifier().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(epochs):
            optimizer.zero_grad()
            output = model(X.double())
            training.append(float(metric(output.detach(), Y)))
            F.cross_entropy(output, Y).backward()
            optimizer.step()
            with torch.no_grad():
                validation.append(float(metric(model(HELD[0].double()), HELD[1])))
    shape = len(SEEDS), epochs
    return (
        torch.tensor(training, dtype=torch.float64).view(shape),
        torch.tensor(validation, dtype=torch.float64).view(shape),
    )


@pytest.mark.usefixtures("verified")
@pytest.mark.parametrize(
    "metric",
    [
        macro_f1,
        lambda o, y: o.std(),
        lambda o, y: (o.argmax(-1) == y).double().mean().item(),
        lambda o, y: torch.corrcoef(torch.stack([o[:, 0], y.double()]))[0, 1],
        lambda o, y: (o.max() - o.min()).numpy(),
    ],
)
def test_validation_is_one_set_and_training_is_by_batches(metric: Any, tmp_path: Path) -> None:
    """1500 samples are two batches of validation."""
    made = study(tmp_path, {"made": metric}, epochs=12)
    made.fit(progress=False)
    training, validation = alone(metric, 12)
    torch.testing.assert_close(values(made, "val_made"), validation, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(values(made, "train_made"), training, rtol=1e-10, atol=1e-10)
    assert made.check(members=[1])["equal"].all()


def test_functions_of_torchmetrics_see_the_whole_set(tmp_path: Path) -> None:
    functional = pytest.importorskip("torchmetrics.functional")
    made = study(tmp_path, {"f1": lambda o, y: functional.f1_score(o, y, "multiclass", num_classes=3, average="macro"),
                            "r": functional.mean_absolute_error}, loss=lambda o, y: o.square().mean())  # fmt: skip
    assert made.family.metrics is not None
    assert made.family.metrics["r"].whole
    assert made.family.metrics["r"].maximize is False


def test_sets_that_do_not_fit_are_taken_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_sets, "MOST_BYTES", 2000)
    given = {"spread": lambda o, y: o.std(), "hits": lambda o, y: (o.argmax(-1) == y).double().mean()}
    made = study(tmp_path, given, validation_batch_size=1024)
    with pytest.warns(ArrayWarning, match="hits, spread are means over 2 parts"):
        made.fit(progress=False)
    _, whole = alone(lambda o, y: o.std())
    _, parts = alone(lambda o, y: (o[:1024].std() * 1024 + o[1024:].std() * 476) / 1500 if len(o) > 1024 else 0)
    torch.testing.assert_close(values(made, "val_spread"), parts, rtol=1e-10, atol=1e-10)
    assert (values(made, "val_spread") - whole).abs().max() > 1e-6
    _, hits = alone(lambda o, y: (o.argmax(-1) == y).double().mean())
    torch.testing.assert_close(values(made, "val_hits"), hits, rtol=1e-10, atol=1e-10)


def test_additive_metrics_keep_no_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_sets.WholeSets, "_compute", None)
    hits = hfta.Metric(lambda o, y: (o.argmax(-1) == y).double().mean(), maximize="max", additive=True)
    made = study(tmp_path, {"hits": hits})
    made.fit(progress=False)
    _, whole = alone(lambda o, y: (o.argmax(-1) == y).double().mean())
    torch.testing.assert_close(values(made, "val_hits"), whole, rtol=1e-10, atol=1e-10)


def test_a_metric_may_be_undefined_on_a_batch_of_training(tmp_path: Path) -> None:
    def picky(output: Tensor, y: Tensor) -> float:
        if len(y) < 100:
            raise ValueError("only one class in y_true")
        return float(output.mean())

    made = study(tmp_path, {"picky": picky})
    with pytest.warns(ArrayWarning, match="metric picky of a training batch is NaN"):
        made.fit(progress=False)
    assert values(made, "train_picky").isnan().all()
    torch.testing.assert_close(values(made, "val_picky"), alone(lambda o, y: o.mean())[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("what", ["output", "target"])
def test_a_metric_that_writes_into_what_the_loss_needs_is_an_error(what: str, serial: bool, tmp_path: Path) -> None:
    def writing(output: Tensor, y: Tensor) -> Any:
        if what == "output":
            output[:, 0] = 0
        else:
            y[y == 2] = 0
        return (output.argmax(-1) == y).double().mean()

    with pytest.raises(FamilyError, match="metric made: writes into the output or the target"):
        study(tmp_path, {"made": writing}, serial=serial).fit(progress=False)


def test_a_metric_of_validation_may_write_into_what_it_gets() -> None:
    """Others see what it has got."""

    def writing(output: Tensor, y: Tensor) -> Tensor:
        y.zero_()
        return y.double().mean()

    metrics = {n: hfta.Metric(m) for n, m in {"a": writing, "b": lambda o, y: y.double().mean()}.items()}

    class Two:
        def __len__(self) -> int:
            return 2

        def measuring(self, member: int, function: Any) -> Any:
            return contextlib.nullcontext()

    step: Any = Two()
    whole = whole_sets.WholeSets(metrics, step, torch.device("cpu"))
    whole.record({OUTPUT: numbers(2, 24, 3)}, Batch(X, Y, 24))
    assert whole.computed()["b"].tolist() == [Y.double().mean().item()] * 2
    assert Y.any()


def test_no_message_advises_to_switch_verification_off() -> None:
    package = Path(hfta.__file__).parent
    advice = re.compile(r"""verify\s*=\s*\\?['"]never\\?['"]""")
    found = [path for path in package.rglob("*.py") for line in path.read_text().splitlines()
             if advice.search(line) and ("remedy" in line or "f\"" in line)]  # fmt: skip
    assert not found


# Which way is better.

UNKNOWN = ["foo", "ece", "eer", "regret", "my_error", "val"]


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_metrics_are_not_monitored_unasked(name: str, tmp_path: Path) -> None:
    made = study(tmp_path, {name: lambda o, y: o.mean()})
    assert (made.monitor, made.maximize) == ("val_loss", False)
    for monitor in (f"val_{name}", ["val_loss", f"val_{name}"], [f"val_{name}", "parameters"]):
        with pytest.raises(StudyError, match=rf'"{name}": hfta_nb.Metric\({name}, maximize=False\)'):
            study(tmp_path, {name: lambda o, y: o.mean()}, monitor=monitor)


@pytest.mark.parametrize(("way", "more"), [("min", False), ("max", True), (False, False), (True, True),
                                           ("minimize", False), ("maximize", True)])  # fmt: skip
def test_a_direction_that_is_said_counts(way: Any, more: bool, tmp_path: Path) -> None:
    made = study(tmp_path, {"foo": hfta.Metric(lambda o, y: o.mean(), maximize=way)}, monitor="val_foo")
    assert made.maximize is more
    made.fit(progress=False)
    rows = values(made, "val_foo")
    least, most = rows.min().item(), rows.max().item()
    assert made.best().metrics["val_foo"] == pytest.approx(most if more else least)


@pytest.mark.parametrize(
    "name", ["smape", "crps", "nrmse", "rmsle", "logloss", "lpips", "wer", "mse_loss", "brier_score_loss"]
)
def test_errors_are_minimised(name: str, tmp_path: Path) -> None:
    made = study(tmp_path, {name: lambda o, y: o.square().mean()}, monitor=f"val_{name}")
    assert made.maximize is False
    assert study(tmp_path, {name: lambda o, y: o.square().mean()}).monitor == "val_loss"


@pytest.mark.parametrize("metrics", [["accuracy"], {"f1": macro_f1}, {"r2": macro_f1}, {"roc_auc": macro_f1}])
def test_a_known_score_is_monitored(metrics: Any, tmp_path: Path) -> None:
    made = study(tmp_path, metrics)
    assert (made.monitor, made.maximize) == (f"val_{next(iter(metrics))}", True)


def test_searches_and_populations_ask_too(tmp_path: Path) -> None:
    unknown: dict[str, Any] = {"foo": lambda o, y: o.mean()}
    with pytest.raises(StudyError, match="which way is better"):
        hfta.Study(classifier, {"lr": hfta.uniform(0.01, 0.1)}, (X, Y), trials=2, monitor="val_foo", metrics=unknown,
                   epochs=1, device="cpu", pruner="median", directory=tmp_path)  # fmt: skip
    made = study(tmp_path, unknown)
    made.fit(progress=False)
    with pytest.raises(StudyError, match="which way is better"):
        made.pareto("val_loss", "val_foo")
    assert "val_foo" in made.results().columns
    made.curves("val_foo")
    assert made.results()["val_loss"].is_monotonic_increasing


def test_a_wrong_direction_is_an_error() -> None:
    with pytest.raises(FamilyError, match=r'maximize: not a direction.*"max"'):
        hfta.Metric(macro_f1, maximize="up")


def test_metrics_tell_their_directions_without_imports() -> None:
    """The packages take seconds to import; a study of a user's own metric does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hfta.Metric(macro_f1).maximize is None


def test_complex_targets_keep_their_imaginary_part(tmp_path: Path) -> None:
    y = torch.complex(numbers(24, 1, seed=4), numbers(24, 1, seed=5))  # complex128, which the format of files lacks

    def distance(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).abs().mean()

    study = hfta.Study(Regressor, {"seed": [0, 1]}, (X, y, X, y), loss=distance, epochs=2, device="cpu",
                       dtype="float64", metrics=["mae"], directory=tmp_path)  # fmt: skip
    study.fit(progress=False)
    torch.testing.assert_close(values(study, "val_mae"), values(study, "val_loss"))
    assert hfta.Study.load(study.directory, family=Regressor).data.y.equal(y)


def hits(output: Tensor, y: Tensor) -> Tensor:
    return (output.argmax(-1) == y).double().mean()


def test_a_built_in_metric_may_have_another_name(tmp_path: Path) -> None:
    made = study(tmp_path, {"acc": "accuracy", "own": hits})
    assert made.monitor == "val_acc"
    assert made.maximize
    made.fit(progress=False)
    for name in ("acc", "own"):
        torch.testing.assert_close(values(made, f"val_{name}"), alone(hits)[1], rtol=1e-10, atol=1e-10)
    assert made.check([0])["equal"].all()
    with pytest.raises(FamilyError, match=r"not a metric; got 'acuracy'; .*did you mean accuracy"):
        study(tmp_path, {"acc": "acuracy"})


class _Asking(nn.Module):
    def forward(self, output: Tensor) -> Tensor:
        return output.mean()


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (lambda output: output.mean(), r"got 'm\(output\)'; .*lambda output, y: m\(output\)$"),
        (_Asking(), r"got 'm\(output\)'; .*lambda output, y: m\(output\)$"),
        (lambda output, y, k: output.mean(), r"missing a required argument: 'k'.*functools\.partial"),
        (lambda output, y, *, k: output.mean(), r"'k'.*functools\.partial"),
    ],
    ids=["one", "module", "three", "by name"],
)
def test_a_metric_takes_an_output_and_a_target(metric: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match=rf"^metric m: does not take an output and a target .*{words}"):
        study(tmp_path, {"m": metric})


@pytest.mark.parametrize(
    "metric", [lambda output, y, k=2: hits(output, y), lambda *given: hits(*given), hfta.Metric(hits)]
)
def test_what_can_be_called_with_both_does(metric: Any, tmp_path: Path) -> None:
    assert study(tmp_path, {"m": metric}).metrics == ("train_loss", "val_loss", "train_m", "val_m")


def test_a_vector_is_told_with_what_to_do(tmp_path: Path) -> None:
    made = study(tmp_path, {"m": lambda output, y: output.mean(0)})
    with pytest.raises(FamilyError, match=r"^metric m: .* not one number; got .a tensor \[3\].*\"m_0\": lambda output"):
        made.fit(progress=False)


class _Counting:
    """Counts its calls, and returns a number of Python, which `vmap` can't make."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: Tensor, y: Tensor) -> float:
        self.calls += 1
        return float(output.mean()) * self.calls


@pytest.mark.parametrize("verify", ["first", "never"])
def test_a_metric_that_runs_once_per_member_keeps_what_is_each_member_s(verify: str, tmp_path: Path) -> None:
    made = study(tmp_path, {"made": _Counting()}, verify=verify)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArrayWarning)
        made.fit(progress=False)
    training, validation = alone(lambda o, y: o.mean())
    counted = torch.arange(1, training.shape[1] + 1)
    torch.testing.assert_close(values(made, "train_made"), training * counted, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(values(made, "val_made"), validation * counted, rtol=1e-10, atol=1e-10)


def test_an_array_of_one_number_and_what_numpy_masks_are_checked_too(tmp_path: Path) -> None:
    one = {"one": lambda o, y: np.array([float(o.std())]), "masked": lambda o, y: np.ma.masked}
    made = study(tmp_path, one)
    made.fit(progress=False)
    assert values(made, "val_masked").isnan().all()
    torch.testing.assert_close(values(made, "val_one"), alone(lambda o, y: o.std())[1], rtol=1e-10, atol=1e-10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, about what is masked
        assert made.check([0])["equal"].all()


def test_two_metrics_of_one_name_are_an_error(tmp_path: Path) -> None:
    def made(k: int) -> Any:
        def hits(output: Tensor, y: Tensor) -> Tensor:
            return (output.topk(k).indices == y[:, None]).any(1).double().mean()

        return hits

    with pytest.raises(FamilyError, match=r"two metrics of one name; got 'hits'; .*\"hits_a\""):
        study(tmp_path, [made(1), made(2)])


def test_a_monitor_that_is_never_finite_is_told(tmp_path: Path) -> None:
    foo = hfta.Metric(lambda o, y: float("inf"), maximize="max")
    made = study(tmp_path, {"foo": foo}, monitor="val_foo")
    with pytest.raises(StudyError, match="run the study first"):
        made.best()
    made.fit(progress=False)
    with pytest.raises(StudyError, match=r"val_foo is finite in no epoch.*monitor=\.\.\."):
        made.best()
