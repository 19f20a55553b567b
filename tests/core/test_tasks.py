"""Families and data that do not go together are refused when a study is made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import FamilyError
from hfta_nb.family import from_function


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
            "mlp: is for classification and regression, and clicks is for click.*families for click: dlrm",
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


def test_every_built_in_family_suits_its_data() -> None:
    for name in hfta.families():
        family = hfta.family(name)
        assert family.tasks, name
        for known in family.data:
            assert hfta.data.task_of(known) in family.tasks


def test_own_families() -> None:
    assert from_function(build).tasks == ()  # anything that has a loss
    assert from_function(build, data="english").tasks == ("language_model",)
    assert from_function(build, data=["digits", "diabetes"]).tasks == ("classification", "regression")
    assert from_function(build, data="english", tasks="classification").tasks == ("classification",)
    with pytest.raises(FamilyError, match="not a task; got 'any thing'"):
        from_function(build, tasks=["any thing"])


def test_a_task_without_a_loss(tmp_path: Path) -> None:
    x = torch.randn(20, 3)
    data = hfta.data.from_tensors(x, x.sum(1), task="ranking", name="ranks")
    with pytest.raises(FamilyError, match="no loss is known for this task"):
        hfta.Study(from_function(build), {"lr": [1e-3]}, data, directory=tmp_path)
    own = from_function(build, loss=lambda out, y: (out.sum(1) - y).square().mean())
    assert hfta.Study(own, {"lr": [1e-3]}, data, directory=tmp_path).data is data
