"""Incompatible families and data are rejected when a study is created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.data.catalogue import BUILT_IN
from hfta_nb.data.catalogue_names import DIRECTORIES, TASKS
from hfta_nb.data.readers import READERS
from hfta_nb.errors import DataError, FamilyError
from hfta_nb.models.model_zoo import check_data, constructors
from hfta_nb.models.recipes import from_function

ROWS = (torch.zeros(9, 4), torch.zeros(9).long())


def build(width: int = 4) -> nn.Module:
    return nn.LazyLinear(width)


@pytest.mark.parametrize(
    ("family", "data", "words"),
    [
        (
            "gpt",
            "digits",
            "gpt: is for language_model, and digits is for classification; accepted: english, english_words",
        ),
        ("cnn", "english", "cnn: is for classification, and english is for language_model; accepted: digits, "),
        (
            "mlp",
            "clicks",
            "mlp: is for classification and regression, and clicks is for click.*families for clicks: dlrm",
        ),
        ("bert", "english", "bert: is for masked_language_model"),
        ("dcgan", "digits", "dcgan: is for generation, and digits is for classification; accepted: photograph_patches"),
        ("dlrm", "wine", "dlrm: is for click"),
    ],
)
def test_built_in_families_know_their_tasks(family: str, data: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match=words):
        hfta.Study(family, {"lr": [1e-3]}, data, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("family", "given", "words"),
    [
        (
            "cnn",
            "wine",
            r"cnn: needs images, and wine is table rows \[13\]; accepted: images \[channels, height, width\]: "
            r"digits, mnist, .*image_folder; families for wine: (?=.*\bmlp\b)(?!.*\bcnn\b)",
        ),
        ("resnet18", "iris", r"resnet18: needs images, and iris is table rows \[4\]"),
        (
            "cnn",
            "shapes",
            r"and shapes is point clouds \[256, 6\].*families for shapes: (?=.*\bpointnet_cls\b)(?!.*\bcnn\b)",
        ),
        ("pointnet_cls", "digits", r"needs point clouds, and digits is images \[1, 8, 8\].*: shapes, modelnet40"),
        (
            "unet",
            "shape_parts",
            r"needs images, and shape_parts is point clouds.*families for shape_parts: "
            r"(?=.*\bpointnet_seg\b)(?!.*\bunet\b)",
        ),
        ("pointnet_seg", "photographs", r"needs point clouds, and photographs is images \[1, 32, 32\]"),
        ("cnn", ROWS, r"needs images, and own data is table rows \[4\]"),
        ("vit", (torch.zeros(9, 4, 2, 2, 2), torch.zeros(9).long()), r"own data is inputs \[4, 2, 2, 2\]"),
        ("cnn", (lambda: [ROWS], ROWS), r"own data is table rows \[4\]"),
    ],
)
def test_built_in_families_know_their_inputs(family: str, given: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match=words):
        hfta.Study(family, {"lr": [1e-3]}, given, directory=tmp_path / "run")


@pytest.mark.parametrize(
    ("path", "inputs"),
    [
        ("torchvision.models.resnet18", ("images",)),
        ("timm.resnet18", ("images",)),
        ("torchvision.models.video.r3d_18", ()),
        ("package.Net", ()),
    ],
)
def test_models_of_packages_for_images_take_images(
    path: str, inputs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constructors, "recipe_of", lambda path: constructors.Recipe(build, {}, {}))
    assert constructors.family_of(path).inputs == inputs


def test_inputs_of_a_family_of_ones_own() -> None:
    with pytest.raises(FamilyError, match=r"not a kind of inputs; got 'pictures'; accepted: images, point clouds, "):
        from_function(build, inputs="pictures")
    own = from_function(build, inputs=["table rows", "images"])
    check_data(own, hfta.data.load("wine"))
    with pytest.raises(FamilyError, match="needs table rows or images, and shapes is point clouds"):
        check_data(own, hfta.data.load("shapes"))


def test_every_built_in_family_suits_its_data() -> None:
    for name in hfta.families():
        family = hfta.family(name)
        if not family.function.__module__.startswith("hfta_nb."):  # of another test
            continue
        assert family.tasks, name
        for known in family.data:
            assert hfta.data.task_of(known) in family.tasks
            check_data(family, hfta.data.load(known))


def test_own_families() -> None:
    assert from_function(build).tasks == ()  # anything that has a loss
    assert from_function(build, data="english").tasks == ("language_model",)
    assert from_function(build, data=["digits", "diabetes"]).tasks == ("classification", "regression")
    assert from_function(build, data="english", tasks="classification").tasks == ("classification",)
    with pytest.raises(FamilyError, match="not a task; got 'any thing'"):
        from_function(build, tasks=["any thing"])


def test_an_unknown_task_is_refused() -> None:
    x = torch.randn(20, 3)
    with pytest.raises(DataError, match="task: unknown choice; got 'ranking'; accepted: classification, regression"):
        hfta.data.from_tensors(x, x.sum(1), task="ranking", name="ranks")


def test_names_of_data_sets_are_those_that_can_be_read() -> None:
    assert READERS.keys() == DIRECTORIES
    assert TASKS.keys() - DIRECTORIES == BUILT_IN.keys()
