"""One stream of random numbers per member: exactly the stream that it would draw alone.

torch's functions draw from the process's default generators. Running a member's draws with the
default generators set to that member's state gives what ``torch.manual_seed(seed)`` and the plain
module would have given, whatever function draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from hfta_nb.errors import FusionError

State = dict[str, Tensor]
"""Generator states by device type ("cpu", "cuda")."""


class MemberGenerators:
    """The generator states of M members.

    Args:
        states: one per member.
        device: where the members draw; the CPU's stream is kept beside a GPU's, as both are used.
    """

    def __init__(self, states: Sequence[State], device: torch.device) -> None:
        self.states = [dict(s) for s in states]
        self.device = device
        self._listener: Callable[[int | None], None] | None = None

    @classmethod
    def seeded(cls, seeds: Sequence[int], device: torch.device) -> MemberGenerators:
        """Each member's streams as `torch.manual_seed` of its seed leaves them."""
        return cls([seeded_state(s, device) for s in seeds], device)

    def __len__(self) -> int:
        return len(self.states)

    @contextmanager
    def member(self, index: int) -> Iterator[None]:
        """Within, torch's default generators are this member's."""
        with self.borrowed():
            self.enter(index)
            try:
                yield
            finally:
                self.leave(index)

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Within, the default generators may be overwritten (`enter`); afterwards they are as before."""
        outer = current_state(self.device)
        try:
            yield
        finally:
            set_state(outer, self.device)

    def enter(self, index: int) -> None:
        """Make the default generators those of a member. Only within `borrowed`."""
        set_state(self.states[index], self.device)
        if self._listener is not None:
            self._listener(index)

    def leave(self, index: int) -> None:
        """Keep where the member's streams have got to."""
        self.states[index] = current_state(self.device)
        if self._listener is not None:
            self._listener(None)

    @contextmanager
    def heard(self, listener: Callable[[int | None], None]) -> Iterator[None]:
        """Within, the listener is told whose random numbers are drawn from now on; None: no member's."""
        before, self._listener = self._listener, listener
        try:
            yield
        finally:
            self._listener = before

    def select(self, indices: Sequence[int]) -> MemberGenerators:
        return MemberGenerators([self.states[i] for i in indices], self.device)

    def to(self, device: torch.device) -> None:
        """Move where the members draw. Streams of a device not used before start from the member's CPU seed."""
        if device.type == "cuda" and self.device.type != "cuda":
            for state in self.states:
                generator = torch.Generator()
                generator.set_state(state["cpu"])
                state.setdefault("cuda", seeded_state(generator.initial_seed(), device)["cuda"])
        self.device = device

    def state_dict(self) -> dict[str, Tensor]:
        """States stacked over members, ``[M, bytes]`` by device type."""
        return {kind: torch.stack([s[kind] for s in self.states]) for kind in self.states[0]}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take states made by `state_dict`.

        Raises:
            FusionError: they are of another number of members.
        """
        for kind, rows in state.items():
            if len(rows) != len(self.states):
                raise FusionError(
                    "another number of members", where=f"rng.{kind}", got=len(rows), accepted=f"{len(self)}"
                )
            for member, row in zip(self.states, rows, strict=True):
                member[kind] = row.clone()


def seeded_state(seed: int, device: torch.device) -> State:
    """The states that `torch.manual_seed(seed)` leaves, without disturbing the default generators."""
    state = {"cpu": torch.Generator().manual_seed(seed).get_state()}
    if device.type == "cuda":
        state["cuda"] = torch.Generator(device).manual_seed(seed).get_state()
    return state


def current_state(device: torch.device) -> State:
    state = {"cpu": torch.default_generator.get_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_state(state: State, device: torch.device) -> None:
    torch.default_generator.set_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
