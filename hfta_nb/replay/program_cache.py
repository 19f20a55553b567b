"""The cache of an array's programs, by signature of call.

An entry is new, then recorded, recorded again and verified, and then replayed; or it is refused, and such calls run
eagerly. A form of calls (`steps`, `forward`, `results`) has a cache, and says what its signature is, what is recorded
and what is run.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from hfta_nb.eager.engine import Inputs
from hfta_nb.eager.state import ArrayState
from hfta_nb.errors import out_of_memory
from hfta_nb.kernels.cuda_graphs import capturing
from hfta_nb.kernels.strategy.autotune import Choice
from hfta_nb.replay.cache_entry import CacheEntry
from hfta_nb.replay.guards import Guards, UnclearError, guards_of
from hfta_nb.replay.record import NotRecordableError
from hfta_nb.replay.signature import state_of, watched
from hfta_nb.replay.verify import Before, failure

_MOST = 8
"""Signatures that are kept: a batch of another size has another one."""
_learns = operator.attrgetter("requires_grad")

T = TypeVar("T")
E = TypeVar("E", bound=CacheEntry)


class ProgramCache(Generic[E]):
    """The entries of one form of calls; the oldest is forgotten for a new one.

    Args:
        state: of the array whose calls they are.

    Attributes:
        at_once: record the first call of a signature already, as such calls were made before.
        waiting: record and replay nothing for now.
        strict: an error of a replay is raised; else the program is given up and the call runs eagerly.
        closed: why no call was replayed when last asked; empty where some may be.
    """

    def __init__(self, state: ArrayState) -> None:
        self.state = state
        self.at_once, self.waiting, self.strict, self.closed = False, False, False, ""
        self._entries: dict[Any, E] = {}
        self._parameters: list[nn.Parameter] = []
        self._last: tuple[list[Any], E] | None = None

    def __iter__(self) -> Iterator[E]:
        return iter(self._entries.values())

    # What is kept.

    def clear(self) -> None:
        """Forget all; wanted after the array's tensors have moved, or it runs in another way."""
        self._keep(lambda _: False)
        self._parameters = []

    def keep(self, block_size: int, threads: str) -> None:
        """Forget what is of other block sizes, or runs on other threads."""
        self._keep(lambda entry: (entry.block_size, entry.threads) == (block_size, threads))

    def _keep(self, wanted: Callable[[E], bool]) -> None:
        self._last = None
        for key, entry in list(self._entries.items()):
            if not wanted(entry):
                entry.drop()
                del self._entries[key]

    # Which entry a call has.

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Of the array."""
        if not self._parameters:
            self._parameters = list(self.state.tensors.parameters())
        return self._parameters

    def open(self) -> bool:
        """Whether calls may be recorded and replayed, as things are."""
        state = self.state
        self.closed = _closed(state)
        return state.capture and not (self.waiting or self.closed or state.pending or watched())

    def find(self, signature: Callable[[], tuple[Any, ...]], new: Callable[[], E]) -> E | None:
        """The entry of a call, made by `new` for the first one; None where the call is to run eagerly.

        Args:
            signature: what tells calls of this form apart, beside the state of the array and torch's settings.
            new: makes an entry.
        """
        if not self.open():
            return None
        try:
            key = *signature(), *state_of(self.state)
        except NotRecordableError:
            return None
        entry = self._entries.get(key)
        if entry is None:
            while len(self._entries) >= _MOST:
                self._entries.pop(next(iter(self._entries))).drop()
            entry = self._entries[key] = new()
            entry.block_size, entry.threads = self.state.settings.block_size, self.state.settings.threads
        return None if entry.reason else entry

    def like(self, tensors: Sequence[Tensor]) -> list[Any]:
        """The signature of a call whose inputs are nothing but tensors, found out in few steps."""
        found: list[Any] = [*state_of(self.state), *map(_learns, self.parameters)]
        for t in tensors:
            found += (type(t), t.shape, t.stride(), t.dtype, t.device, t.requires_grad, t.layout, t.is_inference())
        return found

    def remember(self, entry: E, tensors: Sequence[Tensor] | None) -> None:
        """Note the last call that was replayed; without tensors, that calls like it can't be told quickly."""
        self._last = None if tensors is None else (self.like(tensors), entry)

    @property
    def last(self) -> E | None:
        """The entry of the last call that was replayed, for the fast path; None where it can't be told quickly."""
        return None if self._last is None else self._last[1]

    def repeats(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a call with these tensors has the signature of the last call that was replayed."""
        last = self._last
        return last is not None and self.open() and self.like(tensors) == last[0] and last[1].ready

    # Replaying, recording.

    def replay(
        self, entry: E, leaves: Sequence[Any], run: Callable[[], T], what: str, before: Before | None
    ) -> tuple[T] | None:
        """What `run` gives, in a tuple; None if the call must run eagerly.

        Args:
            entry: with a program.
            leaves: of the inputs.
            run: runs the program, with its inputs filled in.
            what: whose code the guards are about.
            before: undoes what a failed run has changed.
        """
        if entry.guards is None or not entry.guards.hold():
            entry.refuse(f"{what} has changed since it was recorded", forget=True)
            self.state.verified.clear()  # what is recorded anew is compared anew
            return None
        entry.fill(leaves)
        try:
            return (run(),)
        except BaseException as error:
            if capturing(self.state.generators.device):
                raise  # whoever captures has to know; nothing was done that could be undone
            if before is not None:
                before.put_back()
            if self.strict or not isinstance(error, Exception):
                raise
            entry.refuse(failure(error))
            return None

    def recorder(
        self,
        entry: E | None,
        functions: tuple[Any, ...],
        record: Callable[[E, Inputs, Guards], T],
        eager: Callable[[Inputs], T],
    ) -> Callable[[Inputs], T]:
        """What runs a call: `eager`, or `record` for the second and third call of a signature.

        Args:
            entry: of the call, if it has one.
            functions: whose code the guards are about, beside the model's.
            record: does as `eager` does and records it.
            eager: runs the call.
        """
        if entry is None or entry.ready:
            return eager
        entry.calls += 1
        if entry.calls == 1 and not self.at_once:
            return eager

        def recorded(inputs: Inputs) -> T:
            if inputs.copied:  # the array has just found another way to run
                return eager(inputs)
            restore = self.state.snapshot()
            try:
                return record(entry, inputs, guards_of(self.state, functions))
            except UnclearError as error:
                entry.refuse(str(error))
            except Exception as error:
                if not out_of_memory(error):
                    raise
                entry.refuse("there is not enough memory to record it")  # which holds all that a call makes
                restore()
            return eager(inputs)

        return recorded

    # What is told of it.

    def choices(self) -> list[Choice]:
        """Of kernels that can be computed in several ways, in what is replayed."""
        return [choice for entry in self if entry.ready for choice in entry.choices]

    def layouts(self) -> list[str]:
        """Of images in what is replayed, each once."""
        return list(dict.fromkeys(str(e.layout) for e in self if e.ready and e.layout is not None))

    def notes(self) -> list[str]:
        """How calls run, each way once."""
        ways = [f"not replayed: {self.closed}"] if self.closed else []
        ways += ["replayed from a recording" for entry in self if entry.ready]
        ways += [f"not replayed: {entry.reason}" for entry in self if entry.reason]
        return list(dict.fromkeys(ways))


def _closed(state: ArrayState) -> str:
    """What of the array itself keeps its calls from being replayed."""
    if state.settings.verify == "always":
        return "every call is compared with the plain module"
    if state.settings.private:
        return "the model writes into tensors that members share"
    return "the model sets attributes on itself" if state.engine.attributes.values else ""
