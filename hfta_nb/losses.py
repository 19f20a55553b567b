"""Losses by task. A loss sees ONE member's output and the target and returns a scalar, the mean over the mini-batch."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from hfta_nb.errors import FamilyError

Loss = Callable[[Tensor, Tensor], Tensor]

BY_TASK: dict[str, Loss] = {"classification": F.cross_entropy, "regression": F.mse_loss}


def for_task(task: str) -> Loss:
    """The usual loss of a task.

    Raises:
        FamilyError: there is none.
    """
    if task not in BY_TASK:
        raise FamilyError("no loss is known for this task", where="task", got=task, accepted=", ".join(BY_TASK))
    return BY_TASK[task]
