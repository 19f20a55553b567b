"""Creates a program from a trace: runs the passes, lays out memory, and chooses kernels.

Calls that no result needs are removed; constants are computed once. Kernels that can write into given memory use slots,
which values that are not needed at the same time share; gradients are written directly to their destinations. Views
cost nothing, as they are created once. The remaining kernels allocate memory as usual.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from hfta_nb.engine.kernels.native.binding import Binding
from hfta_nb.engine.kernels.native.product import Compiled
from hfta_nb.engine.kernels.native.recurrent import BOUND
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.engine.kernels.strategy.autotune import Choice
from hfta_nb.engine.kernels.strategy.gpu_streams import runner_of
from hfta_nb.engine.kernels.strategy.kernel_variants import PRODUCTS
from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.engine.members.scratch import Scratch
from hfta_nb.engine.members.threads import run_parallel
from hfta_nb.engine.replay.channel_major import channel_major
from hfta_nb.engine.replay.draws import draws_unbound, with_stream
from hfta_nb.engine.replay.dynamic_call import DynamicCall, Fetch, dynamic
from hfta_nb.engine.replay.fuse_image_norms import fused_patterns
from hfta_nb.engine.replay.fuse_losses import fused_losses
from hfta_nb.engine.replay.fuse_maxima import fused_maxima
from hfta_nb.engine.replay.fuse_relu import ReluFusion
from hfta_nb.engine.replay.fused_kernel import FusedKernel, Uses, replaced
from hfta_nb.engine.replay.liveness import constant, needed
from hfta_nb.engine.replay.memory_layout import MemoryLayout
from hfta_nb.engine.replay.native_calls import owned
from hfta_nb.engine.replay.out_variants import KERNELS, Kernel, bare, nothing
from hfta_nb.engine.replay.pad_logits import padded_logits
from hfta_nb.engine.replay.parallel_branches import ParallelBranches, branches_of, count_of, deliver, drawn
from hfta_nb.engine.replay.program import Program
from hfta_nb.engine.replay.select_kernels import KernelSelector, indifferent
from hfta_nb.engine.replay.source import Source
from hfta_nb.engine.replay.stacking import stacked
from hfta_nb.engine.replay.trace import BufferView, Instruction, Trace, with_views


def build_program(
    trace: Trace,
    outputs: Sequence[BufferView],
    gradients: Sequence[tuple[BufferView, Tensor]],
    generators: MemberGenerators,
    measured: bool = True,
    scratch: Scratch | None = None,
) -> Program:
    """The program of a recorded step.

    Args:
        trace: of the step.
        outputs: the locations of its results.
        gradients: sources and destinations.
        generators: of the members.
        measured: choose among kernels by time; otherwise call the recorded ones.
        scratch: memory of the array's other programs. A program of two halves has its own, as others run in between.
    """
    scratch = Scratch() if scratch is None or trace.cut is not None else scratch
    device = trace.held[0].device if trace.held else generators.device
    builder = _Builder(trace, outputs, gradients, generators, measured, scratch.buffers(device))
    # The setting of oneDNN's products belongs to the process: calls on several threads have to use the same one.
    made = {s: builder.build(s) for s in (builder.settings() if builder.branch_of is not None else [None])}
    found = made[min(made, key=lambda s: builder.seconds.get(str(s), 0.0))]
    scratch.add(found.slots)
    return found


def source_of(
    trace: Trace,
    outputs: Sequence[BufferView],
    gradients: Sequence[tuple[BufferView, Tensor]],
    generators: MemberGenerators,
) -> Source:
    """What a program of a recorded step would be created from; arguments as for `build_program`."""
    return _Builder(trace, outputs, gradients, generators, measured=False).source()


class _Builder:
    """Runs the passes over a trace, and creates the calls of programs."""

    def __init__(
        self,
        trace: Trace,
        outputs: Sequence[BufferView],
        gradients: Sequence[tuple[BufferView, Tensor]],
        generators: MemberGenerators,
        measured: bool,
        shared: Sequence[Tensor] = (),
    ) -> None:
        trace = replace(trace, calls=stacked(trace.calls), sizes=[*trace.sizes])
        self.trace, self.outputs, self.gradients, self.measured = trace, outputs, gradients, measured
        self.generators, self.shared = generators, shared
        wanted = {p.storage for p in outputs} | {p.storage for p, _ in gradients}
        calls = needed(trace, wanted)
        self.fixed = set(trace.outside) | (constant(calls) & trace.lasting)
        self.calls = [c for c in calls if not c.makes or not set(c.makes) <= self.fixed]
        before = {id(c) for c in trace.calls[: trace.cut]} if trace.cut is not None else set()
        self.recorded, half = self.calls, sum(id(c) in before for c in self.calls)
        branches = branches_of(trace, self.calls, self.fixed - set(trace.outside))
        if trace.held and trace.held[0].device.type == "cpu" and any(map(draws_unbound, self.calls)):
            branches = None  # a thread of its own would wait for this one to end its context
        self.patterns: Sequence[Choice] = []
        numbers: Sequence[int] = range(len(self.calls))
        if measured and trace.held:
            numbers = self._fuse(wanted, half, branches)
        self.half = sum(i < half for i in numbers)
        self.branch_of = None if branches is None else [branches[i] for i in numbers]
        self.last: dict[int, int] = dict.fromkeys(wanted, len(self.calls))
        for i, call in enumerate(self.calls):
            for storage in call.reads() | call.writes | set(call.makes):
                self.last[storage] = max(self.last.get(storage, i), i)
        self.seconds: dict[str, float] = {}

    def _fuse(self, wanted: set[int], half: int, branches: Sequence[int] | None) -> Sequence[int]:
        """Replace patterns of calls by kernels of this package; returns the former index of each call."""
        device = self.trace.held[0].device
        self.calls, numbers = channel_major(Uses(self.calls, wanted, (), self.trace.sizes, device))
        there = sum(i < half for i in numbers), branches and [branches[i] for i in numbers]
        self.calls, former, self.patterns = fused_patterns(self.calls, wanted, *there, device)
        numbers = [numbers[i] for i in former]
        for fused in (fused_maxima, fused_losses):
            apart = [(i < half, branches and branches[i]) for i in numbers]
            found = fused(Uses(self.calls, wanted, apart, self.trace.sizes, device))
            self.calls, former = replaced(self.calls, found)
            numbers = [numbers[i] for i in former]
            for one in found:
                self._resize(one.sizes)
            self.patterns = [*self.patterns, *(one.choice for one in found)]
        self.calls, padded = padded_logits(Uses(self.calls, wanted, (), self.trace.sizes, device))
        self._resize(padded)
        return numbers

    def _resize(self, sizes: Mapping[int, int]) -> None:
        for storage, size in sizes.items():
            self.trace.sizes[storage] = size

    def settings(self) -> list[str]:
        """The possible settings of oneDNN's products for a run on several threads, the current one first."""
        on_cpu = all(t.device.type == "cpu" for t in self.trace.held[:1])
        free = (
            on_cpu
            and self.measured
            and matmul_precision.can_switch()
            and matmul_precision.get() != matmul_precision.ONEDNN
        )
        asks = all(indifferent(c) or c.function in PRODUCTS for c in self.calls)
        return [matmul_precision.get(), *([matmul_precision.ONEDNN] if free and asks else [])]

    def build(self, steady: str | None = None) -> Program:
        exact, generators = not self.measured, self.generators
        self.layout = MemoryLayout(
            self.trace, self.calls, self.half, self.gradients, self.fixed, self.last, exact, self.shared
        )
        written = {s for c in self.calls for s in c.writes}
        self.folding = ReluFusion(self.calls, self.half, self.trace.outside)
        self.chooser = KernelSelector(self.measured, generators.device, self.fixed - written, steady)
        self.made: list[Any] = [None] * len(self.trace.held)  # what a run allocates
        bound = self.layout.destinations()
        if self.branch_of is not None:
            return self._side_by_side(self.branch_of, bound)
        steps: list[Callable[[], Any]] = []
        member: int | None = None
        calls = [with_stream(call, generators) for call in self.calls]
        draws = any(call.member is not None for call in calls)
        cut = 0
        for i, call in enumerate(calls):
            if i == self.half:
                steps += [] if member is None else [partial(generators.leave, member)]
                steps += self.chooser.restore_setting()
                cut, member = len(steps), None
            if call.member is not None and call.member != member:
                steps += [] if member is None else [partial(generators.leave, member)]
                steps.append(partial(generators.enter, call.member))
                member = call.member
            step = self._step(i, call)
            if step is not None:
                steps += [*self.chooser.steps_before(), step]
            self.layout.release(i)
        if member is not None:
            steps.append(partial(generators.leave, member))
        rest = [(buffer, self.layout.tensor(p)) for p, buffer in self.gradients if p not in bound]
        cut = len(steps) if self.half == len(self.calls) else cut
        return self._made(steps, rest, draws, cut)

    def _side_by_side(self, branch_of: Sequence[int], bound: set[BufferView]) -> Program:
        """Each thread runs its blocks of members; then the remaining calls join the results."""
        generators, rest = self.generators, count_of(self.trace)
        by_branch: list[list[Callable[[], Any]]] = [[] for _ in range(rest + 1)]
        every = range(len(self.shared))
        # Memory that is free in one branch may be used in another.
        free = [[*every[k :: len(by_branch)]] for k in range(len(by_branch))]
        makers: dict[int, int] = {}
        calls = [with_stream(call, generators) for call in self.calls]
        for i, (call, branch) in enumerate(zip(calls, branch_of, strict=True)):
            self.layout.free = free[branch]
            self.chooser.on_branch(branch)
            makers.update(dict.fromkeys(call.makes, branch))
            step = self._step(i, call)
            if step is not None:
                step = step if call.member is None else partial(drawn, generators, call.member, step)
                by_branch[branch] += [*self.chooser.steps_before(), step]
            self.layout.release(i)
        for place, buffer in self.gradients:
            if place not in bound:
                steps = by_branch[makers.get(place.storage, rest)]
                steps.append(partial(deliver, buffer, self.layout.tensor(place), self.made))
        draws = any(call.member is not None for call in calls)
        found = self._made(by_branch.pop(), [], draws, 0)
        # Branches are streams on a GPU, and threads on a CPU.
        runner = run_parallel if generators.device.type == "cpu" else runner_of(generators.device, len(by_branch))
        found.branches = ParallelBranches(by_branch, self.chooser.opening(), runner)
        found.steps.insert(0, found.branches.run)
        self.seconds[str(self.chooser.steady)] = self.chooser.seconds
        return found

    def _made(
        self, steps: list[Callable[[], Any]], rest: list[tuple[Tensor, Tensor | Fetch]], draws: bool, cut: int
    ) -> Program:
        results = self._results()
        drawing = self.generators if draws else None
        left = [s for s, last in self.last.items() if last == len(self.calls)]
        setting, choices = self.chooser.done(), [*self.patterns, *self.chooser.choices.values()]
        rest_of = left, setting, choices, cut, self.source()
        made_of = steps, results, rest, self.made, drawing, self.layout.used(), *rest_of
        return Program(*made_of, draws=any(call.member is not None for call in self.calls))

    def source(self) -> Source:
        """The calls that were recorded, without those that no result needs."""
        there = {s: self.trace.held[s] for s in self.fixed}
        return Source(self.recorded, there, self.outputs, self.gradients, self.generators)

    def _results(self) -> list[Tensor | Fetch]:
        """The results; those that a run allocates, and that nothing else uses, need no copy."""
        of_first_half = {s for c in self.calls[: self.half] for s in c.makes}
        used = {s for c in self.calls[self.half :] for s in c.reads() | c.writes} & of_first_half
        times = Counter([p.storage for p in self.outputs] + [p.storage for p, _ in self.gradients])
        found: list[Tensor | Fetch] = []
        for place in self.outputs:
            result = self.layout.tensor(place)
            whole = math.prod(place.size) * place.dtype.itemsize == self.trace.sizes[place.storage]
            if isinstance(result, Fetch) and whole and times[place.storage] == 1 and place.storage not in used:
                result = replace(result, last=True)
            found.append(result)
        return found

    # Creating calls.

    def _step(self, i: int, call: Instruction) -> Callable[[], Any] | None:
        kernel = KERNELS.get(call.function)
        args, kwargs = with_views((call.args, call.kwargs), self.layout.tensor)
        if isinstance(call.function, FusedKernel):
            return self._pattern(i, call, call.function, args)
        own = owned(call, args, kwargs)
        if own is not None and self.chooser.takes(call, own, args, kwargs):
            return own.bind(args, {**kwargs, **self._buffers(i, call, own.buffers)})
        if kernel is None or set(call.makes) != {r.storage for r in call.results if r is not None} or not call.makes:
            return self._open(i, call, args, kwargs)
        return self._into(i, call, kernel, args, kwargs)

    def _buffers(
        self, i: int, call: Instruction, names: Sequence[str], in_place: bool = False
    ) -> dict[str, Tensor | Fetch]:
        """Memory for the results that a call of the package's own kernels has, by their names there."""
        for storage in call.makes:
            self.layout.assign(i, call, storage, pointwise=in_place)
        return {n: self.layout.tensor(p) for n, p in zip(names, call.results, strict=True) if p is not None}

    def _pattern(self, i: int, call: Instruction, kernel: FusedKernel, args: Any) -> Callable[[], Any]:
        buffers, function = self._buffers(i, call, kernel.buffers, kernel.in_place), kernel.bind()
        if dynamic(args):
            return DynamicCall(function, args, buffers, self.made, (), self._gone(i, call))
        return partial(function, *args, **buffers)

    def _into(self, i: int, call: Instruction, kernel: Kernel, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        for storage in call.makes:
            if storage not in self.layout.bound:
                self.layout.assign(i, call, storage, kernel.pointwise)
        buffers = {}
        for name, place in zip(kernel.buffers, call.results, strict=True):
            assert place is not None  # all exist by now
            buffers[name] = self.layout.tensor(place)
        known = {a.name for a in getattr(kernel.function, "_schema", call.function._schema).arguments}
        named = {k: v for k, v in kwargs.items() if k in known or not hasattr(kernel.function, "_schema")}
        if kernel.function is nothing:
            return None
        if kernel.pointwise and len(buffers) == 1 and self.folding.takes(i, args, next(iter(buffers.values()))):
            return None
        worth = self.folding.worth(i)
        function, args = self.chooser.best(call, bare(kernel.function), args, {**named, **buffers}, worth)
        if isinstance(function, Compiled) and (bound := function.bound(args, buffers["out"])) is not None:
            self.folding.add(i, bound)
            return bound
        if dynamic((args, kwargs)):
            return DynamicCall(function, args, {**named, **buffers}, self.made, (), self._gone(i, call))
        if isinstance(function, Binding):
            return function.bound(args, buffers)
        return partial(function, *args, **named, **buffers)

    def _open(self, i: int, call: Instruction, args: Any, kwargs: Any) -> Callable[[], Any]:
        function, args = self.chooser.best(call, bare(call.function), args, kwargs)
        keep = tuple((k, r.storage) for k, r in enumerate(call.results) if r is not None and r.storage in call.makes)
        gone = self._gone(i, call)
        if not keep and not dynamic((args, kwargs)):
            bind = BOUND.get(call.function._schema.name)
            return partial(function, *args, **kwargs) if bind is None else bind(*args, **kwargs)
        return DynamicCall(function, args, kwargs, self.made, keep, gone)

    def _gone(self, i: int, call: Instruction) -> tuple[int, ...]:
        return tuple(s for s in call.reads() | set(call.makes) if self.last[s] == i and s not in self.fixed)
