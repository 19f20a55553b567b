"""What torch's lr schedulers are told of an array's optimizer."""

from __future__ import annotations

from types import FrameType

from torch.optim import lr_scheduler

from hfta_nb.errors import OptimError


def answer_scheduler(frame: FrameType, optimizer: str) -> None:
    """Name the counterpart of a scheduler of torch whose constructor asks for the class of an array's optimizer.

    Args:
        frame: the one that asks.
        optimizer: the optimizer's name.

    Raises:
        OptimError: it is such a constructor.
    """
    scheduler = frame.f_locals.get("self") if frame.f_globals is vars(lr_scheduler) else None
    if scheduler is None:
        return
    name = type(scheduler).__name__
    remedy = f"use hfta_nb.optim.lr_scheduler.{name}, which has the same arguments, each one value, or one per member"
    if name not in lr_scheduler.__all__ or name == "LRScheduler":
        remedy = "give hfta_nb.optim.lr_scheduler.ByMember a function per member that makes it"
    where = f"torch.optim.lr_scheduler.{name}"
    raise OptimError("takes no optimizer of an array", where=where, got=optimizer, remedy=remedy)
