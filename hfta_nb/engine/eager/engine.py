"""Runs a block of an array's members under `vmap`, or a single member as its plain module."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.after_backward import BackwardChanges
from hfta_nb.engine.eager.attributes import AttributeKey, Attributes, is_ordinary, tracked_attributes
from hfta_nb.engine.eager.block_results import concatenate
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.checkpointing import recomputed_alone
from hfta_nb.engine.eager.executable_module import Architectures, BlockTensors, ExecutableModule
from hfta_nb.engine.eager.frozen_in_forward import learning_kept
from hfta_nb.engine.eager.function_states import FunctionStates
from hfta_nb.engine.eager.intercept import Handler, intercepted
from hfta_nb.engine.eager.member_modules import MemberModules, grown_buffers, restore_storage
from hfta_nb.engine.eager.shared_memory import views_of
from hfta_nb.engine.eager.shown_attributes import ShownAttributes
from hfta_nb.engine.eager.unused import note_usage
from hfta_nb.engine.members.arena import is_held_once
from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.engine.members.held_values import walk
from hfta_nb.engine.members.process_streams import ProcessStreams
from hfta_nb.engine.members.tensor_slots import TensorSlots
from hfta_nb.engine.members.tree import flatten, tensor_map, unflatten
from hfta_nb.engine.rules import AloneMode, Context, Disagreement, rule_mode
from hfta_nb.engine.rules.call_path import CallPath
from hfta_nb.engine.rules.rule_mode import Usage, vmap_level

Call = Callable[[nn.Module, list[Any]], Any]
"""What to compute for one member, given the module with the member's tensors and the leaves of its inputs."""


@dataclass(frozen=True)
class Block:
    """Members ``start .. stop`` with their tensors.

    The tensors have a leading axis of the block's members. In a `single` block they have none and belong to one plain
    module.
    """

    start: int
    stop: int
    single: bool
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    rows: Callable[[], Mapping[str, Tensor]] = dict

    @cached_property
    def grad_rows(self) -> Mapping[str, Tensor]:
        """The rows of the arena for gradients of leaf parameters; calls without gradients allocate none."""
        return self.rows()


@dataclass
class Engine:
    """Runs the calls of one array.

    Attributes:
        root: the plain module that calls go through.
        handlers: replacements of submodules, by path; see `intercept`.
        segments: paths of the submodules that a member running alone recomputes in the backward; see `checkpointing`.
        used: how each function that the model called while `recording` was fused.
        watching: find out whether the model changes values that it holds.
        private: members get their own copies of shared inputs and of empty tensors that the model creates, to write
            into.
        fast_rng: draw all members' random numbers at once.
        as_plain: see `ExecutionSettings`.
        current: number of the member that runs alone, or of the last one.
        attributes: attributes that members have set on themselves.
        plain: a member that runs alone calls torch's kernels only.
        architectures: creates the executable modules, if members have different architectures.
        functions: what losses and metrics keep for each member.
        usage: which parameters were used by members that ran one by one, since the last reset.
        member_modules: copies of a module for members that run alone, by its id; for a submodule, by its path.
        one_by_one: paths of the submodules that run member by member.
        process_streams: random streams of Python and NumPy.
        resized_buffers: buffers that the model has replaced by tensors of another shape or dtype, by name and member.
        learning: values with a gradient that a call has given buffers, by name and member; see `keep_gradients`.
        learned: the buffers that have had one.
        observed: by member whose gradients are recorded, the dict for them.
        views: by attribute that calls have set, of which buffers it is a view.
        anew: the attributes that the last call has set.
        sparse: names of the parameters whose gradients may be sparse, as an optimizer takes them; see `deliver`.
        paths: receives the path (see `CallPath`) of each block of several members; None if paths are not wanted.
    """

    root: nn.Module
    slots: TensorSlots
    generators: MemberGenerators
    handlers: dict[str, Handler] = field(default_factory=dict)
    segments: list[str] = field(default_factory=list)
    used: dict[str, str] = field(default_factory=dict)
    recording: bool = False
    watching: bool = False
    private: bool = False
    fast_rng: bool = False
    plain: bool = False
    as_plain: bool = False
    current: int = 0
    architectures: Architectures | None = None
    functions: FunctionStates = field(default_factory=lambda: FunctionStates(0))

    def __post_init__(self) -> None:
        self.attributes = Attributes(len(self.generators))
        self.shown = ShownAttributes(self.root)
        self.usage = Usage()
        self.member_modules: dict[int | str, MemberModules] = {}
        self.one_by_one: tuple[str, ...] = ()
        self.process_streams = ProcessStreams()
        self.resized_buffers: dict[str, dict[int, Tensor]] = {}
        self.views: dict[AttributeKey, list[str]] = {}
        self.anew: set[AttributeKey] = set()
        self.learning: dict[str, dict[int, Tensor]] = {}
        self.learned: set[str] = set()
        self.observed: dict[int, dict[str, Tensor | None]] = {}
        self.paths: set[int] | None = None
        self.sparse: set[str] = set()
        self._recurrent = any(isinstance(m, nn.RNNBase) for m in self.root.modules())

    def run(self, block: Block, call: Call, inputs: Inputs) -> Any:
        """Every member's result, each tensor with a leading axis of the block's members.

        Raises:
            FusionError: an input has no values while the members have, or the other way round.
        """
        inputs.check_values(self.generators.device)
        run = BlockTensors(range(block.start, block.stop), block.single, block.parameters, block.buffers)
        executables = [self._executable(run)] if self.architectures is None else self.architectures.executables(run)
        results = []
        for executable in executables:
            with self.process_streams.turn(), learning_kept(executable.parameters):
                if executable.single:
                    result = self._run_single(executable, block.start + executable.rows[0], call, inputs)
                else:
                    result = self._run_block(executable, block, call, inputs)
            results.append(result)
        if len(results) == 1:
            return results[0]
        order = [row for executable in executables for row in executable.rows]
        turned = [order.index(row) for row in range(len(order))]
        return tensor_map(lambda t: t[turned], concatenate(results))

    def _executable(self, run: BlockTensors) -> ExecutableModule:
        # A graph may have saved the buffer, and the array's own memory is written below: the first time, it is moved.
        apart = {name: b.clone() for name, b in run.buffers.items() if name in self.learned}

        def finish(replaced: Mapping[str, Tensor]) -> None:
            written = {name: b for name, b in apart.items() if b._version}
            for name, value in {**written, **replaced}.items():
                with torch.enable_grad():  # the caller's graph goes on
                    own = [value] if run.single else value.unbind(0)
                buffer = run.buffers[name].detach()
                rows = dict(zip(run.members, own, strict=True))
                learns = value.requires_grad and not all(p.is_leaf for p in run.parameters.values())
                if learns:
                    self.learning.setdefault(name, {}).update(rows)
                elif name in apart:
                    self.learning.setdefault(name, {})
                fits = buffer.shape == value.shape and buffer.dtype == value.dtype
                if fits and (name in apart or not learns):
                    buffer.copy_(value)
                else:
                    self.resized_buffers.setdefault(name, {}).update(rows)

        rows = range(len(run.members))
        tensors = run.parameters, {**run.buffers, **apart}
        return ExecutableModule(
            self.root, self.slots, *tensors, rows, finish, handlers=self.handlers, single=run.single
        )

    def _run_single(self, executable: ExecutableModule, member: int, call: Call, inputs: Inputs) -> Any:
        self.current = member
        leaves = inputs.member(member)
        changes: dict[AttributeKey, Any] = {}
        root, slots = self._modules_of(executable.root).of(member)
        # An empty buffer may grow in place; in the arena it would overwrite its neighbours.
        state = {
            **executable.parameters,
            **{k: v if v.numel() else v.clone() for k, v in executable.buffers.items()},
        }
        storages = {name: tensor.data for name, tensor in executable.parameters.items()}
        slots.put(state)  # before attributes are tracked: the content of a list of parameters changes by it
        with self.generators.member(member), self._tracked(root, slots, self.attributes.of(member), changes, keep=True):
            with (
                recomputed_alone(root, self.segments, self.generators) if self.segments else nullcontext(),
                AloneMode(self.plain) if self._recurrent else nullcontext(),
                self.functions.alone(member),
            ):
                result = call(root, leaves)
            replaced = slots.replaced(state)
            restore_storage(state, storages)
        self._note_views(changes, executable.buffers)
        self.attributes.keep(member, changes)
        note_usage(self.usage, member, result, executable.parameters)
        with torch.no_grad():
            executable.finish(replaced | grown_buffers(state, executable.buffers))
        if self.as_plain and torch.is_grad_enabled():
            changes_of = BackwardChanges(
                root, slots, state, storages, executable.finish, lambda own: self.attributes.keep(member, own)
            )
            changes_of.follow(result)
        return tensor_map(lambda t: t.unsqueeze(0), result)

    def _run_block(self, executable: ExecutableModule, block: Block, call: Call, inputs: Inputs) -> Any:
        members = [block.start + row for row in executable.rows]
        given, own = inputs.block(members)
        per_member = [v for v, m in zip(given, own, strict=True) if m]
        # What is held once has no member axis here: what follows from it alone is computed once, too.
        once = {name: p[0] for name, p in executable.parameters.items() if is_held_once(p)}
        own_p = {name: p for name, p in executable.parameters.items() if name not in once}
        names_p, names_b = list(own_p), list(executable.buffers)
        static: dict[str, Any] = {}

        def one(_: Tensor, parameters: list[Tensor], buffers: list[Tensor], batched: list[Tensor]) -> Any:
            state = {**dict(zip(names_p, parameters, strict=True)), **dict(zip(names_b, buffers, strict=True)), **once}
            left = iter(batched)
            leaves = [next(left) if m else v for v, m in zip(given, own, strict=True)]
            context = self._context(members)
            context.copies |= {executable.parameters[name].untyped_storage().data_ptr() for name in executable.copies}
            context.sparse = {executable.parameters[name].data_ptr() for name in self._sparse_leaves(executable)}
            context.once |= {p.untyped_storage().data_ptr() for p in once.values()}
            changes: dict[AttributeKey, Any] = {}
            given_attributes = self.attributes.for_block(context.indices, context, self.one_by_one)
            with (
                rule_mode(context),
                executable.within(context, state),
                self._tracked(executable.root, executable.slots, given_attributes, changes),
                intercepted(executable.root, executable.handlers, context),
                self.functions.together(context, executable.padded),
            ):
                result, replaced = executable.slots.call(state, lambda: call(executable.root, leaves))
            self._note_views(changes, executable.buffers)
            if self.paths is not None and context.path is not None:
                self.paths.add(context.path.value)
            kept = {place: v for place, v in changes.items() if not executable.padded or not _own(v, state)}
            if executable.padded and not all(self._is_everyones(*place, members) for place in kept.items()):
                raise Disagreement("the model keeps values on itself, which members of other sizes can't share")
            self.attributes.keep_block(context.indices, kept, context)
            values, static["rebuild"] = flatten(result)
            static["leaves"], static["replaced"] = values, list(replaced)
            for value in values:
                if isinstance(value, Tensor):
                    executable.check(value)
            return [v for v in values if isinstance(v, Tensor)], list(replaced.values())

        # `vmap` needs an input to map over, and a module may have no parameters. The tensor is on the members' device,
        # because a step with tensors on several devices is not recorded.
        carrier = torch.empty(len(members), device=self.generators.device)
        state = carrier, list(own_p.values()), list(executable.buffers.values())
        # "error": all functions that draw have a rule, so a draw that reaches vmap is a missing rule.
        randomness = "different" if self.fast_rng else "error"
        with ExitStack() as stack:
            if self.fast_rng:
                stack.enter_context(self.generators.member(members[0]))  # one stream for all members
            results, replaced = torch.func.vmap(one, randomness=randomness)(*state, per_member)
        with torch.no_grad():
            executable.finish(dict(zip(static["replaced"], replaced, strict=True)))
        left = iter(results)
        values = [next(left) if isinstance(v, Tensor) else v for v in static["leaves"]]
        return unflatten(static["rebuild"], values)

    def _is_everyones(self, place: AttributeKey, value: Any, members: Sequence[int]) -> bool:
        """Whether a value that members of unlike architecture have set together is that of each: it has no tensors and
        no numbers of theirs, and is in the same submodule of all."""
        assert self.architectures is not None  # of like members, any value is
        paths = [self.architectures.paths(member) for member in members]
        parts = list(walk([value]))
        return (
            is_ordinary(place[1])
            and all(own.get(place[0]) == place[0] for own in paths)
            and not any(isinstance(part, Tensor | nn.Module | int | float) for part in parts)
        )

    def member_module(self, member: int) -> nn.Module:
        """The module that a member runs through alone."""
        architectures = self.architectures
        root = self.root if architectures is None else architectures.template(member)
        return self._modules_of(root).of(member).module

    def follow_root(self) -> None:
        """Give the modules of members that run alone the attributes that the user has changed."""
        for modules in self.member_modules.values():
            modules.follow()

    def reset_member_modules(self) -> None:
        """Discard the modules of members that run alone; their attributes are kept in `attributes`."""
        for modules in self.member_modules.values():
            modules.clear()

    @contextmanager
    def other_member_modules(self) -> Iterator[None]:
        """Let members that run alone use other copies of their modules within the context.

        The backward of an earlier call may still refer to the ones that they have.
        """
        own = [(modules, modules.made) for modules in self.member_modules.values()]
        for modules, _ in own:
            modules.made = {}
        try:
            yield
        finally:
            for modules, made in own:
                modules.made = made

    def _modules_of(self, root: nn.Module) -> MemberModules:
        """The copies of a module for members that run alone. Not to be called during a call of the module."""
        if id(root) not in self.member_modules:
            self.member_modules[id(root)] = MemberModules(root)
        return self.member_modules[id(root)]

    def _tracked(
        self,
        root: nn.Module,
        slots: TensorSlots,
        given: Mapping[AttributeKey, Any],
        changes: dict[AttributeKey, Any],
        keep: bool = False,
    ) -> AbstractContextManager[None]:
        """The context that tracks attributes, which costs as much as a small model; so only if the model sets some."""
        if self.watching or self.attributes.values:
            views = [place for place, others in self.views.items() if others]
            return tracked_attributes(root, slots, given, changes, deep=self.watching, keep=keep, views=views)
        return nullcontext()

    def _note_views(self, changes: Mapping[AttributeKey, Any], buffers: Mapping[str, Tensor]) -> None:
        """Note which of the attributes that a call has set are views of buffers: they are copies in the next one."""
        self.anew |= changes.keys()
        if self.watching and changes:
            names = {".".join(filter(None, place)): place for place in changes}
            found = views_of({name: changes[place] for name, place in names.items()}, buffers)
            for name, place in names.items():
                self.views[place] = [other for other in found.get(name, ()) if other in buffers]

    def _sparse_leaves(self, executable: ExecutableModule) -> list[str]:
        """The parameters that autograd may give a sparse gradient: not those that are parts of others."""
        known = executable.parameters
        return [name for name in self.sparse if name in known and known[name].is_leaf]

    def _context(self, members: Sequence[int]) -> Context:
        return Context(
            members,
            self.generators,
            vmap_level(),
            self.used,
            self.recording,
            self.private,
            self.fast_rng,
            self.usage,
            plain=self.plain,
            attributes=self.attributes,
            watching=self.watching,
            process_streams=self.process_streams,
            keeping=self.functions.writes,
            path=None if self.paths is None else CallPath(),
        )


def _own(value: Any, state: Mapping[str, Tensor]) -> bool:
    """True if an attribute lists only the module's own tensors, as in a recurrent layer."""
    known = {id(t) for t in state.values()}
    return isinstance(value, list) and all(id(v() if isinstance(v, weakref.ref) else v) in known for v in value)
