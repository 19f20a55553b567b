"""Runs a block of an array's members under `vmap`, or a single member as its plain module."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.after_backward import BackwardChanges
from hfta_nb.engine.eager.attributes import AttributeKey, Attributes, tracked_attributes
from hfta_nb.engine.eager.checkpointing import recomputed_alone
from hfta_nb.engine.eager.executable_module import Architectures, BlockTensors, ExecutableModule
from hfta_nb.engine.eager.frozen_in_forward import learning_kept
from hfta_nb.engine.eager.function_states import FunctionStates
from hfta_nb.engine.eager.intercept import Handler, intercepted
from hfta_nb.engine.eager.member_modules import MemberModules, grown_buffers, restore_storage
from hfta_nb.engine.eager.results import concatenate
from hfta_nb.engine.eager.shown_attributes import ShownAttributes
from hfta_nb.engine.eager.unused import note_usage
from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.engine.members.per_member import PerMember
from hfta_nb.engine.members.process_streams import ProcessStreams
from hfta_nb.engine.members.tensor_slots import TensorSlots
from hfta_nb.engine.members.tree import Rebuild, flatten, tensor_map, unflatten
from hfta_nb.engine.rules import AloneMode, Context, Disagreement, rule_mode
from hfta_nb.engine.rules.base import Usage, vmap_level
from hfta_nb.engine.rules.call_path import CallPath
from hfta_nb.errors import FusionError

Call = Callable[[nn.Module, list[Any]], Any]
"""What to compute for one member, given the module with the member's tensors and the leaves of its inputs."""


@dataclass(slots=True)  # not frozen: that would make construction four times slower
class Inputs:
    """The flattened inputs of a call.

    Attributes:
        leaves: tensors and other values.
        per_member: for each leaf, whether it has a member axis.
        rebuild: puts the leaves together again.
        copied: members get copies of shared tensors, as the model writes into them.
    """

    leaves: tuple[Any, ...]
    per_member: tuple[bool, ...]
    rebuild: Rebuild
    copied: bool = False

    @classmethod
    def of(cls, tree: Any, members: int) -> Inputs:
        leaves, rebuild = flatten(tree)
        marked = tuple(isinstance(v, PerMember) for v in leaves)
        for leaf, mark in zip(leaves, marked, strict=True):
            if mark and not isinstance(leaf.value, Tensor):
                raise FusionError("an input that is per member must be a tensor", where="per_member", got=leaf.value)
            if mark and len(leaf) != members:
                raise FusionError(
                    "another number of members",
                    where="per_member input",
                    got=list(leaf.value.shape),
                    accepted=f"a first axis of {members}, the array's members",
                )
        return cls(tuple(v.value if m else v for v, m in zip(leaves, marked, strict=True)), marked, rebuild)

    @classmethod
    def positional(cls, tensors: tuple[Tensor, ...]) -> Inputs:
        """The inputs of a call with shared tensors only, and no keywords."""
        return cls(tensors, (False,) * len(tensors), positional)

    def check_values(self, device: torch.device) -> None:
        """Check that inputs are on the device "meta" only if the members are: torch's kernels for both don't always.

        Raises:
            FusionError: one is there alone, or not there.
        """
        for k, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor) and leaf.is_meta != (device.type == "meta") and (leaf.is_meta or leaf.ndim):
                what = (
                    "without values, where members have some"
                    if leaf.is_meta
                    else "with values, where members have none"
                )
                remedy = f"make the tensor on the members' device, {device}"
                raise FusionError(what, where=f"input {k}", got=f"{list(leaf.shape)} on {leaf.device}",
                                  accepted=f"tensors on {device}", remedy=remedy)  # fmt: skip

    def structure(self, leaves: list[Any]) -> Any:
        return unflatten(self.rebuild, leaves)

    def member(self, index: int) -> list[Any]:
        return [v[index] if m else self._given(v) for v, m in zip(self.leaves, self.per_member, strict=True)]

    def block(self, start: int, stop: int) -> tuple[list[Any], list[bool]]:
        """The leaves for some members, and which of them have a member axis."""
        if not self.copied:
            pairs = zip(self.leaves, self.per_member, strict=True)
            return [v[start:stop] if m else v for v, m in pairs], list(self.per_member)
        leaves: list[Any] = []
        for v, m in zip(self.leaves, self.per_member, strict=True):
            own = v[start:stop].clone() if m else v
            if isinstance(v, Tensor) and not m:
                own = v.unsqueeze(0).repeat(stop - start, *[1] * v.ndim)
            leaves.append(own)
        return leaves, [isinstance(v, Tensor) for v in self.leaves]

    def _given(self, value: Any) -> Any:
        return value.clone() if self.copied and isinstance(value, Tensor) else value

    def watched(self) -> Inputs:
        """The inputs with copies of shared tensors, except those that require a gradient."""
        pairs = zip(self.leaves, self.per_member, strict=True)
        plain = [isinstance(v, Tensor) and not m and not v.requires_grad for v, m in pairs]
        return replace(self, leaves=tuple(v.clone() if p else v for v, p in zip(self.leaves, plain, strict=True)))

    def grad_leaves(self) -> list[Tensor]:
        """Inputs that require a gradient, each once."""
        return list({id(v): v for v in self.leaves if isinstance(v, Tensor) and v.requires_grad}.values())

    def of_member(self, grads: Sequence[Tensor | None], member: int) -> list[Tensor | None]:
        """One member's part of the gradients of `grad_leaves`; for shared inputs, the whole gradient."""
        pairs = zip(self.leaves, self.per_member, strict=True)
        marks = {id(v): m for v, m in pairs if isinstance(v, Tensor) and v.requires_grad}
        return [g[member] if m and g is not None else g for g, m in zip(grads, marks.values(), strict=True)]


def positional(leaves: Iterator[Any]) -> Any:
    """The arguments of a call with tensors only."""
    return tuple(leaves), {}


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
        observed: by member whose gradients are recorded, the dict for them.
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
        self.observed: dict[int, dict[str, Tensor | None]] = {}
        self.paths: set[int] | None = None
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
        def finish(replaced: Mapping[str, Tensor]) -> None:
            for name, value in replaced.items():
                if value.requires_grad and not all(p.is_leaf for p in run.parameters.values()):
                    raise _learning_buffer(name)
                buffer = run.buffers[name]
                if buffer.shape == value.shape and buffer.dtype == value.dtype:
                    buffer.copy_(value)
                    continue
                own = [value] if run.single else value.unbind(0)
                self.resized_buffers.setdefault(name, {}).update(zip(run.members, own, strict=True))

        rows = range(len(run.members))
        tensors = run.parameters, run.buffers
        return ExecutableModule(
            self.root, self.slots, *tensors, rows, finish, handlers=self.handlers, single=run.single
        )

    def _run_single(self, executable: ExecutableModule, member: int, call: Call, inputs: Inputs) -> Any:
        self.current = member
        leaves = inputs.member(member)
        changes: dict[AttributeKey, Any] = {}
        root, slots = self._modules_of(executable.root).of(member)
        with self.generators.member(member), self._tracked(root, slots, self.attributes.of(member), changes, keep=True):
            # An empty buffer may grow in place; in the arena it would overwrite its neighbours.
            state = {
                **executable.parameters,
                **{k: v if v.numel() else v.clone() for k, v in executable.buffers.items()},
            }
            storages = {name: tensor.data for name, tensor in executable.parameters.items()}
            with (
                recomputed_alone(root, self.segments, self.generators) if self.segments else nullcontext(),
                AloneMode(self.plain) if self._recurrent else nullcontext(),
                self.functions.alone(member),
            ):
                result, replaced = slots.call_and_keep(state, lambda: call(root, leaves))
            restore_storage(state, storages)
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
        given, own = inputs.block(block.start, block.stop)
        members = [block.start + row for row in executable.rows]
        if len(members) < block.stop - block.start:
            given = [v[list(executable.rows)] if m else v for v, m in zip(given, own, strict=True)]
        per_member = [v for v, m in zip(given, own, strict=True) if m]
        names_p, names_b = list(executable.parameters), list(executable.buffers)
        static: dict[str, Any] = {}

        def one(_: Tensor, parameters: list[Tensor], buffers: list[Tensor], batched: list[Tensor]) -> Any:
            state = {**dict(zip(names_p, parameters, strict=True)), **dict(zip(names_b, buffers, strict=True))}
            left = iter(batched)
            leaves = [next(left) if m else v for v, m in zip(given, own, strict=True)]
            context = self._context(members)
            context.copies |= {executable.parameters[name].untyped_storage().data_ptr() for name in executable.copies}
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
            if self.paths is not None and context.path is not None:
                self.paths.add(context.path.value)
            if not executable.padded:
                self.attributes.keep_block(context.indices, changes, context)
            elif any(not _own(value, state) for value in changes.values()):
                raise Disagreement("the model keeps values on itself, which members of other sizes can't share")
            values, static["rebuild"] = flatten(result)
            static["leaves"], static["replaced"] = values, list(replaced)
            for value in values:
                if isinstance(value, Tensor):
                    executable.check(value)
            return [v for v in values if isinstance(v, Tensor)], list(replaced.values())

        # `vmap` needs an input to map over, and a module may have no parameters. The tensor is on the members' device,
        # because a step with tensors on several devices is not recorded.
        carrier = torch.empty(len(members), device=self.generators.device)
        state = carrier, list(executable.parameters.values()), list(executable.buffers.values())
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
            return tracked_attributes(root, slots, given, changes, deep=self.watching, keep=keep)
        return nullcontext()

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


def _learning_buffer(name: str) -> FusionError:
    """The error of a buffer whose gradient the caller of ``array(x)`` might expect."""
    return FusionError(
        "a buffer is replaced by a tensor with a gradient, which a buffer of all members can't keep",
        where=f"array(x), `{name}`",
        remedy="don't register it as a buffer: as a plain attribute, array.kl has the member axis and a gradient; "
        "or detach() it, or read it in the loss of array.backward from hfta_nb.member()",
    )


def _own(value: Any, state: Mapping[str, Tensor]) -> bool:
    """True if an attribute lists only the module's own tensors, as in a recurrent layer."""
    known = {id(t) for t in state.values()}
    return isinstance(value, list) and all(id(v() if isinstance(v, weakref.ref) else v) in known for v in value)
