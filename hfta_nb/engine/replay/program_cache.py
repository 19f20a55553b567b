"""The cache of an array's programs, by signature of call.

An entry is new, then recorded, recorded again and verified, and then replayed; or it is refused, and its calls run
eagerly. Each kind of calls has a cache.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.model_hooks import called_beside
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.cuda_graphs import capturing
from hfta_nb.engine.kernels.strategy.autotune import Choice
from hfta_nb.engine.replay.array_call import ArrayCall
from hfta_nb.engine.replay.cache_entry import CacheEntry
from hfta_nb.engine.replay.guards import Guards, UnclearError, guards_of
from hfta_nb.engine.replay.layouts import Layout
from hfta_nb.engine.replay.program import Program
from hfta_nb.engine.replay.signature import batchless, memberless, state_of, watched
from hfta_nb.engine.replay.trace import NotRecordableError
from hfta_nb.engine.replay.verify import Before, failure
from hfta_nb.errors import out_of_memory

_MOST = 8
"""The most signatures that are kept; each batch size has a separate one."""
_learns = operator.attrgetter("requires_grad")

T = TypeVar("T")


class _Last(NamedTuple):
    """The last call that was replayed, without its arguments."""

    function: Any
    has_aux: bool
    only: Any
    signature: list[Any]
    entry: CacheEntry


class ProgramCache:
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
        self._entries: dict[Any, CacheEntry] = {}
        self._parameters: list[nn.Parameter] | None = None
        self._last: _Last | None = None

    def __iter__(self) -> Iterator[CacheEntry]:
        return iter(self._entries.values())

    # Contents.

    def clear(self) -> None:
        """Discard all entries, after the array's tensors have moved or its settings have changed."""
        self._keep(lambda _: False)
        self._parameters = None

    def keep(self, block_size: int, threads: str) -> None:
        """Discard entries with other block sizes or threads."""
        self._keep(lambda entry: (entry.block_size, entry.threads) == (block_size, threads))

    def _keep(self, wanted: Callable[[CacheEntry], bool]) -> None:
        self._last = None
        for key, entry in list(self._entries.items()):
            if not wanted(entry):
                entry.drop()
                del self._entries[key]

    # Lookup.

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of the array."""
        if self._parameters is None:
            self._parameters = list(self.state.tensors.parameters())
        return self._parameters

    def open(self) -> bool:
        """True if calls may currently be recorded and replayed."""
        state = self.state
        self.closed = _closed(state)
        never = self.waiting or self.closed or state.settings.brief
        return state.capture and not (never or state.pending or watched())

    def find(self, call: ArrayCall) -> CacheEntry | None:
        """The entry of a call; None if it must run eagerly."""
        if not self.open():
            return None
        try:
            key = *call.signature(self.parameters), *state_of(self.state)
        except NotRecordableError:
            return None
        entry = self._entries.get(key)
        if entry is None:
            while len(self._entries) >= _MOST:
                self._entries.pop(next(iter(self._entries))).drop()
            entry = self._entries[key] = CacheEntry((call.function,))
            general = self._general(key) if self.known else None
            entry.known = general in self.known
            entry.like = self.known.get(general) or self._like(key)
            entry.block_size, entry.threads = self.state.settings.block_size, self.state.settings.threads
        return None if entry.reason else entry

    def learn(self, other: ProgramCache) -> None:
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

    def remember(self, entry: CacheEntry, call: ArrayCall) -> None:
        """Remember the last call that was replayed, for `again`, if its arguments are tensors alone."""
        fixed = call.only is None or type(call.only) in (tuple, frozenset)  # nobody can change them
        if (
            call.tensors is not None
            and call.scale is None
            and fixed
            and (self._last is None or self._last.entry is not entry)
        ):
            self._last = _Last(call.function, call.has_aux, call.only, self.like(call.tensors), entry)

    def again(self, call: ArrayCall) -> CacheEntry | None:
        """The entry of a call, computed quickly, if its signature equals that of the last replayed one; else None."""
        last = self._last
        if last is None or call.tensors is None or call.scale is not None:
            return None
        same = call.function is last.function and call.only is last.only and call.has_aux == last.has_aux
        same = same and last.entry.ready and self.open() and self.like(call.tensors) == last.signature
        return last.entry if same else None

    # Replaying, recording.

    def replay(
        self, entry: CacheEntry, call: ArrayCall, run: Callable[[], T], before: Before | None
    ) -> tuple[T] | None:
        """The result of `run` in a tuple; None if the call must run eagerly.

        Args:
            entry: with a program.
            call: of this entry.
            run: runs the program, with its inputs filled in.
            before: undoes the changes of a failed run.
        """
        if entry.guards is None or not entry.guards.hold():
            entry.refuse(f"{call.kind.code} has changed since it was recorded", forget=True)
            self.state.verified.clear()  # a new recording is verified again
            return None
        entry.fill(call.leaves, call.scale)
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
        self, entry: CacheEntry | None, call: ArrayCall, record: Callable[[CacheEntry, Inputs, Guards], Any]
    ) -> Callable[[Inputs], Any]:
        """The function that runs a call: eagerly, or by `record` if it is the second or third one of a signature.

        Args:
            entry: of the call, if it has one.
            call: the call.
            record: runs it and records it.
        """
        eager, functions = call.eagerly, call.functions
        if entry is None or entry.ready:
            return eager
        if self._remembers(entry, functions, waits=1):
            return eager
        entry.calls += 1
        if entry.calls == 1 and not (self.at_once or entry.known):
            return eager

        def recorded(inputs: Inputs) -> Any:
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

    def _remembers(self, entry: CacheEntry, functions: tuple[Any, ...], waits: int = 0) -> bool:
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

    def programs(self) -> list[Program]:
        """The programs of calls that are replayed."""
        return [entry.program for entry in self if entry.program is not None]

    def decisions(self) -> list[str]:
        """Decisions about compiling replayed programs, each once."""
        notes = [program.decision.note for program in self.programs()]
        return list(dict.fromkeys(note for note in notes if note))

    def kernels(self) -> list[set[str]]:
        """Names of the kernels of each replayed program, as recorded."""
        sources = [program.source for program in self.programs()]
        return [{call.function._schema.name for call in source.calls} for source in sources if source is not None]

    def choices(self) -> list[Choice]:
        """The choices of kernels in replayed programs."""
        return [choice for program in self.programs() for choice in program.choices]

    def graphs(self) -> list[str]:
        """Whether replayed programs run as CUDA graphs, each once; nothing before that is decided."""
        return list(dict.fromkeys(e.graphs.note for e in self if e.graphs is not None and e.graphs.note))

    def layouts(self) -> list[str]:
        """The layouts of images in replayed programs, each once."""
        return list(dict.fromkeys(str(e.layout) for e in self if e.ready and e.layout is not None))

    def notes(self) -> list[str]:
        """Descriptions of how calls run, each once."""
        ways = [f"not recorded: {self.closed}"] if self.closed else []
        ways += ["recorded" for entry in self if entry.ready]
        ways += [f"not recorded: {entry.reason}" for entry in self if entry.reason]
        return list(dict.fromkeys(ways))


def _closed(state: ArrayState) -> str:
    """The property of the array that prevents its calls from being replayed."""
    if state.settings.verify == "always":
        return "every call is compared with the plain module"
    if state.settings.private:
        return "the model writes into tensors that members share"
    if state.engine.learned:
        return "a buffer has a gradient"
    if state.engine.sparse:
        return "gradients are sparse"
    if state.settings.as_plain:
        return "the backward may change the model, or the model its parameters"
    return "the model sets attributes on itself" if state.engine.attributes.values else ""
