"""Leaders: members that train side by side, and are pulled toward the best of them after every few steps."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from hfta_nb.errors import SearchError
from hfta_nb.errors.border import number, whole

CENTER = "center"
TRAIN_LOSS = "train_loss"


@dataclass(frozen=True)
class Leader:
    """Leader gradient descent: the members of an array are pulled toward the best one, after every few steps.

    ``x <- x - pull * (x - leader of its group) - global_pull * (x - leader of all)``, on the parameters that train. The
    learning rate plays no part; buffers, optimizer, lr schedule and random streams stay each member's own. A member
    whose running loss or parameters are not finite never leads. Members of another array are not compared: variants
    that do not fuse, or that capacity has put into another array, have leaders of their own. Members that were paused
    or have ended neither lead nor move.

    Args:
        pull: toward the leader of a member's group, from 0 to 1.
        global_pull: toward the leader of all, from 0 to 1, where there are several groups. The sum is at most 1.
        every: training steps from one pull to the next.
        groups: how many, each with a leader; the members of an array are dealt to them in turn.
        leader: who leads: the member with the lowest "train_loss" over the steps since the last pull (of the epoch
            under way); the best by another metric of training ("train_accuracy") in the same way, or by the latest
            validation ("val_loss"). "center" for elastic averaging (EASGD): members and a center between them, which
            begins as their mean, pull each other; then there is no `global_pull`.

    Raises:
        SearchError: a value can't be used.

    Example:
        >>> Leader(pull=0.1, global_pull=0.05, every=4, groups=2)
        Leader(pull=0.1, global_pull=0.05, every=4, groups=2, leader='train_loss')

    Source: Teng et al., Leader Stochastic Gradient Descent for Distributed Training of Deep Learning Models, NeurIPS
    2019; Zhang, Choromanska and LeCun, Deep learning with Elastic Averaging SGD, NeurIPS 2015.
    """

    pull: float = 0.1
    global_pull: float = 0.1
    every: int = 4
    groups: int = 1
    leader: str = TRAIN_LOSS

    def __post_init__(self) -> None:
        for name in ("pull", "global_pull"):
            value = getattr(self, name)
            _check(name, value, _strength(value), "a number from 0 to 1")
            object.__setattr__(self, name, float(value))  # NumPy's are accepted as well
        for name in ("every", "groups"):
            value = getattr(self, name)
            _check(name, value, whole(value) and value >= 1, "1, 2, 3, ...")
            object.__setattr__(self, name, operator.index(value))
        _check("leader", self.leader, isinstance(self.leader, str), '"train_loss", another metric, or "center"')
        if self.several and self.pull + self.global_pull > 1:
            raise SearchError("together above 1, which goes beyond the leaders", where="Leader, pull and global_pull",
                              got=[self.pull, self.global_pull], accepted="a sum of at most 1")  # fmt: skip

    @property
    def several(self) -> bool:
        """Whether members are pulled toward the leader of all beside that of their group."""
        return self.groups > 1 and self.global_pull > 0 and self.leader != CENTER


def _strength(value: Any) -> bool:
    return number(value) and 0 <= float(value) <= 1


def _check(name: str, value: Any, fine: bool, accepted: str) -> None:
    if not fine:
        raise SearchError("can't be used", where=f"Leader, {name}", got=value, accepted=accepted)
