"""Spaces as other packages write them: scikit-learn's list of grids is a grid; nested dicts show their flat form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb import Grid
from hfta_nb.errors import GridError, SearchError
from tests.contract.handed_over import numbers

X = numbers(32, 4)
DATA = (X, (X[:, 0] > 0).long())


def build(width: int = 8, kernel: tuple[int, ...] = (3,)) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


def configs(grid: Any) -> list[dict[str, Any]]:
    return [variant.config for variant in Grid(grid).variants()]


LISTS = [{"lr": [0.1, 0.01], "optimizer": ["sgd"]}, {"lr": [0.001], "width": [4, 8]}]


def test_a_list_of_grids_is_what_scikit_learn_makes_of_it() -> None:
    from sklearn.model_selection import ParameterGrid, ParameterSampler

    alike = [dict(sorted(config.items())) for config in ParameterGrid(LISTS)]
    assert [dict(sorted(config.items())) for config in configs(LISTS)] == alike
    assert configs(ParameterGrid(LISTS)) == list(ParameterGrid(LISTS))
    drawn = ParameterSampler({"lr": [0.1, 0.2, 0.3], "width": [4, 8]}, n_iter=3, random_state=0)
    assert configs(drawn) == list(drawn)


@pytest.mark.parametrize(
    ("grid", "found"),
    [
        ([{"lr": [0.1, 0.2]}], [{"lr": 0.1}, {"lr": 0.2}]),
        ([{"lr": np.array([0.1, 0.2])}], [{"lr": 0.1}, {"lr": 0.2}]),
        ([{"width": range(4, 9, 4)}], [{"width": 4}, {"width": 8}]),
        ([{"kernel": [[3, 5], [3]]}], [{"kernel": (3, 5)}, {"kernel": (3,)}]),
        ([{"kernel": (3, 5)}, {"kernel": (3,)}], [{"kernel": (3, 5)}, {"kernel": (3,)}]),  # a tuple is one value
        ([{"lr": 0.1, "kernel": [3, 5]}], [{"lr": 0.1, "kernel": (3, 5)}]),  # beside other values, a list is one
    ],
)
def test_values_of_lists_of_grids(grid: Any, found: list[dict[str, Any]]) -> None:
    assert configs(grid) == found


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ([{"lr": [0.1, 0.2]}, {"lr": [0.2]}], "given twice"),
        ([{"lr": []}], "no configuration"),
        ([{"lr": [0.1]}, {}], "not a list of values|not a number|lr"),
        ([{"lr": list(range(1, 400)), "width": list(range(1, 400))}], "too many variants"),
    ],
)
def test_lists_of_grids_that_are_none(grid: Any, words: str) -> None:
    if words.startswith("not a list"):
        assert configs(grid) == [{"lr": (0.1,)}, {}]  # an empty dict is a configuration, so these are configurations
        return
    with pytest.raises(GridError, match=words):
        Grid(grid)


NESTED = [
    ({"optimizer": {"lr": [0.1, 0.01]}}, "{'lr': [0.1, 0.01]}"),
    ({"optimizer": {"name": ["sgd"], "lr": [0.1]}}, "{'optimizer': ['sgd'], 'lr': [0.1]}"),
    ({"optimizer": {"_target_": "adam"}, "model": {"width": [4]}}, "{'optimizer': 'adam', 'width': [4]}"),
    ({"model": {"encoder": {"width": [4, 8]}}}, "{'width': [4, 8]}"),
    ({"lr": {"values": [0.1]}, "width": {"value": 4}}, "{'lr': [0.1], 'width': 4}"),
    ({"lr": {"min": 0.1, "max": 0.2, "distribution": "log_uniform"}}, "hfta_nb.uniform(0.1, 0.2, log=True)"),
    ({"method": "grid", "parameters": {"lr": {"values": [0.1]}}}, "{'lr': [0.1]}"),
    ({"optimizer": [{"name": "sgd", "lr": 0.1}, {"name": "adam"}]}, "[{'optimizer': 'sgd', 'lr': 0.1}, {'optimizer'"),
]


@pytest.mark.parametrize("how", [{}, {"trials": 2}], ids=["grid", "search"])
@pytest.mark.parametrize(("grid", "flat"), NESTED)
def test_nested_dicts_show_their_flat_form(grid: Any, flat: str, how: dict[str, int]) -> None:
    with pytest.raises(GridError) as caught:
        hfta.Study(build, grid, DATA, epochs=1, device="cpu", **how)
    assert flat in str(caught.value)


@pytest.mark.parametrize("name", ["optimizer__lr", "optimizer.lr", "optimizer/lr", "clf__lr"])
def test_names_with_a_prefix_show_the_axis(name: str) -> None:
    with pytest.raises(GridError, match=r"lr\?$|prefix: lr$"):
        hfta.Study(build, {name: [0.1]}, DATA, epochs=1, device="cpu")


def test_a_search_among_several_grids_is_a_function() -> None:
    with pytest.raises(SearchError, match="a function can choose among grids"):
        hfta.Study(build, LISTS, DATA, epochs=1, device="cpu", trials=2)


def test_a_study_of_a_list_of_grids(tmp_path: Path) -> None:
    study = hfta.Study(build, LISTS, DATA, epochs=1, device="cpu", batch_size=16, directory=tmp_path)
    study.fit(progress=False)
    again = hfta.Study.load(tmp_path, family=build, data=DATA)
    assert [v.config for v in again.variants] == [v.config for v in study.variants]
    assert len(again.variants) == 4
    assert torch.isfinite(torch.tensor(study.results()["val_loss"].tolist())).all()


def stacked(widths: list[int]) -> nn.Module:
    sizes = [4] + widths  # noqa: RUF005, which a tuple can't be added to
    return nn.Sequential(*map(nn.Linear, sizes, [*widths, 2]))


def by_default(widths=[8]) -> nn.Module:  # type: ignore[no-untyped-def]  # noqa: B006
    return stacked(widths)


def by_union(widths: list[int] | None = None) -> nn.Module:
    return stacked(widths or [8])


def by_sequence(widths: Sequence[int] = (8,)) -> nn.Module:
    return stacked(list(widths))


@pytest.mark.parametrize("build", [stacked, by_default, by_union, by_sequence])
def test_a_build_function_that_takes_lists_gets_lists(build: Any) -> None:
    study = hfta.Study(build, {"widths": [[4], [8, 6]]}, DATA, epochs=1, verify="never")
    built = [study.family.build(**variant.config) for variant in study.variants]
    assert [[m.out_features for m in module] for module in built] == [[4, 2], [8, 6, 2]]
