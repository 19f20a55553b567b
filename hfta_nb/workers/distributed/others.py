"""The ranks beside rank 0, as rank 0 sees them, and what it says when it has lost some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias

import torch

from hfta_nb.errors import DistributedError
from hfta_nb.workers.distributed.ranks import Ranks


class Others(Protocol):
    """The ranks 1, 2, ... of an array; see `hfta_nb.distributed.followers.Followers`."""

    @property
    def ranks(self) -> Ranks:
        """All ranks, rank 0 among them."""

    def tell(self, command: str, *given: Any) -> None:
        """Tell every other rank to do something, in order; see `hfta_nb.distributed.follower.Follower`.

        Raises:
            DistributedError: one of them is gone.
        """

    def watched(self) -> AbstractContextManager[None]:
        """Within, an exchange that fails is explained by what has become of the other ranks."""

    def close(self) -> None:
        """End them."""


Start: TypeAlias = Callable[[int, torch.device], Others]
"""Starts the other ranks, given how many ranks there are and the device of rank 0."""


@contextmanager
def explained(ended: Callable[[], Mapping[int, str]]) -> Iterator[None]:
    """Within, an exchange that fails is explained.

    Args:
        ended: finds out why ranks have ended, by rank.
    """
    try:
        yield
    except DistributedError as error:
        found = ended()
        if not found:
            raise
        raise lost(found) from error


def lost(found: Mapping[int, str]) -> DistributedError:
    """The error of ranks that are gone, each with its reason; not of those that only lost another one."""
    own = {rank: why for rank, why in found.items() if not why.startswith(DistributedError.__name__)}
    what = "; ".join(f"rank {rank} {why}" for rank, why in (own or found).items())
    return DistributedError(what, where="devices", remedy="run(resume=True) goes on from the last checkpoint")
