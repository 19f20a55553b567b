"""Estimators and the search of `hfta_nb.sklearn`, by scikit-learn's own checks and against its own search."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch import nn

from hfta_nb.errors import GridError, StudyError
from hfta_nb.sklearn import FusedClassifier, FusedRegressor, FusedSearchCV

EXPECTED = {"check_no_attributes_set_in_init": r"Found attributes \['axes'\]"}
"""Checks that can't apply, and how they fail: which axes there are depends on the family, so that the constructor can't
list them, and keeps those it is given in one dict."""

QUICK = ("check_estimators_pickle", "check_fit2d_1sample", "check_set_params",
         "check_parameters_default_constructible", "check_estimator_cloneable")  # fmt: skip
"""Checks of the default tier; the others take a minute."""

ESTIMATORS = [
    FusedClassifier("mlp", lr=0.01, epochs=30, width=16),
    FusedRegressor("mlp", lr=0.03, epochs=60, batch_size=32),
]


def _name(check: Any) -> str:
    while isinstance(check, functools.partial):
        check = check.func
    return str(check.__name__)


def _checks() -> list[Any]:
    """Each check of scikit-learn's for each estimator, once in each form."""
    every = [(one, check) for estimator in ESTIMATORS for one, check in estimator_checks_generator(estimator)]
    return [
        pytest.param(one, check, id=f"{type(one).__name__}-{number}-{_name(check)}",
                     marks=() if _name(check) in QUICK else pytest.mark.long)
        for number, (one, check) in enumerate(every)
    ]  # fmt: skip


@pytest.mark.parametrize(("estimator", "check"), _checks())
def test_an_estimator_passes_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    if _name(check) in EXPECTED:
        with pytest.raises(AssertionError, match=EXPECTED[_name(check)]):
            check(estimator)
    else:
        check(estimator)


def iris() -> tuple[NDArray[Any], NDArray[Any]]:
    """Every third flower, by names."""
    x, y = load_iris(return_X_y=True)
    return x[::3], np.array(["setosa", "versicolor", "virginica"])[y[::3]]


def own(width: int = 8, in_features: int = 4, out_features: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(in_features, width), nn.Tanh(), nn.Linear(width, out_features))


def test_an_estimator_of_an_own_function_works_in_a_pipeline() -> None:
    x, y = iris()
    model = make_pipeline(StandardScaler(), FusedClassifier(own, lr=0.03, epochs=20, batch_size=16, width=4)).fit(x, y)
    assert model.score(x, y) > 0.8
    assert set(model.predict(x)) <= set(y)
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1)
    assert model[-1].module_[0].out_features == 4
    assert clone(model)[-1].get_params()["width"] == 4


def test_one_output_is_the_second_class() -> None:
    x, y = iris()
    two = y != "virginica"

    def one(in_features: int = 4) -> nn.Module:
        return nn.Linear(in_features, 1)

    model = FusedClassifier(one, lr=0.1, loss="binary_cross_entropy_with_logits", epochs=20).fit(x[two], y[two])
    assert model.score(x[two], y[two]) == 1
    assert model.predict_proba(x[two]).shape == (two.sum(), 2)


def test_several_targets() -> None:
    x, y = load_diabetes(return_X_y=True)
    both = np.stack([y, -y], 1)[:60] / 100
    model = FusedRegressor("mlp", lr=0.01, epochs=2).fit(x[:60], both)
    assert model.predict(x[:5]).shape == (5, 2)
    assert model.score(x[:60], both) < 1


@pytest.mark.parametrize(
    ("params", "error", "words"),
    [
        ({"widht": 8}, GridError, "did you mean width"),
        ({"lr_scheduler": "plateau"}, StudyError, "follows a loss of validation"),
        ({"directory": "here"}, StudyError, "directory: is set by `fit`"),
        ({"lr": 1e300, "optimizer": "sgd", "epochs": 2}, StudyError, "is diverged"),
    ],
)
def test_what_can_not_be_used_is_refused(params: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        FusedClassifier("mlp", **params).fit(*iris())


def searched(kind: Any, **how: Any) -> Any:
    """Two candidates on two folds of iris."""
    model = FusedClassifier(own, epochs=3, batch_size=16)
    return kind(model, [{"lr": [1e-3, 3e-2]}, {"width": [3]}], scoring=["accuracy", "neg_log_loss"], cv=2,
                refit="neg_log_loss", return_train_score=True, **how).fit(*iris())  # fmt: skip


def test_a_search_is_that_of_scikit_learn() -> None:
    fused, alone = searched(FusedSearchCV), searched(GridSearchCV)
    assert list(fused.cv_results_) == list(alone.cv_results_)
    for name, values in alone.cv_results_.items():
        if name.startswith(("split", "mean_test", "std_test", "mean_train", "std_train")):
            np.testing.assert_allclose(fused.cv_results_[name], values, atol=1e-10)
        elif "time" not in name:
            assert list(fused.cv_results_[name]) == list(values)
    assert (fused.cv_results_["mean_fit_time"] > 0).all()
    assert fused.best_params_ == alone.best_params_ == {"lr": 3e-2}
    assert fused.best_score_ == pytest.approx(alone.best_score_, abs=1e-10)
    x, _ = iris()
    np.testing.assert_allclose(fused.predict_proba(x), alone.predict_proba(x), atol=1e-10)
    assert list(fused.predict(x)) == list(alone.predict(x))
    assert isinstance(clone(fused), FusedSearchCV)


def test_candidates_differ_in_what_a_study_has_once() -> None:
    x, y = iris()
    search = FusedSearchCV(own, {"epochs": [1, 20], "batch_size": [8]}, cv=LeaveOneGroupOut(), refit=False)
    search.fit(x, y, groups=np.arange(len(y)) % 2)
    assert search.best_params_["epochs"] == 20
    assert not hasattr(search, "best_estimator_")


def test_a_candidate_that_does_not_train_has_the_score_of_errors() -> None:
    model = FusedClassifier("mlp", optimizer="sgd", epochs=2)
    with pytest.warns(FitFailedWarning, match="is diverged"):
        search = FusedSearchCV(model, {"lr": [1e300, 1e-2]}, cv=2, error_score=0.0).fit(*iris())
    assert search.cv_results_["mean_test_score"][0] == 0
    assert search.best_params_ == {"lr": 1e-2}


def test_a_search_takes_a_table() -> None:
    x, y = load_iris(return_X_y=True, as_frame=True)
    search = FusedSearchCV(FusedClassifier(own, epochs=1), {"random_state": [0, 1]}, cv=2).fit(x, y)
    assert list(search.feature_names_in_) == list(search.best_estimator_.feature_names_in_) == list(x.columns)


def test_a_search_in_a_pipeline_and_not_over_one() -> None:
    x, y = iris()
    model = FusedClassifier(own, epochs=20, batch_size=16)
    search = make_pipeline(StandardScaler(), FusedSearchCV(model, {"lr": [1e-4, 3e-2]}, cv=2)).fit(x, y)
    assert search.score(x, y) > 0.8
    with pytest.raises(StudyError, match="preprocess before"):
        FusedSearchCV(make_pipeline(StandardScaler(), model), {"lr": [1e-3]}).fit(x, y)
