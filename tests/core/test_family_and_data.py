"""Families from signatures, and their data."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb import Study, data
from hfta_nb.errors import DataError, FamilyError
from hfta_nb.models.model_zoo import watch
from hfta_nb.models.recipes import from_function


def test_axes_come_from_the_signature() -> None:
    def build(
        width: int = 8,
        rate: float = 0.1,
        deep: bool = True,
        act: Literal["relu", "tanh"] = "relu",
        sizes: tuple[int, ...] = (1, 2),
        untyped=3,
        num_classes: int = 10,
    ) -> nn.Module:
        """First line.

        More.
        """
        return nn.Linear(width, num_classes)

    family = from_function(build)
    kinds = {name: (spec.type, spec.default) for name, spec in family.axes.items()}
    assert kinds == {
        "width": ("int", 8),
        "rate": ("float", 0.1),
        "deep": ("bool", True),
        "act": ("any", "relu"),
        "sizes": ("any", (1, 2)),
        "untyped": ("int", 3),
    }
    assert family.axes["act"].choices == ("relu", "tanh")
    assert family.facts == ("num_classes",)
    assert family.help == "First line."
    assert list(family.specs)[:2] == ["lr", "width"]
    assert family.build(width=3, num_classes=2).weight.shape == (2, 3)


def _no_default(width: int) -> nn.Module:
    return nn.Linear(width, 1)


def _not_a_module(width: int = 1) -> nn.Module:
    return width  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: from_function(lambda: None), "not a build function"),
        (lambda: from_function(_variadic), r"_variadic\(more\): can't be an axis"),
        (lambda: from_function(_takes_lr), "name of a training axis; rename"),
        (lambda: from_function(_takes_module), "an annotation that gives no axis"),
        (lambda: from_function(_no_default).build(), "without default needs a value"),
        (lambda: from_function(_not_a_module).build(), "did not return a module"),
        (lambda: from_function(_no_default).build(height=1), "unknown axis"),
        (lambda: hfta.family("clnn"), "did you mean cnn"),
        (lambda: from_function(_no_default, metrics={"loss": abs}), "not a name for a metric"),
        (lambda: from_function(_no_default, metrics={"m": 3}), "not a metric"),
    ],
)
def test_recipes_that_can_not_be(call, words: str) -> None:
    with pytest.raises(FamilyError, match=words):
        call()


def _variadic(**more: int) -> nn.Module:
    return nn.Identity()


def _takes_lr(lr: float = 1.0) -> nn.Module:
    return nn.Identity()


def _takes_module(inner: nn.Module) -> nn.Module:
    return inner


def test_defining_tells_who_watches() -> None:
    calls = []
    end = watch(lambda: calls.append(1))
    hfta.family(_no_default, name="watched")
    assert hfta.families()[:2] == ["cnn", "mlp"]
    assert "watched" in hfta.families()
    end()
    hfta.family(_no_default, name="watched")
    assert calls == [1]


@pytest.mark.parametrize(
    ("name", "sizes", "shape", "task"),
    [
        ("digits", (1437, 360), (1, 8, 8), "classification"),
        ("breast_cancer", (455, 114), (30,), "classification"),
        ("diabetes", (353, 89), (10,), "regression"),
    ],
)
def test_built_in_data(name: str, sizes: tuple, shape: tuple, task: str) -> None:
    d = data.load(name)
    assert (len(d.x), len(d.x_validation)) == sizes
    assert d.x.shape[1:] == shape
    assert d.task == task
    assert torch.isfinite(d.x).all()
    if name != "digits":
        assert d.x.mean(0).abs().max() < 1e-5
        assert (d.x.std(0) - 1).abs().max() < 1e-4
    if task == "classification":
        share = (d.y == 0).double().mean() - (d.y_validation == 0).double().mean()
        assert abs(share.item()) < 0.01  # stratified
    again = data.load.__wrapped__(name)
    assert torch.equal(again.x, d.x)  # the split has a seed


def test_own_data() -> None:
    x = torch.randn(50, 3)
    d = data.resolve((x, x.sum(1)))
    assert (d.task, d.y.shape, len(d.x), len(d.x_validation)) == ("regression", (40,), 40, 10)
    assert d.facts == {"in_features": 3, "out_features": 1}
    images = data.from_tensors(torch.randn(20, 3, 4, 4).numpy(), list(range(5)) * 4, name="mine")
    assert images.facts == {"in_features": 48, "num_classes": 5, "out_features": 5, "in_channels": 3, "image_size": 4}
    whole = data.resolve((x, x.sum(1), x[:5], x[:5].sum(1)))
    assert len(whole.x) == 50


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: data.load("didgits"), "did you mean digits"),
        (lambda: data.resolve(3), "not data"),
        (lambda: data.from_tensors(torch.randn(5, 2), torch.randn(4)), "5 inputs, 4 targets"),
        (lambda: Study("mlp", data=(torch.full((9, 2), torch.nan), torch.randn(9))), "x: holds NaN"),
        (lambda: Study("mlp", data=(torch.randn(9, 2), torch.full((9,), torch.inf))), "y: holds .* or give a loss of"),
        (lambda: Study("mlp", data=(torch.randn(9, 2), torch.full((9,), torch.inf)), loss="l1"), "y: holds infinity"),
        (lambda: Study("mlp", data=(torch.randn(9, 2), torch.full((9,), torch.nan))), "y: has no targets; .* missing"),
        (
            lambda: data.resolve((torch.zeros(3, 2), torch.zeros(3), torch.zeros(3))),
            r"got 'a tuple of 3'; .*\(x, \(y, w",
        ),
        (lambda: data.from_tensors("x", [1]), "x: not a tensor"),
        (lambda: data.from_tensors(torch.zeros(1, 2), torch.zeros(1)), "can't set samples aside of 1; accepted: 2 or"),
        (lambda: data.from_tensors(torch.zeros(0, 2), torch.zeros(0)), "can't set samples aside of 0"),
        (lambda: data.from_tensors(torch.zeros(3, 2), torch.zeros(3), validation=0.1), "can't set this part aside"),
        (lambda: data.from_tensors(torch.randn(5, 2), torch.randn(5), torch.randn(2, 2), torch.randn(1)), "validation"),
    ],
)
def test_data_that_can_not_be(call, words: str) -> None:
    with pytest.raises(DataError, match=words):
        call()


def test_orders() -> None:
    assert torch.equal(data.order(100, 0, 3), data.order(100, 0, 3))
    assert not torch.equal(data.order(100, 0, 3), data.order(100, 0, 4))
    assert not torch.equal(data.order(100, 1, 3), data.order(100, 0, 3))
    assert sorted(data.order(100, 0, 0).tolist()) == list(range(100))
    assert data.by_member([4, 4], lambda seed: data.order(10, seed, 0)).shape == (10,)
    assert torch.equal(data.by_member([4, 5], lambda seed: data.order(10, seed, 0))[1], data.order(10, 5, 0))
