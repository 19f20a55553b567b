"""Functions of an event that keep what happens in a tracking tool, for ``study.fit(on_event=...)``.

One run of the tool per member, with the member's configuration as its parameters. Each tool is imported when its
callback is made, and need be installed only then.
"""

from hfta_nb.callbacks.mlflow import MLflow
from hfta_nb.callbacks.tensorboard import TensorBoard
from hfta_nb.callbacks.tracker import Tracker
from hfta_nb.callbacks.wandb import WandB

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB"]
