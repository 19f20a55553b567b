"""Estimators and a search in scikit-learn's conventions; see `hfta_nb.sklearn`."""

from hfta_nb.study.estimators.estimator import FusedClassifier, FusedRegressor
from hfta_nb.study.estimators.search import FusedSearchCV

__all__ = ["FusedClassifier", "FusedRegressor", "FusedSearchCV"]
