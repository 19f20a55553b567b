"""A study of a user's model: a class or a function, with its loss and metrics, and any form of output."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import FamilyError, StudyError
from hfta_nb.models.recipes import from_callable


class Net(nn.Module):
    def __init__(self, hidden: int = 8, p: float = 0.1, act: type[nn.Module] = nn.ReLU, *extra: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), act(), nn.LayerNorm(hidden), nn.Dropout(p))
        self.head = nn.Linear(hidden, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def build(hidden: int = 8) -> nn.Module:
    return Net(hidden)


x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
y = x[:, :3].argmax(1)


def trained(family: Any, place: Path, grid: dict[str, Any] | None = None, **options: Any) -> hfta.Study:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 12, "device": "cpu", **options}
    study = hfta.Study(family, grid or {"lr": [1e-2, 1e-3]}, data=(x, y), directory=place, **settings)
    list(study.run())
    return study


@pytest.mark.parametrize("family", [Net, build, functools.partial(Net, p=0.0)], ids=["class", "function", "partial"])
def test_a_class_or_a_function_is_a_family(family: Any, tmp_path: Path) -> None:
    study = trained(family, tmp_path, {"lr": [1e-2, 1e-3], "hidden": [4, 8]}, dtype="float64")
    assert len(study.results()) == 4
    assert study.check(members=[0])["equal"].all()
    assert isinstance(study.best().module(), Net)
    source = study.to_code()
    assert f"    {study.family.name}," in source
    again = hfta.Study.load(tmp_path, family=family)
    assert torch.equal(again.best().module()(x.double()), study.best().module()(x.double()))


def test_families_given_directly_are_on_no_list() -> None:
    def mlp(hidden: int = 8) -> nn.Module:
        return Net(hidden)

    assert hfta.Study(mlp, {"hidden": [4]}, data=(x, y)).family.function is mlp
    assert hfta.family("mlp").function is not mlp


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (Net(), "give the class Net"),
        (3, "a build function, a subclass of nn.Module"),
        (int, "a subclass of nn.Module"),
        (lambda lr=0.1: Net(), "is the name of a training axis"),
    ],
    ids=["module", "number", "class", "axis"],
)
def test_what_is_no_family(family: Any, message: str) -> None:
    with pytest.raises(FamilyError, match=message):
        hfta.Study(family, {"seed": [0]}, data=(x, y))


def test_parameters_that_are_no_axes_keep_their_defaults() -> None:
    assert list(from_callable(Net).axes) == ["hidden", "p"]


# Loss and metrics.


def smooth(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, label_smoothing=0.1)


def error(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(-1) != target).to(output.dtype).mean()


def test_loss_and_metrics_as_arguments(tmp_path: Path) -> None:
    metrics = {"error": hfta.Metric(error, maximize=False)}
    study = trained(Net, tmp_path, loss=smooth, metrics=metrics, monitor="val_error", dtype=torch.float64)
    assert study.metrics == ("train_loss", "val_loss", "train_error", "val_error")
    assert study.check(members=[1])["equal"].all()
    module = study.best().module()
    held_x, held_y = study.data.x_validation, study.data.y_validation
    assert study.best().metrics["val_error"] == pytest.approx(float(error(module(held_x.double()), held_y)))


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(label_smoothing=0.1), smooth], ids=["module", "function"])
def test_a_loss_may_be_a_module(loss: Any, tmp_path: Path) -> None:
    study = trained("mlp", tmp_path, loss=loss, metrics=[error], width=8, depth=1)
    assert "val_error" in study.metrics
    with pytest.raises(FamilyError, match="had loss and metrics of its own, which are not saved"):
        hfta.Study.load(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": nn.CrossEntropyLoss}, r"make one: CrossEntropyLoss\(\)"),
        ({"loss": "cross_entrpy"}, "not a loss; .*; did you mean cross_entropy"),
        ({"metrics": {"loss": error}}, "an identifier other than loss"),
        ({"metrics": [3]}, "a list of functions that have names"),
        ({"param_groups": {"lr": 1}}, "param_groups: can't be called; got {'lr': 1}; accepted: a function"),
    ],
    ids=["a class", "a name", "a metric called loss", "no function", "no rule"],
)
def test_what_is_no_loss_metric_or_group(options: dict[str, Any], message: str) -> None:
    with pytest.raises((FamilyError, StudyError), match=message):
        hfta.Study(Net, {"lr": [0.1]}, data=(x, y), **options)


# What models return.


@dataclass
class Output:
    hidden: Tensor
    logits: Tensor


@dataclass(frozen=True, slots=True)
class Slotted:
    logits: Tensor
    note: str = "plain"


class Named(NamedTuple):
    features: Tensor
    logits: Tensor


FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "dataclass": lambda h, o: Output(h, o),
    "slots": lambda h, o: Slotted(o),
    "named tuple": lambda h, o: Named(h, o),
    "dict": lambda h, o: {"hidden": h, "logits": o},
    "dict of one": lambda h, o: {"scores": o},
    "list": lambda h, o: [o, h],
}


class Returning(Net):
    def __init__(self, form: str = "dict", hidden: int = 8) -> None:
        super().__init__(hidden, 0.0)
        self.form = form

    def forward(self, x: Tensor) -> Any:
        hidden = self.body(x)
        return FORMS[self.form](hidden, self.head(hidden))


@pytest.mark.parametrize("form", FORMS)
def test_models_that_return_more_than_a_tensor(form: str, tmp_path: Path) -> None:
    study = trained(Returning, tmp_path / "a", form=form, epochs=1, dtype="float64")
    plain = trained(functools.partial(Net, p=0.0), tmp_path / "b", epochs=1, dtype="float64")
    curves = [s.history.members[0].curves["train_loss"].values for s in (study, plain)]
    assert curves[0] == pytest.approx(curves[1], rel=0, abs=1e-12)


def test_an_output_without_a_known_prediction_says_what_to_do(tmp_path: Path) -> None:
    class Two(Net):
        def forward(self, x: Tensor) -> Any:
            hidden = self.body(x)
            return {"left": self.head(hidden), "right": hidden}

    with pytest.raises(Exception, match="name it logits, or give a loss"):
        trained(Two, tmp_path)


# Dtypes.


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, "bfloat16"])
def test_dtypes_as_torch_has_them(dtype: Any, tmp_path: Path) -> None:
    study = trained(Net, tmp_path, dtype=dtype)
    assert study.best().module().head.weight.dtype == study.dtype
    assert str(study.dtype).removeprefix("torch.") == str(dtype).removeprefix("torch.")
    assert study.check(members=[0])["equal"].all()
    assert hfta.Study.load(tmp_path, family=Net).dtype == study.dtype


def test_other_dtypes_are_told_of() -> None:
    with pytest.raises(StudyError, match="for float16 use precision='fp16'"):
        hfta.Study(Net, data=(x, y), dtype="float16")
    with pytest.raises(StudyError, match="accepted: float32, float64, bfloat16"):
        hfta.Study(Net, data=(x, y), dtype=torch.int64)
