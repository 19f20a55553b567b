"""The cache of an array's programs, by signature of call.

An entry is new, then recorded, recorded again and verified, and then replayed; or it is refused, and its calls run
eagerly. Each kind of calls (`steps`, `forward`, `results`) has a cache and defines its signature, what is recorded and
what is run.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.model_hooks import called_beside
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.cuda_graphs import capturing
from hfta_nb.engine.kernels.strategy.autotune import Choice
from hfta_nb.engine.replay.cache_entry import CacheEntry
from hfta_nb.engine.replay.guards import Guards, UnclearError, guards_of
from hfta_nb.engine.replay.layouts import Layout
from hfta_nb.engine.replay.signature import batchless, memberless, state_of, watched
from hfta_nb.engine.replay.trace import NotRecordableError
from hfta_nb.engine.replay.verify import Before, failure
from hfta_nb.errors import out_of_memory

_MOST = 8
"""The most signatures that are kept; each batch size has a separate one."""
_learns = operator.attrgetter("requires_grad")

T = TypeVar("T")
E = TypeVar("E", bound=CacheEntry)


class ProgramCache(Generic[E]):
    """The entries of one kind of calls; a new entry replaces the oldest one.

    Args:
        state: of the array.

    Attributes:
        at_once: record the first call of a signature, because such calls were made before.
        known: signatures of an array of which this one has some of the members, where such calls were replayed, each
            with the layout of its images. Here the first call is recorded, one trace is enough, and layouts are not
            timed again.
        waiting: do not record or replay for now.
        strict: raise errors of a replay; otherwise the program is discarded and the call runs eagerly.
        closed: why no call was replayed at the last check; empty if some may be.
    """

    def __init__(self, state: ArrayState) -> None:
        self.state = state
        self.at_once, self.waiting, self.strict, self.closed = False, False, False, ""
        self.known: dict[Any, Layout | None] = {}
        self._entries: dict[Any, E] = {}
        self._parameters: list[nn.Parameter] = []
        self._last: tuple[list[Any], E] | None = None

    def __iter__(self) -> Iterator[E]:
        return iter(self._entries.values())

    # Contents.

    def clear(self) -> None:
        """Discard all entries, after the array's tensors have moved or its settings have changed."""
        self._keep(lambda _: False)
        self._parameters = []

    def keep(self, block_size: int, threads: str) -> None:
        """Discard entries with other block sizes or threads."""
        self._keep(lambda entry: (entry.block_size, entry.threads) == (block_size, threads))

    def _keep(self, wanted: Callable[[E], bool]) -> None:
        self._last = None
        for key, entry in list(self._entries.items()):
            if not wanted(entry):
                entry.drop()
                del self._entries[key]

    # Lookup.

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of the array."""
        if not self._parameters:
            self._parameters = list(self.state.tensors.parameters())
        return self._parameters

    def open(self) -> bool:
        """True if calls may currently be recorded and replayed."""
        state = self.state
        self.closed = _closed(state)
        return state.capture and not (self.waiting or self.closed or state.pending or watched())

    def find(self, signature: Callable[[], tuple[Any, ...]], new: Callable[[], E]) -> E | None:
        """The entry of a call, created by `new` for the first one; None if the call must run eagerly.

        Args:
            signature: distinguishes calls of this kind, besides the state of the array and torch's settings.
            new: creates an entry.
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
            general = self._general(key) if self.known else None
            entry.known = general in self.known
            entry.like = self.known.get(general) or self._like(key)
            entry.block_size, entry.threads = self.state.settings.block_size, self.state.settings.threads
        return None if entry.reason else entry

    def learn(self, other: ProgramCache[E]) -> None:
        """Know the calls that an array replays, of which this one has some of the members."""
        replayed = {other._general(key): entry.layout for key, entry in other._entries.items() if entry.ready}
        self.known = other.known | replayed

    def _general(self, key: tuple[Any, ...]) -> Any:
        """A signature without the number of members."""
        place = -len(state_of(self.state))
        size = key[place]
        return memberless(key[:place]), "all" if size == len(self.state) else size, key[place + 1 :]

    def _like(self, key: tuple[Any, ...]) -> Layout | None:
        """The layout of calls that are replayed with another batch size, if there was a choice."""
        key = batchless(key)
        layouts = (e.layout for other, e in self._entries.items() if e.ready and batchless(other) == key)
        return next((layout for layout in layouts if layout is not None), None)

    def like(self, tensors: Sequence[Tensor]) -> list[Any]:
        """The signature of a call with tensor inputs only, computed quickly."""
        found: list[Any] = [*state_of(self.state), *map(_learns, self.parameters)]
        for t in tensors:
            found += (type(t), t.shape, t.stride(), t.dtype, t.device, t.requires_grad, t.layout, t.is_inference())
        return found

    def remember(self, entry: E, tensors: Sequence[Tensor] | None) -> None:
        """Remember the last replayed call for the fast path; without tensors, disable the fast path."""
        self._last = None if tensors is None else (self.like(tensors), entry)

    @property
    def last(self) -> E | None:
        """The entry of the last replayed call, for the fast path; None if the fast path is disabled."""
        return None if self._last is None else self._last[1]

    def repeats(self, tensors: Sequence[Tensor]) -> bool:
        """True if a call with these tensors has the signature of the last replayed call."""
        last = self._last
        return last is not None and self.open() and self.like(tensors) == last[0] and last[1].ready

    # Replaying, recording.

    def replay(
        self, entry: E, leaves: Sequence[Any], run: Callable[[], T], what: str, before: Before | None
    ) -> tuple[T] | None:
        """The result of `run` in a tuple; None if the call must run eagerly.

        Args:
            entry: with a program.
            leaves: of the inputs.
            run: runs the program, with its inputs filled in.
            what: the code that the guards belong to.
            before: undoes the changes of a failed run.
        """
        if entry.guards is None or not entry.guards.hold():
            entry.refuse(f"{what} has changed since it was recorded", forget=True)
            self.state.verified.clear()  # a new recording is verified again
            return None
        entry.fill(leaves)
        try:
            return (run(),)
        except BaseException as error:
            if capturing(self.state.generators.device):
                raise  # a capture has to fail too; nothing was done that could be undone
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
        """The function that runs a call: `eager`, or `record` for the second and third call of a signature.

        Args:
            entry: of the call, if it has one.
            functions: functions to guard, besides the model.
            record: does the same as `eager` and records it.
            eager: runs the call.
        """
        if entry is None or entry.ready:
            return eager
        if self._remembers(entry, functions, waits=1):
            return eager
        entry.calls += 1
        if entry.calls == 1 and not (self.at_once or entry.known):
            return eager

        def recorded(inputs: Inputs) -> T:
            if inputs.copies is not None:  # the settings of the array have just changed
                return eager(inputs)
            restore = self.state.snapshot()
            try:
                guards = entry.guards  # while they hold, guards made anew would be the same
                if guards is None or not guards.hold():
                    guards = guards_of(self.state, functions)
                result = record(entry, inputs, guards)
                self._remembers(entry, functions)
                return result
            except UnclearError as error:
                entry.refuse(str(error))
            except Exception as error:
                if not out_of_memory(error):
                    raise
                entry.refuse("there is not enough memory to record it")  # a recording keeps all tensors
                restore()
            return eager(inputs)

        return recorded

    def _remembers(self, entry: E, functions: tuple[Any, ...], waits: int = 0) -> bool:
        """Refuse to replay calls of functions that keep something for each member; True if they do.

        Args:
            waits: how many calls may find that they do before: tables that a first call makes are settled by the next.
        """
        kept = self.state.functions.remember((*functions, *called_beside(self.state.models)))
        entry.kept += bool(kept)
        if kept and entry.kept > waits:
            entry.refuse(f"a loss, metric or hook keeps a value for each member: {kept}")
        return bool(kept)

    # Descriptions.

    def choices(self) -> list[Choice]:
        """The choices of kernels in replayed programs."""
        return [choice for entry in self if entry.ready for choice in entry.choices]

    def graphs(self) -> list[str]:
        """Whether replayed programs run as CUDA graphs, each once; nothing before that is decided."""
        return list(dict.fromkeys(e.graphs.note for e in self if e.graphs is not None and e.graphs.note))

    def layouts(self) -> list[str]:
        """The layouts of images in replayed programs, each once."""
        return list(dict.fromkeys(str(e.layout) for e in self if e.ready and e.layout is not None))

    def notes(self) -> list[str]:
        """Descriptions of how calls run, each once."""
        ways = [f"not replayed: {self.closed}"] if self.closed else []
        ways += ["replayed from a recording" for entry in self if entry.ready]
        ways += [f"not replayed: {entry.reason}" for entry in self if entry.reason]
        return list(dict.fromkeys(ways))


def _closed(state: ArrayState) -> str:
    """The property of the array that prevents its calls from being replayed."""
    if state.settings.verify == "always":
        return "every call is compared with the plain module"
    if state.settings.private:
        return "the model writes into tensors that members share"
    if state.settings.as_plain:
        return "the backward may change the model, or the model its parameters"
    return "the model sets attributes on itself" if state.engine.attributes.values else ""
