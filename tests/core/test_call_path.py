"""The path of a call: what tells two calls apart, and what does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hfta_nb.engine.rules.call_path import CallPath

X = torch.zeros(2)


def value(*args: Any, **kwargs: Any) -> int:
    path = CallPath()
    path.add(torch.add, args, kwargs)
    return path.value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), (2,)),
        ((True,), (1,)),
        ((None,), (False,)),
        ((0.0,), (0.5,)),
        (("mean",), ("sum",)),
        ((torch.float32,), (torch.float64,)),
        (((1, 1),), ((2, 2),)),
        (((1, 1),), ([1, 1],)),
        ((X,), (None,)),
        ((X, 1), (X,)),
    ],
)
def test_arguments_that_choose_how_a_function_runs_make_another_path(one: Any, other: Any) -> None:
    assert value(*one) != value(*other)
    assert value(**{f"a{i}": v for i, v in enumerate(one)}) != value(**{f"a{i}": v for i, v in enumerate(other)})


def test_values_of_tensors_and_counts_do_not() -> None:
    assert value(X, 0.5, 100, [X, 100], n=300) == value(torch.nn.Parameter(X + 1), 0.7, 200, [X, 300], n=400)
    assert value(X, n=1) != value(X, m=1)


def test_the_order_of_functions_counts() -> None:
    paths = [CallPath(), CallPath()]
    for path, functions in zip(paths, [(torch.add, torch.mul), (torch.mul, torch.add)], strict=True):
        for function in functions:
            path.add(function, (X, X), {})
    assert paths[0].value != paths[1].value
