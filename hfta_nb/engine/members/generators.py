"""One stream of random numbers per member: the stream that the member's plain module uses alone.

On the CPU, a member's draws come from a generator of its own; see `own_draws`. The result equals that of
``torch.manual_seed(seed)`` and the plain module, for every function that draws. Some of a GPU's functions take no
generator. There a member's draws run while the GPU's default generator has that member's state, and one thread at a
time draws so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.members import own_draws
from hfta_nb.engine.members.own_draws import drawing_from, generator_here, restored
from hfta_nb.engine.members.process_streams import one_thread
from hfta_nb.errors import FusionError

State = dict[str, Tensor]
"""Generator states by device type ("cpu", "cuda")."""


class MemberGenerators:
    """The generators of M members.

    Args:
        states: one per member.
        device: where the members draw. For a GPU, there is a stream for the CPU too, as both are used.

    Attributes:
        on_cpu: one generator per member, always the same ones.
        own: on a GPU, one generator per member, which CUDA graphs draw from; None while the states are tensors.
    """

    def __init__(self, states: Sequence[State], device: torch.device) -> None:
        self.device = device
        self.on_cpu = [restored(s["cpu"]) for s in states]
        self._gpu = [s.get("cuda") for s in states]
        self.own: list[torch.Generator] | None = None
        self._capturing = False
        self._listener: Callable[[int | None], None] | None = None

    @property
    def states(self) -> list[State]:
        """The states, one per member; `keep` changes one."""
        if self.own is not None and not self._capturing:
            self._gpu = [generator.get_state() for generator in self.own]
        return [
            {"cpu": generator.get_state()} | ({} if state is None else {"cuda": state})
            for generator, state in zip(self.on_cpu, self._gpu, strict=True)
        ]

    @states.setter
    def states(self, states: Sequence[State]) -> None:
        for generator, state in zip(self.on_cpu, states, strict=True):
            generator.set_state(state["cpu"])
        self._gpu, self.own = [s.get("cuda") for s in states], None

    def keep(self, index: int, state: State) -> None:
        """Set the state of one member."""
        if self.device.type != "cuda":
            self.on_cpu[index].set_state(state["cpu"])
            return
        states = self.states
        states[index] = dict(state)
        self.states = states

    def rows(self) -> list[Tensor]:
        """All states, as for `put`."""
        return [state[kind] for state in self.states for kind in sorted(state)]

    def put(self, rows: Sequence[Tensor]) -> None:
        """Set all states, member by member, ordered by the names of the devices."""
        left = iter(rows)
        for i, generator in enumerate(self.on_cpu):
            generator.set_state(next(left))
            state = self._gpu[i] = None if self._gpu[i] is None else next(left)
            if self.own is not None and state is not None:
                self.own[i].set_state(state)

    @contextmanager
    def captured(self, graph: Any) -> Iterator[list[torch.Generator]]:
        """Let a CUDA graph that is captured within draw new numbers from the members' streams at each replay.

        Args:
            graph: a `torch.cuda.CUDAGraph` whose capture has not begun.

        Raises:
            FusionError: a member draws from the CPU's stream, which a graph cannot repeat.
        """
        if self.own is None:
            made = [torch.Generator(self.device) for _ in self._gpu]
            for generator, state in zip(made, self._gpu, strict=True):
                assert state is not None  # the members are on a GPU
                generator.set_state(state)
            self.own = made
        for generator in self.own:
            graph.register_generator_state(generator)
        before = self.states
        self._capturing = True
        try:
            yield self.own
            now = [generator.get_state() for generator in self.on_cpu]
            if any(not torch.equal(a["cpu"], b) for a, b in zip(before, now, strict=True)):
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
        return len(self.on_cpu)

    @contextmanager
    def member(self, index: int) -> Iterator[None]:
        """Draw from the member's streams within the context."""
        with self.borrowed():
            self.enter(index)
            try:
                yield
            finally:
                self.leave(index)

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Allow `enter` within the context; at its end the streams of before are drawn from."""
        with drawing_from(None), nullcontext() if self.device.type != "cuda" else self._default_kept():
            yield

    @contextmanager
    def _default_kept(self) -> Iterator[None]:
        """Restore the GPU's default generator at the end of the context; one thread at a time."""
        with one_thread():
            if self.own is None:
                outer = torch.cuda.get_rng_state(self.device)
                try:
                    yield
                finally:
                    torch.cuda.set_rng_state(outer, self.device)
                return
            default = torch.cuda.default_generators[self.device.index or 0]
            state = default.graphsafe_get_state()
            try:
                yield
            finally:
                default.graphsafe_set_state(state)

    def enter(self, index: int) -> None:
        """Draw from a member's streams. Requires `borrowed`."""
        own_draws.turn_to(self.on_cpu[index])
        if self.device.type == "cuda":
            state = self._gpu[index]
            if self.own is not None:
                torch.cuda.default_generators[self.device.index or 0].graphsafe_set_state(self.own[index])
            elif state is not None:
                torch.cuda.set_rng_state(state, self.device)
            own_draws.in_backward(self.on_cpu[index])
        if self._listener is not None:
            self._listener(index)

    def leave(self, index: int) -> None:
        """Draw no longer from the member's streams."""
        own_draws.turn_to(None)
        if self.device.type == "cuda":
            own_draws.in_backward(None)
            if self.own is None:  # otherwise the state stays in the generator
                self._gpu[index] = torch.cuda.get_rng_state(self.device)
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
        states = self.states
        return MemberGenerators([states[i] for i in indices], self.device)

    def to(self, device: torch.device) -> None:
        """Move the streams to a device. Streams of a device not used before start from the seed of the member's CPU
        stream."""
        states = self.states
        if device.type == "cuda" and self.device.type != "cuda":
            for state, generator in zip(states, self.on_cpu, strict=True):
                state.setdefault("cuda", seeded_state(generator.initial_seed(), device)["cuda"])
        self.states = states  # a GPU's generator belongs to one device
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
            if len(rows) != len(self):
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
    """The states of the streams that this thread draws from."""
    state = {"cpu": generator_here().get_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_state(state: State, device: torch.device) -> None:
    """Set the states of the streams that this thread draws from."""
    generator_here().set_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


@contextmanager
def streams_apart(device: torch.device, state: State | None = None) -> Iterator[torch.Generator]:
    """Draw from streams of its own within the context; those of before stay as they are.

    Args:
        device: a GPU, whose default generator is restored; on the CPU there is a generator of its own.
        state: where the streams begin; by default, where those of before are.

    Returns:
        The generator for the CPU.
    """
    outer = current_state(device)
    state = outer if state is None else state
    generator = restored(state["cpu"])
    with drawing_from(generator):
        if device.type != "cuda":
            yield generator
            return
        with one_thread():
            outer = current_state(device)
            set_state(state, device)
            try:
                yield generator
            finally:
                set_state({**current_state(torch.device("cpu")), "cuda": outer["cuda"]}, device)
