"""Define: fields, rows, the values read from them, and error messages."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from ui.bench import Make

import hfta_nb as hfta
from hfta_nb.data.augment import AXES
from hfta_nb.errors import FamilyError, GridError, HftaError, StudyError
from hfta_nb.ui.axis_row import AxisRow, describe, kinds_for, reword, typed


@pytest.fixture
def own_families() -> Iterator[None]:
    """Families that a test defines are gone after it."""
    registered = sys.modules["hfta_nb.models.model_zoo.registry"]._registered
    before = dict(registered)
    yield
    registered.clear()
    registered.update(before)


def offered(row: AxisRow) -> list[str]:
    """The axes that a row may be for."""
    return [name for _, name in row.name_field.options]


def test_what_is_given_stands_in_the_fields(make: Make) -> None:
    bench = make(
        grid={"lr": [1e-3, 1e-2], "activation": ["relu", "gelu"]}, epochs=7, patience=3, seed=5, dtype="float64"
    )
    define = bench.define
    assert [row.name for row in define.rows] == ["lr", "activation"]
    assert define.row("lr").text_field.value == "0.001, 0.01"
    assert [(b.description, b.value) for b in define.row("activation").choices_box.children] == [
        ("relu", True),
        ("gelu", True),
        ("tanh", False),
    ]
    found = define.definition()
    assert found.grid == {"lr": (1e-3, 1e-2), "activation": ("relu", "gelu")}
    wanted = {"epochs": 7, "batch_size": None, "patience": 3, "seed": 5, "dtype": "float64", "device": "cpu"}
    wanted |= {"folds": None, "precision": "fp32", "capacity": None, "checkpointing": "auto", "compile": "auto"}
    wanted |= {"cache_features": "auto"}
    wanted |= {
        "steps_per_epoch": None,
        "validate_every": 1,
        "padding": "auto",
        "trials": None,
        "sampler": None,
        "pruner": None,
    }
    wanted |= {"slots": None, "seeds_by": "mean", "population": None}
    assert found.options == wanted | {"device": define.fields["device"].value}


def test_the_pace_of_a_run_is_given_or_typed(make: Make) -> None:
    bench = make(validate_every=3, steps_per_epoch=40)
    assert (bench.study.validate_every, bench.study.steps_per_epoch) == (3, 40)
    bench.define.fields["validate_every"].value = "2"
    bench.define.fields["steps_per_epoch"].value = ""
    assert (bench.study.validate_every, bench.study.steps_per_epoch) == (2, None)
    assert "given in code" not in repr(bench.define.children[1].children)


def test_values_are_read_as_typed(make: Make) -> None:
    bench = make()
    row = bench.define.row("lr")
    row.text_field.value = "1e-3, 3e-3, 1e-2"
    assert row.values == (1e-3, 3e-3, 1e-2)
    assert row.preview.value == "0.001 0.003 0.01"
    assert len(bench.study.variants) == 3
    row.kind_field.value = "log range"
    assert row.text_field.value == "0.001 to 0.01, 3"
    row.text_field.value = "1e-4 to 1e-1, 4"
    assert row.values == (1e-4, 1e-3, 1e-2, 1e-1)


@pytest.mark.parametrize(
    ("typed_text", "said"),
    [
        ("1e-3, 1e", '"1e" is not a number; write 1e-3'),
        ("", "no values"),
        ("0.1, 0.1", "0.1 is given twice"),
        ("-1", "out of bounds"),
        ("__import__('os').getcwd()", "not a number"),
        ("0.1,, 0.2", "nothing between two commas"),
    ],
)
def test_an_error_stands_beside_its_field(make: Make, typed_text: str, said: str) -> None:
    bench = make()
    row = bench.define.row("lr")
    row.text_field.value = typed_text
    assert said in row.error
    assert 'role="alert"' in row.problem.value
    assert bench.train_view.buttons["train"].disabled
    assert bench.train_view.buttons["train"].tooltip == f"Not now: lr: {row.error}"
    assert bench.bar.status == f"not ready: lr: {row.error}"
    row.text_field.value = "0.1"
    assert row.error == ""
    assert row.problem.value == ""
    assert not bench.train_view.buttons["train"].disabled


def test_examples_fit_the_axis(make: Make) -> None:
    row = make().define.row("lr")
    row.text_field.value = "a,"
    assert "8, 16" not in row.error
    row.text_field.value = ""
    assert row.error == "no values; for example 1e-3, 3e-3, 1e-2"


def test_an_error_of_the_plan_stands_beside_its_axis(make: Make) -> None:
    bench = make()
    row = bench.define.add_axis("momentum", [0.5, 0.9])
    assert row.error == "changes nothing with optimizer=adam; set optimizer to rmsprop or sgd, or take the axis out"
    assert "see momentum above" in bench.plan_view.sentence.value
    row.remove_button.click()
    assert [r.name for r in bench.define.rows] == ["lr", "width"]
    assert bench.bar.status == "ready to train 2 variants"


def test_augmentation_is_offered_where_the_data_suit_and_marked_in_the_list(make: Make) -> None:
    bench = make()  # mlp on digits
    row = bench.define.row("lr")
    assert "mixup" in offered(row)
    assert ("mixup (augmentation)", "mixup") in row.name_field.options
    assert ("lr", "lr") in row.name_field.options
    assert [n for n in offered(row) if n in AXES] == offered(row)[-7:]  # after all others
    bench.define.add_axis("mixup").text_field.value = "0, 0.2"
    assert ("mixup", "mixup") in bench.define.row("mixup").name_field.options  # there is room for the name alone
    added = bench.define.add_axis()
    added.name_field.value = "cutmix"
    assert added.name_field.label == "cutmix"
    added.remove_button.click()
    assert bench.plan_view.sentence.value == "4 variants in 1 array of 4: differing in lr and mixup"
    bench.define.data_field.value = "wine"  # a table: its axes go, the others stay as they are
    assert [r.name for r in bench.define.rows] == ["lr", "width"]
    assert "mixup" not in offered(bench.define.row("lr"))
    bench.define.data_field.value = "digits"
    assert "mixup" in offered(bench.define.row("lr"))
    bench.define.family_field.value = "pointnet_cls"
    assert "mixup" not in offered(bench.define.row("lr"))
    assert "point_rotation" in offered(bench.define.row("lr"))


def test_a_change_of_data_that_changes_no_axis_leaves_what_is_typed(make: Make) -> None:
    bench = make(data="wine")
    bench.define.row("lr").text_field.value = "1e-3, 2e"
    row = bench.define.row("lr")
    bench.define.data_field.value = "iris"
    assert bench.define.row("lr") is row
    assert row.text_field.value == "1e-3, 2e"


def test_rows_are_added_and_removed(make: Make) -> None:
    bench = make()
    bench.define.add_button.click()
    added = bench.define.rows[-1]
    assert added.name == "depth"  # the first that is not there yet
    assert added.values == (2,)
    assert "lr" not in offered(added)
    assert "depth" not in offered(bench.define.row("lr"))
    added.name_field.value = "activation"
    assert added.kind_field.options == ("choice",)
    added.choices_box.children[1].value = True
    assert bench.define.definition().grid["activation"] == ("relu", "gelu")
    for box in added.choices_box.children:
        box.value = False
    assert "nothing is chosen" in added.error
    added.remove_button.click()
    assert "activation" in offered(bench.define.row("lr"))
    with pytest.raises(GridError, match="can't be added"):
        bench.define.add_axis("lr")


def test_booleans_and_seeds(make: Make) -> None:
    bench = make(optimizer="sgd")
    row = bench.define.add_axis("nesterov")
    assert [b.description for b in row.choices_box.children] == ["true", "false"]
    assert row.values == (False,)
    seeds = bench.define.add_axis("seed")
    assert (seeds.kind, seeds.values) == ("seeds", (0, 1, 2))


def test_values_given_in_code_are_kept_exactly(make: Make) -> None:
    third = 1 / 3
    bench = make(grid={"lr": [third, 1e-3]})
    assert bench.define.definition().grid["lr"] == (third, 1e-3)
    turned = make(grid={"activation": ["gelu", "relu"]})
    assert turned.define.definition().grid["activation"] == ("gelu", "relu")
    turned.define.row("activation").choices_box.children[2].value = True
    assert turned.define.definition().grid["activation"] == ("gelu", "relu", "tanh")
    assert typed((third, 1e12, 1e-5)) == f"{third!r}, 1e+12, 1e-05"


def test_a_range_is_shown_as_one(make: Make) -> None:
    row = make(grid={"lr": hfta.logspace(1e-4, 1e-1, 7)}).define.row("lr")
    assert (row.kind, row.text_field.value) == ("log range", "0.0001 to 0.1, 7")
    assert row.values == hfta.logspace(1e-4, 1e-1, 7)


def test_a_familys_own_defaults_are_shown(make: Make, own_families: None) -> None:
    @hfta.family(data="digits", defaults={"batch_size": 32, "lr": 0.25})
    def slow(in_features: int = 64, num_classes: int = 10) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(in_features, num_classes))

    define = make(family="slow", data="digits", grid={"seed": [0, 1]}).define
    assert define.fields["batch_size"].value == "32"
    assert define.definition().options["batch_size"] is None
    assert define.add_axis("lr").values == (0.25,)
    define.family_field.value = "mlp"
    assert define.fields["batch_size"].value == "64"
    define.fields["batch_size"].value = "16"
    define.family_field.value = "slow"
    assert define.fields["batch_size"].value == "16"  # what a person chose stays
    assert define.definition().options["batch_size"] == 16


def test_kinds_and_rewording() -> None:
    specs = hfta.family("mlp").specs
    assert kinds_for(specs["activation"]) == ("choice",)
    assert kinds_for(specs["nesterov"]) == ("boolean",)
    assert kinds_for(specs["lr"]) == ("list", "range", "log range", "interval", "log interval")
    assert kinds_for(specs["width"])[:2] == ("list", "integers")
    assert describe(specs["dropout"], (0.0, 0.25, 0.5, 0.75)) == ("range", "0 to 0.75, 4")
    assert reword("integers", (2, 8), specs["width"]) == "2 to 8"
    assert reword("log range", None, specs["lr"]) == "1e-4, 1e-1, 4"
    assert reword("list", (math.pi,), specs["lr"]) == repr(math.pi)


def test_a_constructor_joins_the_list_when_it_is_named(
    make: Make, own_families: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
from torch import nn

class Net(nn.Linear):
    def __init__(self, in_features: int, num_classes: int, scale: float = 1.0, **more):
        super().__init__(in_features, num_classes, **more)
"""
    (tmp_path / "named_in_a_cell.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    bench = make(family="mlp", data="wine")
    assert "named_in_a_cell.Net" not in bench.define.family_field.options
    hfta.family("named_in_a_cell.Net")
    assert "named_in_a_cell.Net" in bench.define.family_field.options
    bench.define.family_field.value = "named_in_a_cell.Net"
    assert bench.define.data_field.value == "wine"
    assert {"scale", "bias"} & set(offered(bench.define.add_axis())) == {"scale"}
    named = make(family="named_in_a_cell.Net", data="wine", grid={"bias": [True, False]}).define
    assert named.definition().grid == {"bias": (True, False)}
    with pytest.raises(FamilyError, match=r"named_in_a_cell has no Nett; did you mean named_in_a_cell\.Net"):
        make(family="named_in_a_cell.Nett")


def test_directories_of_data_are_offered(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTA_NB_DATA", str(tmp_path))
    for kind in ("cifar10", "wikitext"):
        (tmp_path / kind).mkdir()
    define = make(family="cnn", data=None).define
    assert list(define.data_field.options) == ["digits", "cifar10"]
    define.family_field.value = "gpt"
    assert list(define.data_field.options) == ["english", "english_words", "wikitext"]


def test_a_loader_is_data_of_ones_own(make: Make) -> None:
    x, y = torch.randn(40, 5), torch.arange(40) % 3
    loader = DataLoader(TensorDataset(x, y), 8)
    data = hfta.data.from_loader(loader, (x, y), name="my loader")
    define = make(family="mlp", data=data).define
    assert define.data_field.value == "my loader"
    assert define.definition().data is data
    whole = make(family="mlp", data=TensorDataset(x, y)).define
    assert whole.data_field.value == "TensorDataset"
    assert isinstance(whole.definition().data, hfta.Data)


def test_a_family_defined_in_a_cell_joins_the_list(make: Make, own_families: None) -> None:
    bench = make(data=None)

    @hfta.family(data=["breast_cancer"])
    def small(width: int = 4, act: Literal["a", "b"] = "a", in_features: int = 30, num_classes: int = 2) -> nn.Module:
        return nn.Sequential(nn.Linear(in_features, width), nn.Linear(width, num_classes))

    assert bench.define.family_field.options[:2] == ("cnn", "mlp")
    assert bench.define.family_field.options[-1] == "small"
    assert bench.define.family_field.value == "mlp"
    bench.define.family_field.value = "small"
    assert bench.define.data_field.options == ("breast_cancer",)
    assert [r.name for r in bench.define.rows] == ["lr", "width"]  # both families have them
    assert bench.bar.status == "ready to train 2 variants"
    bench.define.add_axis("act", ["a", "b"])
    bench.define.family_field.value = "cnn"
    assert [r.name for r in bench.define.rows] == ["lr", "width"]  # cnn has no such axis

    @hfta.family(data=["digits"])
    def small(depth: int = 1, in_features: int = 64, num_classes: int = 10) -> nn.Module:  # noqa: F811 (the cell is run again)
        return nn.Linear(in_features, num_classes)

    bench.define.family_field.value = "small"
    assert bench.define.data_field.options == ("digits",)
    assert [r.name for r in bench.define.rows] == ["lr"]


def test_a_family_that_fails_to_build_is_told_in_words(make: Make, own_families: None) -> None:
    @hfta.family(data="digits")
    def broken(width: int = 4) -> nn.Module:
        raise RuntimeError("<b>boom</b>")

    bench = make(family="broken", grid={"width": [1]})
    assert "boom" in bench.bar.status
    assert "<b>" not in bench.define.problem.value
    assert bench.train_view.buttons["train"].disabled


def test_own_data(make: Make) -> None:
    data = hfta.data.from_tensors(torch.randn(40, 5), torch.arange(40) % 3, name="<script>mine</script>")
    bench = make(data=data)
    assert "<script>mine</script>" in bench.define.data_field.options
    assert bench.study.data is data
    assert "digits" in bench.define.data_field.options


def test_data_in_a_directory_joins_the_list(make: Make, tmp_path: Path) -> None:
    for number in range(8):
        folder = tmp_path / "folder" / ("val" if number < 2 else "train") / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (30 * number, 0, 0)).save(folder / f"{number}.png")
    name = f"image_folder:{tmp_path / 'folder'}"
    bench = make(data=name)
    assert bench.define.data_field.value == name
    assert bench.study.data.name == name
    bench.define.family_field.value = "resnet18"
    assert bench.define.data_field.value == name


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"family": "cmn"}, FamilyError),
        ({"grid": {"learning_rate": [1]}}, GridError),
        ({"grid": {"lr": ["fast"]}}, GridError),
        ({"data": "digit"}, HftaError),
        ({"dtype": "float8"}, HftaError),
        ({"precision": "float8"}, HftaError),
        ({"device": "tpu"}, HftaError),
        ({"compile": "sometimes"}, HftaError),
        ({"checkpointing": "sometimes"}, HftaError),
        ({"capacity": "most"}, HftaError),
        ({"epochs": 0}, HftaError),
        ({"batch_size": 1.5}, HftaError),
    ],
)
def test_wrong_arguments_raise(make: Make, arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        make(**arguments)


def test_a_search_by_a_function_is_sent_elsewhere(make: Make) -> None:
    with pytest.raises(StudyError, match=r"Workbench, grid: a function has no rows; .*Workbench\.reattach"):
        make(grid=lambda trial: {"lr": trial.suggest_float("lr", 1e-4, 1e-1)}, trials=4)
