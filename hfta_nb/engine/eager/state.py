"""The state of an array, on which execution, replay and surgery operate."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.engine import Block, Engine
from hfta_nb.engine.eager.execution_settings import ExecutionSettings
from hfta_nb.engine.eager.function_states import FunctionStates
from hfta_nb.engine.eager.ownership import Follower
from hfta_nb.engine.eager.padding import Padding
from hfta_nb.engine.equality import same_entries
from hfta_nb.engine.kernels.capture import Backend
from hfta_nb.engine.kernels.cuda_graphs import CudaGraphs
from hfta_nb.engine.members.arena import Arena
from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.engine.members.identity import MetFunctions
from hfta_nb.engine.members.scratch import Scratch
from hfta_nb.engine.members.tensor_slots import TensorSlots


class ArrayState:
    """The members' tensors and random streams, the module that they run through, and how they run.

    Every `FusedArray` holds one. `storage.take` fills it.

    Args:
        generators: the members' random streams.

    Attributes:
        skeleton: the plain module that stands for all members.
        slots: the slots of the skeleton for the members' tensors.
        tensors: an `nn.Module` with the parameters, buffers and submodules of the skeleton; looking them up by name
            runs no code of the model.
        engine: runs blocks of members.
        settings: how the members run.
        arenas, buffer_arenas, missing_grads, owned: see `FusedArray`.
        held_once: by name, the arenas of frozen parameters that are equal in all members; see `held_once`.
        unwritten: calls that have left them alone.
        unsettled: what `missing_grads` becomes in the next step of an optimizer; see `note_unused`.
        padding: clears the gradients of padding.
        views: blocks whose parameters are leaves over the arenas' memory, by their members; see `blocks`.
        pending: members whose lazy modules have no shapes yet.
        proven: kinds of calls that are known to run with the current settings.
        verified: by kind of call, how often it was compared with the plain module; 2 ends the comparisons.
        awaited: by kind of call, how many calls waited for the caller's backward to compare their gradients.
        paths: by kind of call without its shapes, the paths (see `CallPath`) that were compared.
        capture: whether calls may be recorded and replayed.
        functions: what losses and metrics keep for each member.
        called: the loss, if the skeleton is one.
        rewrites: whether calls change parameters (``self.codes.weight.data.copy_(...)`` in forward); None if not known.
        viewed: by attribute, what it shares memory with in a plain module; see `refuse_views`.
        shared: names of tensors that the members shared when they were fused, and do not train.
        followers: objects that keep state per member beside the array; see `Follower`.
        trying: calls are part of a trial, which is undone.
        axes_known: True if the warning about shared inputs was given or is not needed.
        sums_reported: True if the warning about gradients of shared inputs was given.
        met: the losses and metrics of earlier calls; what a new one reads is watched.
        face: returns the array, which shows one member while the loss of that member is computed; see `current`.
        laid: tells the array that its tensors lie elsewhere.
        scratch: memory that programs of whole calls share.
    """

    skeleton: nn.Module
    slots: TensorSlots
    tensors: nn.Module
    engine: Engine
    padding: Padding
    owned: dict[str, Tensor]

    def __init__(self, generators: MemberGenerators) -> None:
        self.generators = generators
        self.settings = ExecutionSettings(len(generators))
        self.arenas: list[Arena] = []
        self.buffer_arenas: list[Arena] = []
        self.held_once: dict[str, Arena] = {}
        self.unwritten = 0
        self.missing_grads: dict[str, list[int]] = {}
        self.unsettled: dict[str, list[int]] = {}
        self.views: dict[tuple[int, int, bool], Block] = {}
        self.pending: list[nn.Module] = []
        self.proven: set[tuple[Any, ...]] = set()
        self.verified: dict[tuple[Any, ...], int] = {}
        self.awaited: dict[tuple[Any, ...], int] = {}
        self.paths: dict[tuple[Any, ...], set[int]] = {}
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()
        self.functions = FunctionStates(len(generators))
        self.called: tuple[Any, ...] = ()
        self.capture, self.axes_known, self.sums_reported, self.trying = True, False, False, False
        self._graphs: CudaGraphs | None = None
        self._rewrites: bool | None = None
        self._written: Tensor | None = None  # whether calls have, as a tensor: a step must not wait for values
        self.shared: frozenset[str] = frozenset()
        self.viewed: dict[str, list[str]] = {}
        self.met, self.scratch = MetFunctions(), Scratch()
        self.face: Callable[[], nn.Module | None] = lambda: None
        self.laid: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self.generators)

    @property
    def models(self) -> list[nn.Module]:
        """The skeleton, and a plain module of each architecture where members differ."""
        architectures = self.engine.architectures
        return [self.skeleton, *(() if architectures is None else architectures.templates)]

    def arena_of(self, name: str) -> Arena:
        """The arena in which a parameter lies."""
        once = self.held_once.get(name)
        return once or next(a for a in self.arenas if any(s.name == name for s in a.spans))

    @property
    def parameter_arenas(self) -> list[Arena]:
        """The arenas of all parameters, those that are held once included."""
        return [*self.arenas, *self.held_once.values()]

    def swapped(self) -> dict[str, Tensor]:
        """Parameters ``[M, ...]`` that `torch.func.functional_call` has put in place of the array's, by name."""
        now = dict(self.tensors.named_parameters())
        arenas = [(a.data.data_ptr(), a.data.element_size(), a.spans) for a in self.parameter_arenas]
        return {
            span.name: now[span.name]
            for address, size, spans in arenas
            for span in spans
            if span.numel and span.name in now and now[span.name].data_ptr() != address + span.start * size
        }

    def parameters_of(self, member: int) -> dict[str, Tensor]:
        """The parameters of a member by the names of its plain module."""
        swapped = self.swapped()
        rows = [(arena.data[member], span) for arena in self.parameter_arenas for span in arena.spans]
        found = {
            span.name: swapped[span.name].detach()[member]
            if span.name in swapped
            else row[span.start : span.stop].view(span.shape)
            for row, span in rows
        }
        return self.own(member, found)

    def own(self, member: int, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """One member's tensors by the names of its plain module, without padding; None stays None."""
        architectures = self.engine.architectures
        return dict(tensors) if architectures is None else architectures.own(member, tensors)

    def slots_of(self, member: int) -> TensorSlots:
        """The slots of a member's plain module."""
        architectures = self.engine.architectures
        return self.slots if architectures is None else architectures.slots_of(member)

    def clear_padding(self, names: Collection[str]) -> None:
        """Set the gradients of padding to zero, for parameters with these names."""
        if self.owned and self.settings.block_size > 1:
            self.padding.clear(self.slots.current(), names)  # after each step: names are not looked for again

    def own_attributes(self) -> AbstractContextManager[None]:
        """The context in which the skeleton has its own attributes; see `ShownAttributes`."""
        if self.pending:
            return nullcontext()
        return self.engine.shown.hidden(lambda: self.engine.attributes)

    @property
    def graphs(self) -> Backend | None:
        """Captures work of the array on a GPU, in one memory pool; None on a CPU."""
        device = self.generators.device
        if device.type != "cuda":
            return None
        if self._graphs is None or self._graphs.device != device:
            self._graphs = CudaGraphs(device, self.generators)
        return self._graphs

    @property
    def rewrites(self) -> bool | None:
        """See above; the first time after a call, it waits for the device."""
        if self._written is not None:
            self._rewrites, self._written = bool(self._rewrites) or bool(self._written), None
        return self._rewrites

    @rewrites.setter
    def rewrites(self, known: bool | None) -> None:
        self._rewrites, self._written = known, None

    def note_writes(self, before: Snapshot) -> None:
        """Note whether a call has changed parameters since they were saved."""
        if self._rewrites:
            return
        found = before.parameters_changed()
        self._written = found if self._written is None else self._written | found

    def note_unused(self) -> None:
        """Note the members whose output of the latest call does not depend on a parameter; see `settle_missing`."""
        unused = self.engine.usage.unused()
        for name in {*unused, *self.unsettled, *self.missing_grads}:
            lacking = unused.get(name, [])
            if self.tensors.get_parameter(name).grad is not None:  # it is accumulated
                before = self.unsettled.get(name, self.missing_grads.get(name, ()))
                lacking = [i for i in before if i in lacking]
            self.unsettled[name] = lacking

    def settle_missing(self) -> None:
        """Bring `missing_grads` up to date: of members noted by `note_unused`, those with a row of zeros."""
        for name, lacking in self.unsettled.items():
            grad = self.tensors.get_parameter(name).grad
            rows = [] if grad is None else [i for i in lacking if not bool(grad[i].any())]
            self.missing_grads.pop(name, None)
            if rows:
                self.missing_grads[name] = rows
        self.unsettled.clear()

    def lay_buffers(self, arenas: list[Arena]) -> None:
        """Let the skeleton's buffers be views of these arenas."""
        self.buffer_arenas = arenas
        self.slots.find()
        # `.data`: writing into one buffer must not count as a change of all others, which autograd may have saved.
        self.slots.replace({s.name: a.view(s.name).data for a in arenas for s in a.spans})
        self.slots.find()
        self.views.clear()

    @contextmanager
    def trial(self) -> Iterator[None]:
        """The context of calls that only the array notices: its state is what it was before."""
        restore, before = self.snapshot(every=True), self.trying
        self.trying = True
        try:
            yield
        finally:
            self.trying = before
            restore()

    def snapshot(self, every: bool = False, sums: bool = False) -> Snapshot:
        """Save the state that a call changes, except gradients; calling the result restores it.

        Args:
            every: save the parameters too, although calls are known to leave them alone.
            sums: of parameters that are held once, sums alone, by which a change is noticed but not undone.
        """
        unknown = self.rewrites is None and not self.engine.sparse  # a copy would cost more than such a step
        return Snapshot(self, every or unknown or bool(self.rewrites), sums)


class Snapshot:
    """Saved state of an array; calling it restores the state.

    Args:
        state: of the array.
        parameters: whether they are saved too.
        sums: see `ArrayState.snapshot`.

    Attributes:
        sums: by what is held once, the sum of its bits, if that is all that is saved of it.
    """

    def __init__(self, state: ArrayState, parameters: bool, sums: bool) -> None:
        self._state, self._buffer_arenas = state, state.buffer_arenas
        arenas = [*state.buffer_arenas, *(state.parameter_arenas if parameters and not sums else ())]
        arenas += state.arenas if parameters and sums else []
        self.sums = {n: (a, _sum(a.stored)) for n, a in state.held_once.items()} if parameters and sums else {}
        self._saved = [(arena, arena.stored.clone()) for arena in arenas]
        self._streams = [dict(s) for s in state.generators.states]
        self._attributes = state.engine.attributes.copy()
        self._resized = _copied(state.engine.resized_buffers)
        self._kept = state.functions.snapshot()
        self._buffers_learning = _copied(state.engine.learning)
        self._learning = [p.requires_grad for p in state.tensors.parameters()]

    @torch.no_grad()
    def __call__(self) -> None:
        state = self._state
        if state.buffer_arenas is not self._buffer_arenas:  # a call has stored buffers of another shape or dtype
            state.lay_buffers(self._buffer_arenas)
            state.laid()
        there = {id(arena) for arena in [*state.parameter_arenas, *state.buffer_arenas]}
        for arena, value in self._saved:
            arena.stored.copy_(value)
            if id(arena) not in there:  # a call has separated what was held once
                for s in arena.spans:
                    state.arena_of(s.name).view(s.name).copy_(value[:, s.start : s.stop].view(-1, *s.shape))
        state.generators.states = [dict(s) for s in self._streams]
        state.engine.attributes = self._attributes.copy()
        state.engine.reset_member_modules()
        state.engine.resized_buffers = _copied(self._resized)
        state.engine.learning = _copied(self._buffers_learning)
        state.functions.restore(self._kept)
        for p, learns in zip(state.tensors.parameters(), self._learning, strict=True):
            p.requires_grad_(learns)

    def written_once(self) -> list[str]:
        """The names of parameters that are held once and have other values than those that are saved."""
        own = {id(arena) for arena in self._state.held_once.values()}
        pairs = [(arena, value) for arena, value in self._saved if id(arena) in own]
        changed = [_changed(arena.stored, value) for arena, value in pairs]
        changed += [_sum(arena.stored) != before for arena, before in self.sums.values()]
        arenas = [*(arena for arena, _ in pairs), *(arena for arena, _ in self.sums.values())]
        each = torch.stack(changed).tolist() if changed else []
        return [arena.spans[0].name for arena, other in zip(arenas, each, strict=True) if other]

    def parameters_changed(self) -> Tensor:
        """Whether parameters have other values than those that are saved, bool ``[]``."""
        own = {id(arena) for arena in self._state.arenas}
        pairs = [(arena.data, value) for arena, value in self._saved if id(arena) in own]
        changed = [_changed(now, before) for now, before in pairs]
        return torch.stack(changed).any() if changed else torch.zeros((), dtype=torch.bool)

    def changed(self, names: Collection[str]) -> list[str]:
        """Those of the tensors with these names that have other values than those that are saved."""
        pairs = [(arena, value, span) for arena, value in self._saved for span in arena.spans if span.name in names]
        columns = [(span.name, *(t[:, span.start : span.stop] for t in (arena.stored, v))) for arena, v, span in pairs]
        return [name for name, now, before in columns if not torch.equal(now, before)]


def _changed(now: Tensor, before: Tensor) -> Tensor:
    """Whether values differ, bool ``[]``. On a GPU nothing waits for it, on a CPU it takes one pass if they don't."""
    if now.device.type == "cpu" and torch.equal(now, before):
        return torch.zeros((), dtype=torch.bool)
    return ~same_entries(now, before).all()


def _sum(tensor: Tensor) -> Tensor:
    """The sum of a tensor's bits as whole numbers, int64 ``[]``."""
    flat = tensor.detach().reshape(-1)
    return flat.view(torch.uint8 if flat.nbytes % 8 else torch.int64).sum(dtype=torch.int64)


def _copied(rows: dict[str, dict[int, Tensor]]) -> dict[str, dict[int, Tensor]]:
    return {name: dict(of_members) for name, of_members in rows.items()}
