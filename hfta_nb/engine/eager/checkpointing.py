"""Segments of a model whose activations are recomputed in the backward instead of being kept.

A segment is a sequence of children of an `nn.Sequential` (about sqrt(n) segments for n children), or a child of an
`nn.ModuleList` that contains several layers. Only its inputs are kept. It is recomputed with the same random numbers
and buffers, and the effects of the recomputation on these are discarded. All results are unchanged.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016; `torch.utils.checkpoint`, which does not
work under `vmap` because `vmap` does not support hooks on saved tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.attributes import AttributeKey, tracked_attributes
from hfta_nb.engine.eager.differentiate import vector_jacobian
from hfta_nb.engine.eager.intercept import Handler, forwards_replaced, intercepted
from hfta_nb.engine.members.generators import MemberGenerators, current_state, streams_apart
from hfta_nb.engine.members.tensor_slots import TensorSlots
from hfta_nb.engine.members.tree import Rebuild, flatten, unflatten
from hfta_nb.engine.rules import Context, Disagreement, rule_mode
from hfta_nb.engine.rules.rule_mode import vmap_level

_KINDS = ("cpu", "cuda")

SegmentResult: TypeAlias = tuple[list[Any], Rebuild, dict[str, Tensor]]
"""Leaves of the result, the function that rebuilds it, and the buffers that were replaced."""


def segments(root: nn.Module) -> list[str]:
    """Paths of the modules that are segments or are divided into segments; no path is below another one."""
    found: list[str] = []
    waiting = [("", root)]
    while waiting:
        path, module = waiting.pop()
        children = [(f"{path}.{name}".lstrip("."), child) for name, child in module.named_children()]
        if _is_sequence(module) and len(children) > 1:
            found.append(path)
        elif isinstance(module, nn.ModuleList):
            for inner, child in children:
                if type(child).forward is not nn.Module.forward and _layers(child) > 1:
                    found.append(inner)
                else:
                    waiting.append((inner, child))
        else:
            waiting += children
    return found


def checkpoint_handlers(root: nn.Module, others: Mapping[str, Handler]) -> dict[str, Handler]:
    """Handlers that run the segments of `root` for several members; `others` are the handlers for calls without
    gradients."""
    made: dict[str, Handler] = {}
    for path in segments(root):
        inner = {p: h for p, h in others.items() if p.startswith(f"{path}.") or not path}
        made[path] = _handler(root, _parts(root.get_submodule(path)), inner, others.get(path))
    return made


@contextmanager
def recomputed_alone(root: nn.Module, paths: Sequence[str], generators: MemberGenerators) -> Iterator[None]:
    """Recompute segments in the backward, for a member that runs through `root` as a plain module within the
    context."""

    def make(module: nn.Module) -> Callable[..., Any]:
        return _plain(_parts(module), module.forward, generators)

    with forwards_replaced(root, dict.fromkeys(paths, make)):
        yield


def _is_sequence(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _layers(module: nn.Module) -> int:
    return sum(not list(m.children()) for m in module.modules())


@dataclass(frozen=True)
class _Part:
    """One segment; `function` computes it, or the module's `forward` if it is None."""

    module: nn.Module
    slots: TensorSlots
    function: Callable[..., Any] | None = None


def _parts(module: nn.Module) -> list[_Part]:
    if not _is_sequence(module):
        return [_Part(module, TensorSlots(module))]
    children = list(module.children())
    count = max(2, round(math.sqrt(len(children))))
    cuts = [len(children) * i // count for i in range(count + 1)]
    runs = [nn.Sequential(*children[a:b]) for a, b in itertools.pairwise(cuts)]
    return [_Part(run, TensorSlots(run), _through(run)) for run in runs]


def _through(run: nn.Sequential) -> Callable[[Any], Any]:
    def function(value: Any) -> Any:
        for child in run:
            value = child(value)
        return value

    return function


def _handler(root: nn.Module, parts: list[_Part], inner: dict[str, Handler], other: Handler | None) -> Handler:
    def handler(
        context: Context, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs) if other is None else other(context, module, forward, args, kwargs)
        for part in parts:
            result = _run_block(context, root, inner, part, part.function or forward, args, kwargs)
            args, kwargs = (result,), {}
        return result

    return handler


def _run_block(
    context: Context,
    root: nn.Module,
    inner: dict[str, Handler],
    part: _Part,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a segment for all members of a call."""
    leaves, rebuild = flatten((args, kwargs))
    own = [isinstance(v, Tensor) and context.batched(v) for v in leaves]
    state = part.slots.current()
    with context.outside():
        given = [context.stacked(v) if b else v for v, b in zip(leaves, own, strict=True)]
        tensors = {name: context.stacked(t) for name, t in state.items()}

        def run(values: list[Any], named: dict[str, Tensor], again: bool) -> SegmentResult:
            return _vmapped(context, root, inner if again else {}, part, function, values, own, rebuild, named)

        outputs, form, replaced = _segment(run, given, tensors, part.slots, context.generators)
    part.slots.replace({name: context.wrapped(t) for name, t in replaced.items()})
    return unflatten(form, [context.wrapped(v) if isinstance(v, Tensor) else v for v in outputs])


def _vmapped(
    context: Context,
    root: nn.Module,
    inner: dict[str, Handler],
    part: _Part,
    function: Callable[..., Any],
    values: list[Any],
    own: list[bool],
    rebuild: Rebuild,
    named: dict[str, Tensor],
) -> SegmentResult:
    static: dict[str, Any] = {}
    places = [i for i, v in enumerate(values) if isinstance(v, Tensor)]
    dims = [0 if own[i] else None for i in places]

    def one(_: Tensor, state: dict[str, Tensor], tensors: list[Tensor]) -> Any:
        if vmap_level() != context.level:
            raise Disagreement("a segment within a transformation of the model's own can't be computed again")
        full = list(values)
        for i, tensor in zip(places, tensors, strict=True):
            full[i] = tensor
        args, kwargs = unflatten(rebuild, full)
        changes: dict[AttributeKey, Any] = {}
        with ExitStack() as stack:
            stack.enter_context(rule_mode(context))
            stack.enter_context(intercepted(root, inner, context))
            if context.recording:
                stack.enter_context(tracked_attributes(part.module, part.slots, {}, changes))
            result, replaced = part.slots.call(state, lambda: function(*args, **kwargs))
        if changes:
            raise Disagreement("a segment that keeps values on itself can't be computed again")
        leaves, static["form"] = flatten(result)
        static["leaves"], static["replaced"] = leaves, list(replaced)
        return [v for v in leaves if isinstance(v, Tensor)], list(replaced.values())

    casts, context.casts = context.casts, {}  # the outer casts are of other tensors
    modes = len(context.modes)
    randomness = "different" if context.fast_rng else "error"
    try:
        found, replaced = torch.func.vmap(one, in_dims=(0, 0, dims), randomness=randomness)(
            torch.empty(context.members, device=context.generators.device), named, [values[i] for i in places]
        )
    finally:
        context.casts = casts
        del context.modes[modes:]
    left = iter(found)
    outputs = [next(left) if isinstance(v, Tensor) else v for v in static["leaves"]]
    return outputs, static["form"], dict(zip(static["replaced"], replaced, strict=True))


def _plain(parts: list[_Part], forward: Callable[..., Any], generators: MemberGenerators) -> Callable[..., Any]:
    def run_all(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        for part in parts:
            result = _run_single(part, part.function or forward, args, kwargs, generators)
            args, kwargs = (result,), {}
        return result

    return run_all


def _run_single(part: _Part, function: Callable[..., Any], args: Any, kwargs: Any, generators: MemberGenerators) -> Any:
    leaves, rebuild = flatten((args, kwargs))

    def run(values: list[Any], named: dict[str, Tensor], again: bool) -> SegmentResult:
        given, kw = unflatten(rebuild, values)
        result, replaced = part.slots.call(named, lambda: function(*given, **kw))
        return (*flatten(result), replaced)

    outputs, form, replaced = _segment(run, leaves, part.slots.current(), part.slots, generators)
    part.slots.replace(replaced)
    return unflatten(form, outputs)


RunSegment: TypeAlias = Callable[[list[Any], dict[str, Tensor], bool], SegmentResult]
"""Runs a segment, given the leaves of its input, tensors by name, and whether this is the recomputation."""


@dataclass
class _Recomputation:
    """Everything that is needed to recompute a segment.

    Attributes:
        names: of the parameters to differentiate by; these follow the input's tensors.
        places: indices of tensors among the leaves of the input.
        buffers: values before the first run.
        members, default: states of the random generators before the first run.
        kinds: devices with active autocast, and its dtype.
    """

    run: RunSegment
    leaves: list[Any]
    places: list[int]
    names: list[str]
    buffers: dict[str, Tensor]
    generators: MemberGenerators
    members: list[Any] = field(default_factory=list)
    default: Any = None
    kinds: dict[str, torch.dtype] = field(default_factory=dict)
    first: SegmentResult | None = None

    def forward(self, tensors: Sequence[Tensor], buffers: dict[str, Tensor]) -> list[Tensor]:
        """Run for the first time; returns the tensors of the result."""
        self.members = self.generators.states
        self.default = current_state(self.generators.device)
        self.kinds = {k: torch.get_autocast_dtype(k) for k in _KINDS if torch.is_autocast_enabled(k)}
        self.first = self.run(*self._filled(tensors, buffers), False)
        return [v for v in self.first[0] if isinstance(v, Tensor)]

    def recompute(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Run again from the saved state, without lasting effects."""
        generators = self.generators
        members, generators.states = generators.states, self.members
        try:
            with streams_apart(generators.device, self.default), ExitStack() as stack:
                for kind, dtype in self.kinds.items():
                    stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
                outputs, _, _ = self.run(*self._filled(tensors, dict(self.buffers)), True)
        finally:
            generators.states = members
        return [v for v in outputs if isinstance(v, Tensor)]

    def _filled(self, tensors: Sequence[Tensor], buffers: dict[str, Tensor]) -> tuple[list[Any], dict[str, Tensor]]:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=False):
            leaves[place] = tensor
        return leaves, {**dict(zip(self.names, tensors[len(self.places) :], strict=True)), **buffers}


class _Segment(torch.autograd.Function):
    """Keeps a segment's inputs, and recomputes the rest."""

    @staticmethod
    def forward(ctx: Any, call: _Recomputation, buffers: dict[str, Tensor], *tensors: Tensor) -> Any:
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        return tuple(call.forward(tensors, buffers))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        wanted = ctx.needs_input_grad[2:]
        tensors = [t.detach().requires_grad_(w) for t, w in zip(ctx.saved_tensors, wanted, strict=True)]
        with torch.enable_grad():
            outputs = ctx.call.recompute(tensors)
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None and o.requires_grad]
        into = [t for t in tensors if t.requires_grad]
        found: Sequence[Tensor | None] = [None] * len(into)
        if pairs and into:
            found = vector_jacobian([o for o, _ in pairs], into, [g for _, g in pairs])
        left = iter(found)
        return None, None, *(next(left) if w else None for w in wanted)


def _segment(
    run: RunSegment, leaves: list[Any], state: dict[str, Tensor], slots: TensorSlots, generators: MemberGenerators
) -> SegmentResult:
    places = [i for i, v in enumerate(leaves) if isinstance(v, Tensor)]
    names = [n for n in state if n in set(slots.parameters)]
    buffers = {n: t for n, t in state.items() if n not in set(names)}
    kept = {n: t.detach().clone() for n, t in buffers.items()}
    still = [None if i in set(places) else v for i, v in enumerate(leaves)]
    call = _Recomputation(run, still, places, names, kept, generators)
    outputs = _Segment.apply(  # type: ignore[no-untyped-call]
        call, buffers, *(leaves[i] for i in places), *(state[n] for n in names)
    )
    assert call.first is not None  # set by the call above
    results, form, replaced = call.first
    call.first = None
    left = iter(outputs)
    return [next(left) if isinstance(v, Tensor) else v for v in results], form, replaced
