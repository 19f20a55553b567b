"""A grid search over an estimator, whose candidates train together on all folds."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.model_selection import GridSearchCV, ParameterGrid, check_cv
from torch import nn

from hfta_nb.data import Data, Fold
from hfta_nb.errors import StudyError
from hfta_nb.models.recipes import Family
from hfta_nb.study.estimators.estimator import FusedClassifier, FusedEstimator
from hfta_nb.study.estimators.training import trained

Splits = Sequence[tuple[NDArray[Any], NDArray[Any]]]
"""Numbers of the samples for training, and of those held out."""


class FusedSearchCV(GridSearchCV):  # type: ignore[misc]
    """`sklearn.model_selection.GridSearchCV` whose candidates and folds train together, in as few arrays as can be.

    A candidate's score on a fold is that of the same estimator fitted alone. Attributes, `cv_results_` and what can be
    called after `fit` are those of `GridSearchCV`; ``mean_fit_time`` is an equal share of the time of all members.

    Args:
        estimator: a `FusedClassifier` or `FusedRegressor`; a family stands for ``FusedClassifier(family)``.
        param_grid: parameters and axes to lists of values, or a list of such dicts.
        scoring, refit, cv, error_score, return_train_score: as for `GridSearchCV`.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> search = FusedSearchCV("mlp", {"lr": [1e-5, 1e-2], "width": [8, 16]}, cv=3).fit(X, y)
        >>> search.best_params_["lr"]
        0.01
    """

    def __init__(
        self,
        estimator: FusedEstimator | str | Family | Callable[..., nn.Module],
        param_grid: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        scoring: Any = None,
        refit: Any = True,
        cv: Any = None,
        error_score: Any = np.nan,
        return_train_score: bool = False,
    ) -> None:
        own = estimator if isinstance(estimator, BaseEstimator) else FusedClassifier(estimator)
        super().__init__(own, param_grid, scoring=scoring, refit=refit, cv=cv, error_score=error_score,
                         return_train_score=return_train_score)  # fmt: skip

    def fit(self, X: ArrayLike, y: ArrayLike, *, groups: ArrayLike | None = None) -> Self:
        """Train all candidates on all folds, score them, and train the best one on all samples.

        Args:
            X, y: as for the estimator.
            groups: of the samples, for splitters that take them.

        Raises:
            HftaError: the estimator, a candidate or the data can't be used.
        """
        if not isinstance(self.estimator, FusedEstimator):
            remedy = "preprocess before: make_pipeline(StandardScaler(), FusedSearchCV(...))"
            raise StudyError("can't be fused", where="FusedSearchCV, estimator", got=self.estimator,
                             accepted="a FusedClassifier, a FusedRegressor or a family", remedy=remedy)  # fmt: skip
        splits: Splits = list(check_cv(self.cv, y, classifier=is_classifier(self.estimator)).split(X, y, groups))
        began_s = time.perf_counter()
        candidates = [_with(self.estimator, params) for params in ParameterGrid(self.param_grid)]
        fitted = _fitted(candidates, splits, X, y)
        share_s = (time.perf_counter() - began_s) / len(fitted)
        found = self._scored(fitted, splits, X, y)
        found.cv_results_["mean_fit_time"][:], found.cv_results_["std_fit_time"][:] = share_s, 0.0
        self.__dict__.update({name: value for name, value in vars(found).items() if name.endswith("_")})
        if self.refit:
            began_s = time.perf_counter()
            self.best_estimator_ = _with(self.estimator, self.best_params_).fit(X, y)
            self.refit_time_ = time.perf_counter() - began_s
            if hasattr(self.best_estimator_, "feature_names_in_"):
                self.feature_names_in_ = self.best_estimator_.feature_names_in_
        return self

    def _scored(self, fitted: Iterable[FusedEstimator | StudyError], splits: Splits, X: Any, y: Any) -> GridSearchCV:
        """A search of scikit-learn's own, whose fits are those that are there already.

        Args:
            fitted: candidate by candidate, for each split; where an error stands, the fit raises it.
        """
        # A search fits the best candidate again at the end: that is done apart from it.
        waiting = itertools.chain(fitted, [self.estimator])

        class Taken(type(self.estimator)):  # type: ignore[misc]
            def fit(self, X: Any, y: Any) -> Self:
                one = next(waiting)
                if isinstance(one, StudyError):
                    raise one
                self.__dict__.update(vars(one))
                return self

        taken = Taken(**self.estimator.get_params(deep=False))
        # One job: fits are in this process, and in this order.
        search = GridSearchCV(taken, self.param_grid, scoring=self.scoring, refit=self.refit, cv=splits, n_jobs=1,
                              error_score=self.error_score, return_train_score=self.return_train_score)  # fmt: skip
        return search.fit(X, y)


def _with(estimator: FusedEstimator, params: Mapping[str, Any]) -> FusedEstimator:
    """An estimator with these parameters, not fitted. It shares the others, so that candidates compare."""
    return type(estimator)(**{**estimator.get_params(deep=False), **params})


def _fitted(candidates: Sequence[FusedEstimator], splits: Splits, X: Any, y: Any) -> list[FusedEstimator | StudyError]:
    """The estimators of all candidates on all splits, candidate by candidate; an error where one did not train."""
    found: dict[int, list[FusedEstimator | StudyError]] = {}
    for numbers, data in _studies(candidates, X, y):
        first = candidates[numbers[0]]
        configs = [{**clone(candidates[n])._config(), "fold": fold} for n in numbers for fold in range(len(splits))]
        modules = iter(trained(first.family, configs, _folded(data, splits), first.epochs, first._options(data)))
        found |= {n: [_taking(candidates[n], next(modules)) for _ in splits] for n in numbers}
    return [one for n in range(len(candidates)) for one in found[n]]


def _studies(candidates: Sequence[FusedEstimator], X: Any, y: Any) -> list[tuple[list[int], Data]]:
    """Candidates that one study can train, by their numbers, and its data: all but their axes are equal."""
    found: list[tuple[Any, list[int], Data]] = []
    for number, candidate in enumerate(candidates):
        data = candidate._data(X, y)
        common = candidate.family, candidate.epochs, candidate._options(data)
        numbers = next((numbers for others, numbers, _ in found if others == common), None)
        if numbers is None:
            found.append((common, [number], data))
        else:
            numbers.append(number)
    return [(numbers, data) for _, numbers, data in found]


def _folded(data: Data, splits: Splits) -> Data:
    """The data with these folds. One sample is held out in training, which chooses nothing: scores come later."""
    folds = tuple(Fold(torch.as_tensor(train), torch.as_tensor(test[:1])) for train, test in splits)
    return replace(data, x_validation=data.x, y_validation=data.y, folds=folds)


def _taking(candidate: FusedEstimator, module: nn.Module | StudyError) -> FusedEstimator | StudyError:
    """The estimator as its `fit` would have left it."""
    if isinstance(module, StudyError):
        return module
    found = copy.copy(candidate)
    found.module_ = module
    return found
