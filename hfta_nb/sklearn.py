"""Families as estimators of scikit-learn, and a grid search that trains its candidates together."""

from hfta_nb.study.estimators import FusedClassifier, FusedRegressor, FusedSearchCV

__all__ = ["FusedClassifier", "FusedRegressor", "FusedSearchCV"]
