"""Callbacks that record a study in a tracking tool, for ``study.fit(on_event=...)``.

Each member is one run of the tool, with the member's configuration as parameters. A tool is imported when its callback
is created, and needs to be installed only then.
"""

from hfta_nb.study.callbacks.mlflow import MLflow
from hfta_nb.study.callbacks.tensorboard import TensorBoard
from hfta_nb.study.callbacks.tracker import Tracker, named
from hfta_nb.study.callbacks.trackio import Trackio
from hfta_nb.study.callbacks.wandb import WandB

__all__ = ["MLflow", "TensorBoard", "Tracker", "Trackio", "WandB", "named"]
