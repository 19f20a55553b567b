"""One stream of random numbers per member: the stream that the member's plain module uses alone.

Torch's functions draw from the process's default generators. A member's draws run while the default generators have
that member's state. The result equals that of ``torch.manual_seed(seed)`` and the plain module, for every function
that draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hfta_nb.errors import FusionError

State = dict[str, Tensor]
"""Generator states by device type ("cpu", "cuda")."""


class MemberGenerators:
    """The generator states of M members.

    Args:
        states: one per member.
        device: where the members draw. For a GPU, the state of the CPU's stream is kept too, as both are used.

    Attributes:
        own: on a GPU, one generator per member, which CUDA graphs draw from; None while the states are tensors.
    """

    def __init__(self, states: Sequence[State], device: torch.device) -> None:
        self._states = [dict(s) for s in states]
        self.device = device
        self.own: list[torch.Generator] | None = None
        self._capturing = False
        self._listener: Callable[[int | None], None] | None = None

    @property
    def states(self) -> list[State]:
        """The states, one per member; `keep` changes one."""
        if self.own is not None and not self._capturing:
            own = [generator.get_state() for generator in self.own]
            self._states = [{**s, "cuda": state} for s, state in zip(self._states, own, strict=True)]
        return self._states

    @states.setter
    def states(self, states: Sequence[State]) -> None:
        self._states, self.own = list(states), None

    def keep(self, index: int, state: State) -> None:
        """Set the state of one member."""
        states = list(self.states)
        states[index] = dict(state)
        self.states = states

    def put(self, rows: Sequence[Tensor]) -> None:
        """Set all states, member by member, ordered by the names of the devices."""
        left = iter(rows)
        self._states = [{kind: next(left) for kind in sorted(s)} for s in self._states]
        for generator, state in zip(self.own or (), self._states, strict=False):
            generator.set_state(state["cuda"])

    @contextmanager
    def captured(self, graph: Any) -> Iterator[list[torch.Generator]]:
        """Let a CUDA graph that is captured within draw new numbers from the members' streams at each replay.

        Args:
            graph: a `torch.cuda.CUDAGraph` whose capture has not begun.

        Raises:
            FusionError: a member draws from the CPU's stream, which a graph cannot repeat.
        """
        if self.own is None:
            made = [torch.Generator(self.device) for _ in self._states]
            for generator, state in zip(made, self._states, strict=True):
                generator.set_state(state["cuda"])
            self.own = made
        for generator in self.own:
            graph.register_generator_state(generator)
        before = list(self.states)
        self._capturing = True
        try:
            yield self.own
            if any(not torch.equal(a["cpu"], b["cpu"]) for a, b in zip(before, self._states, strict=True)):
                raise FusionError("a member draws random numbers on the CPU", where="a CUDA graph")
        except BaseException:
            self._capturing = False
            self.states = before
            raise
        self._capturing = False

    @classmethod
    def seeded(cls, seeds: Sequence[int], device: torch.device) -> MemberGenerators:
        """Streams seeded as by `torch.manual_seed`, one seed per member."""
        return cls([seeded_state(s, device) for s in seeds], device)

    def __len__(self) -> int:
        return len(self._states)

    @contextmanager
    def member(self, index: int) -> Iterator[None]:
        """Make the member's streams torch's default generators within the context."""
        with self.borrowed():
            self.enter(index)
            try:
                yield
            finally:
                self.leave(index)

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Restore the default generators on exit, so that `enter` may overwrite them within the context."""
        default = None if self.own is None else torch.cuda.default_generators[self.device.index or 0]
        if default is None:
            outer = current_state(self.device)
            try:
                yield
            finally:
                set_state(outer, self.device)
            return
        cpu, gpu = torch.default_generator.get_state(), default.graphsafe_get_state()
        try:
            yield
        finally:
            torch.default_generator.set_state(cpu)
            default.graphsafe_set_state(gpu)

    def enter(self, index: int) -> None:
        """Load a member's state into the default generators. Requires `borrowed`."""
        if self.own is None:
            set_state(self._states[index], self.device)
        else:
            torch.default_generator.set_state(self._states[index]["cpu"])
            torch.cuda.default_generators[self.device.index or 0].graphsafe_set_state(self.own[index])
        if self._listener is not None:
            self._listener(index)

    def leave(self, index: int) -> None:
        """Store the state of the default generators as the member's."""
        if self.own is None:
            self._states[index] = current_state(self.device)
        else:  # a GPU's state stays in its generator
            self._states[index] = {**self._states[index], "cpu": torch.default_generator.get_state()}
        if self._listener is not None:
            self._listener(None)

    @contextmanager
    def listening(self, listener: Callable[[int | None], None]) -> Iterator[None]:
        """Call `listener` with the member whose random numbers are drawn from then on, or with None."""
        before, self._listener = self._listener, listener
        try:
            yield
        finally:
            self._listener = before

    def select(self, indices: Sequence[int]) -> MemberGenerators:
        return MemberGenerators([self.states[i] for i in indices], self.device)

    def to(self, device: torch.device) -> None:
        """Move the streams to a device. Streams of a device not used before start from the seed of the member's CPU
        stream."""
        self.states = self.states  # a generator belongs to one device
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
        """Load states saved by `state_dict`.

        Raises:
            FusionError: the number of members differs.
        """
        for kind, rows in state.items():
            if len(rows) != len(self.states):
                raise FusionError(
                    "another number of members", where=f"rng.{kind}", got=len(rows), accepted=f"{len(self)}"
                )
            self.states = [{**member, kind: row.clone()} for member, row in zip(self.states, rows, strict=True)]


def seeded_state(seed: int, device: torch.device) -> State:
    """The states after `torch.manual_seed(seed)`; the default generators are left unchanged."""
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
