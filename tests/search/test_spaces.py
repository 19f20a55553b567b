"""Search spaces."""

from __future__ import annotations

import re
from typing import Any

import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import FixedTrial

import hfta_nb as hfta
from hfta_nb.errors import GridError, SearchError
from hfta_nb.search import is_space
from hfta_nb.search.spaces import checked, suggested


def test_a_configuration_has_a_value_of_every_axis() -> None:
    space = {
        "lr": hfta.uniform(1e-4, 1e-1, log=True),
        "dropout": hfta.uniform(0, 0.5, step=0.1),
        "width": hfta.integers(8, 64, 8),
        "betas": [(0.9, 0.99), (0.8, 0.9)],
        "activation": ["relu", "gelu"],
        "depth": IntDistribution(1, 4),
        "decay": FloatDistribution(1e-5, 1e-2, log=True),
    }
    values = {"lr": 1e-3, "dropout": 0.2, "width": 24, "activation": "gelu", "depth": 3, "decay": 1e-3}
    trial: Any = FixedTrial({**values, "betas": (0.8, 0.9)})
    assert suggested(trial, checked(space)) == {**values, "betas": (0.8, 0.9)}


def test_a_function_of_the_trial_has_axes_that_depend_on_each_other() -> None:
    def space(trial: Any) -> dict[str, Any]:
        kind = trial.suggest_categorical("optimizer", ["sgd", "adam"])
        own = {"momentum": trial.suggest_float("momentum", 0, 0.9)} if kind == "sgd" else {}
        return {"optimizer": kind, **own}

    assert suggested(FixedTrial({"optimizer": "adam"}), space) == {"optimizer": "adam"}  # type: ignore[arg-type]
    sgd: Any = FixedTrial({"optimizer": "sgd", "momentum": 0.5})
    assert suggested(sgd, space) == {"optimizer": "sgd", "momentum": 0.5}


def test_a_function_that_gives_no_configuration() -> None:
    with pytest.raises(SearchError, match=r"not a configuration; got 3; accepted: a dict of axes to values"):
        suggested(FixedTrial({}), lambda trial: 3)  # type: ignore[arg-type, return-value]


WRONG = [
    (lambda: hfta.uniform(1, 1), "the ends are not in order; got (1, 1); accepted: low < high"),
    (lambda: hfta.uniform(0, float("inf")), "not an interval"),
    (
        lambda: hfta.uniform(0, 1, log=True),
        "no logarithmic interval: low=0; accepted: low > 0",
    ),
    (lambda: hfta.uniform(0, 1, step=2), "not a step; got 2; accepted: above 0, up to 1"),
    (lambda: hfta.uniform("a", 1), "low: not a number; got 'a'"),  # type: ignore[arg-type]
    (lambda: checked({"lr": 3}), "lr: can't be searched; got 3; accepted: hfta.uniform"),
    (lambda: checked({"lr": "abc"}), "lr: can't be searched"),
    (lambda: checked({"lr": []}), "lr: can't be searched"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_what_is_no_axis_is_told(call: Any, message: str) -> None:
    with pytest.raises(SearchError, match=re.escape(message)):
        call()


def test_a_name_that_no_axis_can_have() -> None:
    with pytest.raises(GridError, match="not a name for an axis"):
        checked({"learning rate": [1, 2]})


def test_lists_can_be_trained_whole_and_intervals_can_not() -> None:
    assert not is_space({"lr": [1e-3], "width": hfta.integers(8, 16)})
    assert is_space({"lr": hfta.uniform(0, 1)})
    assert is_space({"lr": FloatDistribution(0, 1)})
    assert is_space(lambda trial: {})
    assert not is_space(None)
    assert not is_space([{"lr": 1e-3}])
