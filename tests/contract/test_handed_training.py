"""Gradient accumulation, averaged weights and patience, as in the user's own loop."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import hfta_nb as hfta
from hfta_nb.engine.array import MemberGenerators
from hfta_nb.errors import GridError, OptimError, StudyError
from hfta_nb.models.study_config import StudyConfig
from hfta_nb.models.training_axes import TRAINING_AXES
from hfta_nb.train.step import ArrayStep, Origin, PlainStep, recomposed
from tests.contract.handed_over import numbers

X, Y = numbers(22, 4), numbers(22, 2, seed=1)
XV, YV = numbers(9, 4, seed=2), numbers(9, 2, seed=3)
EPOCHS = 3


def model(width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, 2))


def study(place: Path, grid: Any, **options: Any) -> hfta.Study:
    options = {"monitor": "val_loss", "keep_checkpoints": ["best", "last"], "epochs": EPOCHS, **options}
    return hfta.Study(model, grid, data(), loss="mse", dtype="float64", device="cpu", optimizer="sgd", directory=place,
                      **options)  # fmt: skip


def data() -> Any:
    loaders = [DataLoader(TensorDataset(*pair), batch_size=4) for pair in ((X, Y), (XV, YV))]
    return hfta.data.from_loader(*loaders, name="handed")


def batches() -> list[Any]:
    """Six of an epoch, the last of which is smaller."""
    return [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 22, 4)]


def alone(
    seed: int, lr: float, every: int = 1, decay: float | None = None, width: int = 5, max_norm: float | None = None,
    momentum: float = 0.9, by_step: bool = False,
) -> tuple[nn.Module, list[float]]:  # fmt: skip
    """The user's own loop: what is taken home, and the curve of the validation."""
    torch.manual_seed(seed)
    module = model(width).double()
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)
    schedule = None
    if by_step:
        rising = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / 3, 1.0, total_iters=2)
        steps = EPOCHS * -(-6 // every) - 2
        rest = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rising, rest], milestones=[2])
    average = None if decay is None else AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(decay))
    curve = []
    for _ in range(EPOCHS):
        module.train()
        for number, (x, y) in enumerate(batches()):
            (nn.functional.mse_loss(module(x), y) / every).backward()
            if (number + 1) % every == 0 or number == 5:
                if max_norm is not None:
                    nn.utils.clip_grad_norm_(module.parameters(), max_norm)
                optimizer.step()
                optimizer.zero_grad()
                if average is not None:
                    average.update_parameters(module)
                if schedule is not None:
                    schedule.step()
        judged = (module if average is None else average.module).eval()
        with torch.no_grad():
            curve.append(nn.functional.mse_loss(judged(XV), YV).item())
    return (module if average is None else average.module), curve


def assert_as_alone(found: hfta.Study, id: int, expected: tuple[nn.Module, list[float]]) -> None:
    curve = found.history.members[id].curves["val_loss"].values
    torch.testing.assert_close(torch.tensor(curve, dtype=torch.float64),
                               torch.tensor(expected[1], dtype=torch.float64), rtol=1e-10, atol=1e-10)  # fmt: skip
    weights = found.member(id).module(at="last").state_dict()
    for name, value in expected[0].state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-10, atol=1e-10)


LONG = [{"accumulate_grad_batches": 2}, {"accumulate_grad_batches": 9}, {"ema_decay": 0.0}]
CASES: list[dict[str, Any]] = [
    {"accumulate_grad_batches": 4},
    {"ema_decay": 0.9},
    {"ema_decay": 0.5, "accumulate_grad_batches": 4, "max_norm": 0.1},
    {"accumulate_grad_batches": 4, "warmup_steps": 2, "lr_scheduler": "cosine"},
]


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize(
    "options",
    [*CASES, *(pytest.param(o, marks=pytest.mark.long) for o in LONG)],
    ids=lambda o: "-".join(f"{k[:5]}{v}" for k, v in o.items()),
)
def test_a_study_is_as_the_loop_of_one_s_own(options: dict[str, Any], tmp_path: Path) -> None:
    found = study(tmp_path, {"seed": [0, 1], "lr": [0.05]}, momentum=0.9, **options)
    found.fit(progress=False)
    for id, seed in enumerate((0, 1)):
        own = alone(seed, 0.05, options.get("accumulate_grad_batches", 1), options.get("ema_decay"),
                    max_norm=options.get("max_norm"), by_step="warmup_steps" in options)  # fmt: skip
        assert_as_alone(found, id, own)
    assert found.check(members=[0, 1])["equal"].all()


@pytest.mark.long
def test_as_axes_and_for_members_of_unlike_width(tmp_path: Path) -> None:
    grid = {"ema_decay": [None, 0.5, 0.9], "accumulate_grad_batches": [1, 3], "width": [3, 5]}
    found = study(tmp_path, grid, momentum=0.9, padding=0.9, lr=0.05)
    assert len(found.plan(measure=False)) == 4  # averaged or not, of one batch or of three
    found.fit(progress=False)
    for variant in found.variants:
        config = variant.config
        own = alone(0, 0.05, config["accumulate_grad_batches"], config["ema_decay"], config["width"])
        assert_as_alone(found, variant.id, own)


@pytest.mark.parametrize("grid", [{"seed": [0, 1, 2]}, {"width": [3, 5]}], ids=["alike", "padded"])
def test_a_run_that_is_interrupted_within_a_group_goes_on(grid: dict[str, Any], tmp_path: Path) -> None:
    options = {"momentum": 0.9, "accumulate_grad_batches": 4, "ema_decay": 0.7, "lr_scheduler": "cosine",
               "warmup_steps": 2, "lr": 0.05, "padding": 0.9}  # fmt: skip
    whole = study(tmp_path / "whole", grid, **options)
    whole.fit(progress=False)
    parts = study(tmp_path / "parts", grid, **options)
    for number, event in enumerate(parts.run()):
        if isinstance(event, hfta.events.StepsDone) and number > 5:
            break
    again = hfta.Study.load(tmp_path / "parts", family=model, data=data())
    assert again.options["ema_decay"] == 0.7
    again.fit(progress=False, resume=True)
    for id in range(len(whole.variants)):
        one, other = (s.member(id).module(at="last").state_dict() for s in (whole, again))
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.long
def test_members_are_refilled_in_slots(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        return {"lr": trial.suggest_float("lr", 0.01, 0.1), "ema_decay": trial.suggest_float("ema_decay", 0.3, 0.9),
                "width": trial.suggest_categorical("width", [3, 5])}  # fmt: skip

    found = study(tmp_path, space, trials=6, slots=2, sampler="random", momentum=0.9, accumulate_grad_batches=4)
    found.fit(progress=False)
    assert found.check(members=[0, 3, 5])["equal"].all()


def test_the_best_weights_are_averages(tmp_path: Path) -> None:
    found = study(tmp_path, {"seed": [0]}, ema_decay=0.9, lr=0.1)
    found.fit(progress=False)
    best = found.best()
    module = best.module().eval()
    with torch.no_grad():
        loss = nn.functional.mse_loss(module(XV), YV).item()
    assert loss == pytest.approx(min(found.history.members[0].curves["val_loss"].values), abs=1e-12)


def test_what_is_refused(tmp_path: Path) -> None:
    lbfgs = hfta.Study(model, {"lr": [0.1, 0.2]}, (X, Y, XV, YV), loss="mse", optimizer="lbfgs", epochs=1,
                       accumulate_grad_batches=2, directory=tmp_path, device="cpu")  # fmt: skip
    with pytest.raises(OptimError, match="accumulate_grad_batches: lbfgs does not add up gradients"):
        lbfgs.fit(progress=False)
    with pytest.raises(GridError, match="accumulate_grad_batches"):
        study(tmp_path / "0", {"accumulate_grad_batches": [0, 1]})
    with pytest.raises(GridError, match="ema_decay"):
        study(tmp_path / "1", {"ema_decay": [1.5]})


# Patience.


def test_smaller_improvements_do_not_count_for_patience(tmp_path: Path) -> None:
    """As `EarlyStopping` of Keras and Lightning: the counter has a best of its own."""
    options = {"momentum": 0.0, "epochs": 12, "patience": 2}
    free = study(tmp_path / "free", {"seed": [0, 1], "lr": [0.05]}, **{**options, "patience": None})
    free.fit(progress=False)
    delta = 0.02
    found = study(tmp_path / "found", {"seed": [0, 1], "lr": [0.05]}, min_delta=delta, **options)
    found.fit(progress=False)
    assert hfta.Study.load(tmp_path / "found", family=model, data=data()).min_delta == delta
    stops = set()
    for id in range(2):
        best, waited, stop = float("inf"), 0, 12
        curve = free.history.members[id].curves["val_loss"].values
        for epoch, value in enumerate(curve):
            best, waited = (value, 0) if value + delta < best else (best, waited + 1)
            if waited >= 2:
                stop = epoch + 1
                break
        assert len(found.history.members[id].curves["val_loss"].values) == stop
        assert found.history.members[id].best_value == pytest.approx(min(curve[:stop]), abs=1e-12)
        stops.add(stop)
    assert min(stops) < 12


@pytest.mark.parametrize(
    ("options", "message"),
    [({"min_delta": 0.1}, "min_delta: has no effect without patience"), ({"min_delta": -1, "patience": 2}, "min_delta"),
     ({"min_delta": "0.1", "patience": 2}, "min_delta: not a difference")],
)  # fmt: skip
def test_differences_that_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=message):
        study(tmp_path, {"lr": [0.1]}, **options)


# Names.


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("gradient_accumulation_steps", "did you mean accumulate_grad_batches?"),
        ("accumulation_steps", "did you mean accumulate_grad_batches?"),
        ("model_ema", "did you mean ema_decay?"),
        ("early_stopping_min_delta", "min_delta=0.001"),
        ("label_smoothing", "is for the usual loss of classes"),
        ("time_limit", "member_seconds=600"),
        ("max_time", "member_seconds=600"),
        ("restore_best_weights", r"study.best\(\).module\(\)"),
        ("load_best_model_at_end", r"study.best\(\).module\(\)"),
        ("swa", "ema_decay=0.999"),
        ("max_steps", "member_steps=1000"),
        ("min_deltas", r"min_delta is one for all variants: give Study\(..., min_delta=...\)"),
        ("Ema_Decay", "did you mean ema_decay?"),
        ("weight_averaging", "did you mean ema_decay?"),
        ("accumulation", "did you mean accumulate_grad_batches?"),
        ("iterations", "member_steps=1000"),
        ("n_iter_no_change", "patience=5"),
        ("pos_weight", r"BCEWithLogitsLoss\(pos_weight=\.\.\.\)"),
        ("sample_weight", r"\(x, \(y, weight\)\)"),
    ],
)
def test_names_of_other_libraries(name: str, advice: str, tmp_path: Path) -> None:
    for grid, fixed in (({name: [1, 2]}, {}), ({"lr": [0.1]}, {name: 1})):
        with pytest.raises(GridError, match=advice):
            study(tmp_path, grid, **fixed)


def test_the_options_of_a_study_are_known_by_name(tmp_path: Path) -> None:
    arguments = set(inspect.signature(hfta.Study).parameters) - {"family", "grid", "data", "fixed"}
    assert arguments == {field.name for field in dataclasses.fields(StudyConfig)}
    with pytest.raises(StudyError, match=r"timeout: belongs to a search.*member_seconds"):
        study(tmp_path, {"lr": [0.1]}, timeout=5)


# Members that go on in other arrays, within a group of mini-batches.


def stepped(kind: Any, own: Any, rows: Any) -> Any:
    more = () if kind is ArrayStep else (MemberGenerators.seeded([int(rows["seed"])], torch.device("cpu")),)
    return kind(own, rows, nn.functional.mse_loss, {}, EPOCHS, *more)


def array_step(rows: list[dict[str, Any]]) -> ArrayStep:
    modules = []
    for row in rows:
        torch.manual_seed(row["seed"])
        modules.append(model().double())
    found: ArrayStep = stepped(ArrayStep, hfta.fuse(modules, [row["seed"] for row in rows]), rows)
    return found


def test_members_go_on_elsewhere_within_a_group() -> None:
    usual = {name: axis.default for name, axis in TRAINING_AXES.items()}
    rows = [{**usual, "optimizer": "sgd", "momentum": 0.9, "lr": 0.05, "seed": seed, "accumulate_grad_batches": 3,
             "ema_decay": decay} for seed, decay in enumerate((0.5, 0.7, 0.9))]  # fmt: skip
    step, order = array_step(rows), [2, 0, 1]
    for x, y in batches()[:5]:
        step.train(x, y)
    other = recomposed(array_step([rows[i] for i in order]), [Origin(step, i) for i in order])
    saved = other.select([0, 2]).state()
    last = array_step([rows[2], rows[1]])
    last.load_state(saved)
    last.train(*batches()[5])
    last.train(*batches()[0])
    last.end_epoch()
    scores = last.evaluate(XV, YV)["loss"]
    for place, i in enumerate((2, 1)):
        torch.manual_seed(i)
        alone = stepped(PlainStep, model().double(), rows[i])
        for number in (0, 1, 2, 3, 4, 5, 0):
            alone.train(*batches()[number])
        alone.end_epoch()
        torch.testing.assert_close(scores[place], alone.evaluate(XV, YV)["loss"][0], rtol=1e-12, atol=1e-12)
        for name, value in alone.weights().items():
            torch.testing.assert_close(last.weights()[name][place], value[0], rtol=1e-12, atol=1e-12)
