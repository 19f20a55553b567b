"""Members that are pulled toward the best of them (LGD), or toward a center between them (EASGD)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hfta_nb.engine.array import FusedArray, not_compiled
from hfta_nb.engine.array.access import is_padded
from hfta_nb.errors import OptimError
from hfta_nb.errors.border import Kind, instance, number, takes, whole

ARRAY = instance(FusedArray, "an array")
LOSSES = Kind("not losses", "a tensor [M]", lambda v: isinstance(v, Tensor) and v.ndim == 1 and not v.is_meta)
STRENGTH = Kind("not a strength", "a number from 0 to 1", lambda v: number(v) and 0 <= float(v) <= 1)
GROUPS = Kind("not groups", "how many, or one number from 0 per member",
              lambda v: v >= 1 if whole(v) else all(whole(n) and n >= 0 for n in v))  # fmt: skip
MEMBERS = Kind("not members", "a list of their numbers", lambda v: bool(v) and all(map(whole, v)))


@dataclass(frozen=True)
class Places:
    """Which members take part, and in which group each is.

    Attributes:
        rows: ``[K]``, their numbers in the array; None for all, in order.
        group: ``[K]``, the number of each one's group.
        groups: how many there are.
    """

    rows: Int[Tensor, " K"] | None
    group: Int[Tensor, " K"]
    groups: int

    @classmethod
    def of(cls, array: FusedArray, groups: Sequence[int], members: Sequence[int], count: int | None = None) -> Places:
        """Those of these members, each with the number of its group; `count` says how many groups there are."""
        device = array.generators.device
        rows = None if list(members) == list(range(len(array))) else torch.tensor(list(members), device=device)
        return cls(rows, torch.tensor(list(groups), device=device), count or max(groups) + 1)

    def taken(self, values: Tensor) -> Tensor:
        """The values of those that take part, ``[K, ...]``, of all members' ``[M, ...]``."""
        return values if self.rows is None else values[self.rows]

    def put(self, values: Tensor, new: Tensor) -> None:
        """Write the values of those that take part."""
        if self.rows is None:
            values.copy_(new)
        else:
            values.index_copy_(0, self.rows, new)

    @property
    def sums(self) -> Bool[Tensor, "G K"]:
        """Per group, who is in it."""
        return self.group == torch.arange(self.groups, device=self.group.device).unsqueeze(1)


@not_compiled
@takes(OptimError, array=ARRAY, losses=LOSSES, pull=STRENGTH, global_pull=STRENGTH, groups=GROUPS,
       members=MEMBERS.or_none)  # fmt: skip
def pull_to_leader(
    array: FusedArray,
    losses: Float[Tensor, " M"],
    pull: float = 0.1,
    global_pull: float = 0.0,
    groups: int | Sequence[int] = 1,
    members: Sequence[int] | None = None,
) -> Int[Tensor, " G"]:
    """Pull members toward the one with the lowest loss, after an optimizer step: leader gradient descent.

    ``x <- x - pull * (x - leader of its group) - global_pull * (x - leader of all)``, on the parameters that train. The
    learning rate plays no part, and buffers and the optimizer's state stay. A member whose loss or parameters are not
    finite never leads, and a group in which nobody can stays where it is. Nothing is read back from the device.

    Args:
        array: whose members have one architecture.
        losses: ``[M]``, lowest best: those of a step, or a running mean.
        pull: toward the leader of a member's group, from 0 to 1.
        global_pull: toward the leader of all, from 0 to 1; the sum of both is at most 1.
        groups: how many there are, of which member ``i`` is in number ``i % groups``; or the group of each member that
            takes part.
        members: those that take part; None for all. Others neither lead nor move.

    Returns:
        Per group, its leader: a number in the array, -1 for none.

    Raises:
        OptimError: members have different architectures, or a value can't be used.

    Example:
        >>> from hfta_nb import fuse
        >>> array = fuse([torch.nn.Linear(4, 2) for _ in range(3)])
        >>> pull_to_leader(array, torch.tensor([0.3, 0.1, float("nan")]), pull=0.5).tolist()
        [1]

    Source: Teng et al., Leader Stochastic Gradient Descent for Distributed Training of Deep Learning Models, NeurIPS
    2019, equations 4 and 5. The pull there is taken from the parameters before the gradient's step, here after it.
    """
    _check_pulls(pull, global_pull)
    places = _places(array, groups, members, "pull_to_leader")
    if losses.shape != (len(array),):
        raise OptimError("not one loss per member", where="losses", got=list(losses.shape), accepted=f"[{len(array)}]")
    leaders = pulled(array, losses.detach(), places, float(pull), float(global_pull))[:-1]
    return leaders if places.rows is None else torch.where(leaders < 0, leaders, places.rows[leaders])


@not_compiled
@takes(OptimError, array=ARRAY, center=instance(Mapping, "what this has returned").or_none, pull=STRENGTH,
       groups=GROUPS, members=MEMBERS.or_none)  # fmt: skip
def pull_to_center(
    array: FusedArray,
    center: Mapping[str, Tensor] | None = None,
    pull: float = 0.1,
    groups: int | Sequence[int] = 1,
    members: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """Pull members and a center between them toward each other, after an optimizer step: elastic averaging.

    ``x <- x - pull * (x - center)`` and ``center <- center + pull * sum(x - center)``, with the same differences. A
    member whose parameters are not finite takes no part.

    Args:
        array, pull, groups, members: as for `pull_to_leader`; each group has a center of its own.
        center: what the call before has returned; None to begin, with the members' mean.

    Returns:
        The center: by parameter that trains ``[groups, *shape]``; written to in place where one was given.

    Raises:
        OptimError: as for `pull_to_leader`; or `center` is of another array.

    Source: Zhang, Choromanska and LeCun, Deep learning with Elastic Averaging SGD, NeurIPS 2015, equations 2 and 3,
    where ``beta`` is `pull` times the number of members.
    """
    places = _places(array, groups, members, "pull_to_center")
    shapes = {name: (places.groups, *p.shape[1:]) for name, p in array.named_parameters() if p.requires_grad}
    if center is not None and {k: tuple(v.shape) for k, v in center.items()} != shapes:
        raise OptimError("the center of another array, or of other groups", where="center", got=list(center),
                         accepted="what pull_to_center has returned for this one")  # fmt: skip
    return centered(array, center, places, float(pull))


@torch.no_grad()
def pulled(
    array: FusedArray, losses: Float[Tensor, " M"], places: Places, pull: float, global_pull: float
) -> Int[Tensor, " G_and_all"]:
    """See `pull_to_leader`: the leaders of the groups, and last that of all, by their places among those that take
    part; -1 for none."""
    standing = places.taken(losses)
    standing = standing.masked_fill(~(standing.isfinite() & _finite(array, places)), torch.inf)
    everyone = places.sums.new_ones(1, len(standing))
    best, leaders = torch.where(torch.cat([places.sums, everyone]), standing, torch.inf).min(1)
    alone = torch.arange(len(standing), device=standing.device)  # who has no leader stays where it is
    leads = best < torch.inf
    own = torch.where(leads[places.group], leaders[places.group], alone)
    for values in _trained(array):
        part = places.taken(values)
        change = (part[own] - part).mul_(pull)
        if global_pull:
            change.add_(part[torch.where(leads[-1], leaders[-1], alone)] - part, alpha=global_pull)
        places.put(values, part + change)
    return leaders.masked_fill(~leads, -1)


@torch.no_grad()
def centered(array: FusedArray, center: Mapping[str, Tensor] | None, places: Places, pull: float) -> dict[str, Tensor]:
    """See `pull_to_center`."""
    finite, found = _finite(array, places), dict(center or {})
    for name, p in array.named_parameters():
        if not p.requires_grad:
            continue
        values, sums = places.taken(p.detach()).flatten(1), (places.sums & finite).to(p.dtype)
        clean = values.masked_fill(~finite.unsqueeze(1), 0)
        if center is None:
            mean = (sums @ clean) / sums.sum(1, keepdim=True).real.clamp(min=1)
            found[name] = mean.view(places.groups, *p.shape[1:])
        middle = found[name].view(places.groups, -1)
        away = (clean - middle[places.group]).masked_fill(~finite.unsqueeze(1), 0)
        places.put(p.detach(), (values - pull * away).view(-1, *p.shape[1:]))
        middle.add_(sums @ away, alpha=pull)
    return found


def _trained(array: FusedArray) -> Iterator[Tensor]:
    """The parameters that train, ``[M, columns]``, in as few pieces as they lie in memory."""
    trains = {name for name, p in array.named_parameters() if p.requires_grad}
    for arena in array.arenas:
        for on, spans in itertools.groupby(arena.spans, lambda span: span.name in trains):
            listed = list(spans)
            if on:
                yield arena.data[:, listed[0].start : listed[-1].stop]


def _finite(array: FusedArray, places: Places) -> Bool[Tensor, " K"]:
    """Who has parameters that are all finite: a loss is of the step before."""
    found = places.group >= 0
    for values in _trained(array):
        found = found & places.taken(values).isfinite().all(1)
    return found


def _places(array: FusedArray, groups: int | Sequence[int], members: Any, where: str) -> Places:
    if is_padded(array):
        raise OptimError("members of different architecture", where=where, accepted="members of one architecture",
                         remedy="fuse those of each architecture by themselves")  # fmt: skip
    chosen = list(range(len(array))) if members is None else [int(i) for i in members]
    if len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(len(array))):
        raise OptimError("not members", where="members", got=members, accepted=f"0 to {len(array) - 1}, each once")
    own = [i % groups for i in chosen] if isinstance(groups, int) else list(map(int, groups))
    if len(own) != len(chosen):
        raise OptimError("not one group per member", where="groups", got=groups, accepted=f"{len(chosen)} numbers")
    return Places.of(array, own, chosen)


def _check_pulls(pull: float, global_pull: float) -> None:
    if pull + global_pull > 1:
        raise OptimError("together above 1, which goes beyond the leaders", where="pull, global_pull",
                         got=[pull, global_pull], accepted="a sum of at most 1")  # fmt: skip
