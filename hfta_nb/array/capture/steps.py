"""Steps of an array that are recorded once and then replayed, where that is sure to be the same.

The first call of a kind runs as ever; the next two run as ever and are recorded. If both made the same calls, the
program of the second is run again from where it began and compared with it. From then on the program runs in place of
Python, autograd and `vmap`, as long as nothing has changed that the model's code could see.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from hfta_nb.array.capture.program import Program, program
from hfta_nb.array.capture.reads import Reads, UnclearError
from hfta_nb.array.capture.record import NotRecordableError, Place, Recorder, Recording
from hfta_nb.array.engine import Block, Call, Inputs
from hfta_nb.array.fallback import snapshot
from hfta_nb.array.gradients import Gradients
from hfta_nb.array.per_member import PerMember
from hfta_nb.array.strategy import precision
from hfta_nb.array.strategy.measuring import Choice
from hfta_nb.array.tree import Rebuild, flatten, unflatten

if TYPE_CHECKING:
    from hfta_nb.array.fused import FusedArray

_MOST = 8
"""Kinds of calls that are kept: a batch of another size is another kind."""

Run = Callable[[Inputs], tuple[Gradients, Any]]


class Asked(NamedTuple):
    """The arguments of `FusedArray.backward`; `given` are input and target."""

    loss_fn: Any
    given: Any
    has_aux: bool
    scale: Tensor | None
    only: Collection[str] | None


@dataclass
class Seen:
    """What is known of one kind of call.

    Attributes:
        calls: so far.
        reason: why it is not replayed; empty where it is or may be yet.
        inputs: memory that stands for the inputs while recording and replaying.
        first: the earlier of two recordings.
        program: to be run, once there is one.
    """

    alive: tuple[Any, ...]
    calls: int = 0
    reason: str = ""
    inputs: Inputs | None = None
    scale: Tensor | None = None
    first: Recording | None = None
    reads: Reads | None = None
    program: Program | None = None
    rebuild: Rebuild | None = None
    leaves: list[Any] = field(default_factory=list)
    targets: list[tuple[nn.Parameter, str, Tensor]] = field(default_factory=list)


class RecordedGradients(Gradients):
    """Notes where gradients are, beside doing what it does."""

    recorder: Recorder

    def __init__(
        self,
        array: FusedArray,
        inputs: Inputs,
        scale: Tensor | None,
        only: Collection[str] | None,
        recorder: Recorder,
    ) -> None:
        super().__init__(array, inputs, scale=scale, only=only)
        self.recorder = recorder
        self.places: list[tuple[Place, Tensor]] = []
        self.trouble = ""

    def _take(self, block: Block, names: list[str], grads: Any) -> None:
        with self.recorder.quiet():
            for name, grad in zip(names, grads, strict=False):
                if grad is not None:
                    try:
                        self.places.append((self.recorder.place(grad), block.grad_rows[name]))
                    except NotRecordableError as error:
                        self.trouble = str(error)
            super()._take(block, names, grads)


class CapturedSteps:
    """The steps of an array by kind of call.

    Attributes:
        on: whether steps may be replayed at all.
    """

    def __init__(self, array: FusedArray) -> None:
        self.array = array
        self.on = True
        self._seen: dict[Any, Seen] = {}
        self._parameters: list[nn.Parameter] = []

    def clear(self) -> None:
        """Forget all; wanted after the array's tensors have moved, or it runs in another way."""
        self._seen.clear()
        self._parameters = []

    def notes(self) -> list[str]:
        """How calls run, each way once."""
        ways = ["replayed from a recording" for s in self._seen.values() if s.program is not None]
        ways += [f"not replayed: {s.reason}" for s in self._seen.values() if s.reason]
        return list(dict.fromkeys(ways))

    def find(self, asked: Asked, inputs: Inputs) -> Seen | None:
        """What is known of this kind of call; None where it is to run as ever."""
        array = self.array
        if not self._parameters:
            self._parameters = list(array.parameters())
        if not self.on or array._pending or array.settings.private or _watched():
            return None
        if array.engine.across is not None or array.engine.attributes.values:
            return None
        try:
            key = (
                *(_identity(asked.loss_fn), _form(asked.given), inputs.per_member, asked.has_aux),
                None if asked.scale is None else (asked.scale.dtype, asked.scale.device),
                array.block_size,
                *(array.fast_rng, array._skeleton.training, _settings()),
                None if asked.only is None else tuple(asked.only),
                tuple(p.requires_grad for p in self._parameters),
            )
        except NotRecordableError:
            return None
        seen = self._seen.get(key)
        if seen is None:
            while len(self._seen) >= _MOST:
                del self._seen[next(iter(self._seen))]
            seen = self._seen[key] = Seen((asked.loss_fn,))
        return None if seen.reason else seen

    def choices(self) -> list[Choice]:
        """Of kernels that can be computed in several ways, in what is replayed; each once."""
        programs = [s.program for s in self._seen.values() if s.program is not None]
        return list({c.what: c for p in programs for c in p.choices}.values())

    # Replaying.

    def replay(self, seen: Seen, inputs: Inputs, scale: Tensor | None) -> tuple[Any, Any] | None:
        """The losses and what comes with them, gradients delivered; None if this call must run as ever."""
        ready, reads = seen.program, seen.reads
        if ready is None or reads is None:
            return None
        if not reads.hold():
            self._refuse(seen, "the model or the loss has changed since it was recorded", forget=True)
            return None
        if any(p.grad is not None for p, _, _ in seen.targets):
            return None
        generators = self.array.generators
        states = list(generators.states)
        buffers = [a.data.clone() for a in self.array.buffer_arenas]
        self._fill(seen, inputs, scale)
        try:
            results = ready.run()
        except Exception as error:
            for arena, before in zip(self.array.buffer_arenas, buffers, strict=True):
                arena.data.copy_(before)
            generators.states = states
            self._refuse(seen, f"replaying failed: {str(error).strip() or type(error).__name__}")
            return None
        missing = self.array.missing_grads
        for parameter, name, view in seen.targets:
            parameter.grad = view
            if missing:
                missing.pop(name, None)
        return self._told(seen, results)

    def _refuse(self, seen: Seen, reason: str, forget: bool = False) -> None:
        seen.program, seen.first, seen.reads = None, None, None
        seen.calls = 1
        seen.reason = "" if forget else reason.splitlines()[0]

    @torch.no_grad()
    def _fill(self, seen: Seen, inputs: Inputs, scale: Tensor | None) -> None:
        assert seen.inputs is not None  # made before the first recording
        for room, value in zip(seen.inputs.leaves, inputs.leaves, strict=True):
            if isinstance(room, Tensor):
                room.copy_(value)
        if seen.scale is not None and scale is not None:
            seen.scale.copy_(scale)

    def _told(self, seen: Seen, results: list[Tensor]) -> tuple[Any, Any]:
        assert seen.rebuild is not None  # known since the recording
        left = iter(results)
        told: tuple[Any, Any] = unflatten(seen.rebuild, [next(left) if v is _TENSOR else v for v in seen.leaves])
        return told

    # Recording.

    def recorder(self, seen: Seen, asked: Asked, call: Call) -> Run | None:
        """What does as `backward` does and records it; None where this call is not to be recorded."""
        array = self.array
        seen.calls += 1
        named = dict(array.named_parameters())
        held = any(named[n].grad is not None for n in (named if asked.only is None else asked.only))
        if seen.calls == 1 or seen.program is not None or held:
            return None

        def run(inputs: Inputs) -> tuple[Gradients, Any]:
            if not inputs.copied:  # else the array has just found another way to run
                try:
                    return self._record(seen, asked, call, inputs, Reads(array._skeleton, (asked.loss_fn,)))
                except UnclearError as error:
                    self._refuse(seen, str(error))
            gradients = Gradients(array, inputs, scale=asked.scale, only=asked.only)
            return gradients, gradients.of(call, array._blocks.leaves())

        return run

    def _record(self, seen: Seen, asked: Asked, call: Call, inputs: Inputs, reads: Reads) -> tuple[Gradients, Any]:
        array = self.array
        if seen.inputs is None:
            seen.inputs = replace(inputs, leaves=tuple(_room(v) for v in inputs.leaves))
            seen.scale = None if asked.scale is None else asked.scale.detach().clone()
        self._fill(seen, inputs, asked.scale)
        recorder, restore = Recorder(array.generators.device), snapshot(array)
        noted = RecordedGradients(array, seen.inputs, seen.scale, asked.only, recorder)
        with array.generators.heard(recorder.member), recorder:
            result = noted.of(call, array._blocks.leaves())
        self._after(seen, reads, recorder, noted, result, restore)
        return noted, result

    def _after(
        self,
        seen: Seen,
        reads: Reads,
        recorder: Recorder,
        gradients: RecordedGradients,
        result: Any,
        restore: Callable[[], None],
    ) -> None:
        recording = recorder.recording
        leaves, rebuild = flatten(result)
        outputs: list[Place] = []
        reason = recording.reason or gradients.trouble or self._unfit(gradients)
        if not reads.hold() or (seen.reads is not None and not seen.reads.hold()):
            reason = reason or "the model or the loss changes what it reads"
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                try:
                    outputs.append(recorder.place(leaf))
                except NotRecordableError as error:
                    reason = reason or str(error)
            elif not (leaf is None or isinstance(leaf, bool | int | float | str)):
                reason = reason or f"the loss returns a {type(leaf).__name__}"
        told = [_TENSOR if isinstance(v, Tensor) else v for v in leaves]
        if reason:
            self._refuse(seen, reason)
            return
        if seen.first is None:
            seen.first, seen.reads, seen.leaves = recording, reads, told
            return
        if not seen.first.like(recording) or told != seen.leaves:
            self._refuse(seen, "two steps are not alike")
            return
        seen.first = None
        made = program(recording, outputs, gradients.places, self.array.generators, self.array.strategy == "measured")
        seen.rebuild, seen.leaves = rebuild, told
        named = dict(self.array.named_parameters())
        names = list(gradients.received)
        seen.targets = [(named[n], n, self.array.arena_of(n).grad_view(n)) for n in names]
        reason = self._compared(made, [v for v in leaves if isinstance(v, Tensor)], seen, restore)
        if reason:
            self._refuse(seen, reason)
        else:
            seen.program = made

    def _unfit(self, gradients: Gradients) -> str:
        members = len(self.array)
        for blocks in gradients.received.values():
            if sum(b.stop - b.start for b in blocks) < members:
                return "a parameter has a gradient in some members only"
        return "a parameter is used by some members only" if self.array.engine.usage.unused(members) else ""

    def _compared(self, made: Program, results: list[Tensor], seen: Seen, restore: Callable[[], None]) -> str:
        """Run the program from where the recorded step began; why it is not the same, or nothing."""
        array = self.array
        after = snapshot(array)
        grads = [view.clone() for _, _, view in seen.targets]
        buffers = [a.data.clone() for a in array.buffer_arenas]
        states = [dict(s) for s in array.generators.states]
        kept = [a.grad.clone() for a in array.arenas]
        restore()
        try:
            again = made.run()
            for old_ones, new_ones in (
                (results, again),
                (grads, [view for _, _, view in seen.targets]),
                (buffers, [a.data for a in array.buffer_arenas]),
            ):
                if not _close(old_ones, new_ones):
                    return "replayed, the step gives other numbers"
            for old, new in zip(states, array.generators.states, strict=True):
                if any(not torch.equal(old[k], new[k]) for k in old):
                    return "replayed, the step draws other random numbers"
            return ""
        except Exception as error:
            return f"replaying failed: {str(error).strip() or type(error).__name__}"
        finally:
            after()
            for arena, grad in zip(array.arenas, kept, strict=True):
                arena.grad.copy_(grad)


_TENSOR = object()


def _identity(function: Any) -> Any:
    """The same for functions that are the same but for having been made twice, as a lambda in a loop is."""
    if isinstance(function, types.FunctionType) and not function.__kwdefaults__:
        cells = tuple(id(c.cell_contents) for c in function.__closure__ or ())
        return id(function.__code__), id(function.__globals__), cells, tuple(map(id, function.__defaults__ or ()))
    if isinstance(function, types.MethodType):
        return id(function.__func__), id(function.__self__)
    return id(function)


def _form(tree: Any) -> Any:
    """The structure of inputs, and of tensors what kernels and code depend on."""
    if isinstance(tree, Tensor):
        if type(tree) not in (Tensor, nn.Parameter) or tree.requires_grad or tree.layout is not torch.strided:
            raise NotRecordableError("an input of another sort")
        return tree.shape, tree.stride(), tree.dtype, tree.device
    if type(tree) in (tuple, list) or (isinstance(tree, tuple) and hasattr(tree, "_fields")):
        return type(tree), tuple(_form(v) for v in tree)
    if type(tree) is dict:
        return dict, tuple((k, _form(v)) for k, v in tree.items())
    if isinstance(tree, PerMember):
        return PerMember, _form(tree.value)
    if tree is None or isinstance(tree, bool | int | float | str):
        return type(tree), tree
    raise NotRecordableError("an input of another sort")


def _room(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    room = torch.empty_like(value, requires_grad=False)
    return room if room.stride() == value.stride() else torch.empty(value.shape, dtype=value.dtype, device=value.device)


def _close(old: list[Tensor], new: list[Tensor]) -> bool:
    """Whether tensors are the same: to the bit, or to the rounding of the largest of them.

    Where memory lies may change the order of sums. A gradient that is exactly zero but for rounding (a bias before
    batch norm) is measured by the others.
    """
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if not _same_bits(a, b)]
    if any(not a.is_floating_point() for a, _ in pairs):
        return False
    sizes = [a[a.isfinite()].abs().max().item() for a in old if a.is_floating_point() and a.isfinite().any()]
    largest = max(sizes, default=0.0)
    return all(
        torch.allclose(a, b, rtol=0, atol=64 * torch.finfo(a.dtype).eps * largest, equal_nan=True) for a, b in pairs
    )


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _watched() -> bool:
    """Whether somebody looks on who would miss something: a mode around the call, or autograd's anomaly mode."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch.is_anomaly_enabled()
        or torch._C._functorch.maybe_current_level()
    )


def _settings() -> tuple[Any, ...]:
    """Torch's settings on which kernels and ways through a model depend."""
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch._C._is_any_autocast_enabled()
        and tuple((torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in ("cpu", "cuda")),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled,
        precision.get(),
        torch.backends.cudnn.enabled,
    )
