"""Runs a step with channels-last images where that is faster.

Convolutions of oneDNN, and those of a GPU's tensor cores, work on adjacent channels; with channels first, they copy
inputs and outputs. The result of a convolution, a norm or a pointwise function has the layout of its input, so a step
whose inputs are channels last is channels last throughout.

A plain module receives images in their given layout. A convolution with channels last may therefore be a call that no
plain module makes: calls that are not known to be safe run in a child process first (`sandbox`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.native import build
from hfta_nb.engine.kernels.strategy.autotune import clock_of
from hfta_nb.engine.kernels.strategy.kernel_variants import Operand
from hfta_nb.engine.kernels.strategy.sandbox import Tried, survives
from hfta_nb.engine.kernels.strategy.times import Times
from hfta_nb.engine.kernels.strategy.timing_cache import kept
from hfta_nb.engine.kernels.strategy.variant_trials import killed, trying
from hfta_nb.engine.replay.source import Source
from hfta_nb.engine.replay.trace import BufferView
from hfta_nb.engine.replay.verify import left_alone, repeated
from hfta_nb.errors import out_of_memory

GIVEN, LAST = "as given", "channels last"

_aten = torch.ops.aten
_CONVOLUTIONS = frozenset(
    found
    for name in ("convolution", "mkldnn_convolution", "cudnn_convolution")
    if (found := getattr(getattr(_aten, name, None), "default", None)) is not None
)
_BACKWARD = _aten.convolution_backward.default
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""In float64, where results are compared to the last bit, nothing is chosen."""

_GAIN = 0.97
"""The other layout must take less than this fraction of the time."""
_CLEAR = 1.1
"""A layout that takes this many times as long is rejected at once."""
_LAPS = 2, 3
"""Laps of each layout: the minimum, and the maximum while the other layout seems faster but not clearly."""
_LAP_S = 2e-3
"""Minimum duration of a lap, approximately."""


_LIBRARIES = "conv", "images", "norm"
"""The package's libraries that compute images, with channels last most of all."""

Run = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True)
class Layout:
    """The layout of a step, and how it was chosen.

    Attributes:
        chosen: one of `GIVEN` and `LAST`.
        seconds: of a step by layout; None if it is not available, or gives other numbers.
        note: for people; what went wrong, if anything did.
    """

    chosen: str
    seconds: Times
    note: str = ""

    def __str__(self) -> str:
        ways = sorted(self.seconds.items(), key=lambda way: way[0] != self.chosen)
        text = "; ".join(f"{name} {s * 1e3:.3g} ms" for name, s in ways if s is not None)
        return "; ".join(part for part in (f"images {text}" if text else "", self.note) if part)


def choose(
    state: ArrayState,
    source: Source,
    inputs: Inputs,
    given: Run,
    make: Callable[[Inputs], Run],
    restore: Callable[[], None],
    like: Layout | None = None,
) -> tuple[Layout, Inputs] | None:
    """Try a step with channels last if it may be faster; the array is left unchanged.

    Args:
        state: of the array, after the step.
        source: of the step's program.
        inputs: the memory that the program reads them from, filled in.
        given: the program.
        make: creates a program for inputs in the other layout, filled in; may run the step.
        restore: restores the array's state before the step.
        like: what was found for this step with more members or another batch size; nothing is timed then.

    Returns:
        The layout, and inputs in the other layout if that was chosen: then the last call of `make` returned the
            program.
        None if there is no choice.
    """
    if not _may_turn(source, inputs):
        return None
    times = _known(source, like)
    timed = times is None
    if times is not None and (layout := _layout(times)).chosen == GIVEN:
        return layout, inputs
    if _deadly(source) or not survives(_turned_calls(source), source.device):
        return Layout(GIVEN, {}, f"{LAST} not tried: torch's convolutions of these shapes may end the process"), inputs
    other = turned_all(inputs)
    with left_alone(state), trying_last(source):
        try:
            restore()
            last = make(other)
            trouble = repeated(state, restore, given, last, source.half, kinks=True)
            if not trouble and timed:
                times = _timed(given, last, source.device)
        except Exception as error:
            trouble = f"fails: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
            if out_of_memory(error):
                return Layout(GIVEN, {}, f"{LAST} {trouble}"), inputs
    if trouble or times is None:
        _keep(source, {GIVEN: None, LAST: None})
        return Layout(GIVEN, {}, f"{LAST} {trouble}"), inputs
    if timed:
        times = _keep(source, times)
    layout = _layout(times)
    return layout, other if layout.chosen == LAST else inputs


def known_last(source: Source, inputs: Inputs, like: Layout | None) -> Layout | None:
    """The layout of a step that is known to be faster with channels last, also from `like`; otherwise None.

    Args:
        source, inputs, like: as for `choose`.
    """
    if not _may_turn(source, inputs):
        return None
    times = _known(source, like)
    if times is None or (layout := _layout(times)).chosen == GIVEN:
        return None
    if _deadly(source) or not survives(_turned_calls(source), source.device):
        return None
    return layout


def _known(source: Source, like: Layout | None) -> Times | None:
    """Seconds of a step by layout, as measured for it or for one like it; None if neither was.

    Those of one like it are kept for this one: a later run must not find others, that were measured meanwhile.
    """
    times = kept(source.device).get(_key(source))
    if times is not None or like is None:
        return times
    return _keep(source, like.seconds) if like.seconds else like.seconds


def _deadly(source: Source) -> bool:
    """True if a process ended while it tried the other layout, which no process has tried to the end."""
    known = kept(source.device)
    return known.get(_key(source)) is None and killed(known, _step(source), LAST)


def trying_last(source: Source) -> AbstractContextManager[None]:
    """The context in which a step may run with channels last; see `trials`."""
    return trying(kept(source.device), _step(source), LAST)


def _layout(times: Times) -> Layout:
    given, last = times.get(GIVEN), times.get(LAST)
    if given is None or last is None:
        return Layout(GIVEN, {}, f"{LAST} failed or gave other numbers when it was tried")
    return Layout(LAST if last < _GAIN * given else GIVEN, times)


def _may_turn(source: Source, inputs: Inputs) -> bool:
    """True if a step has convolutions of images, and inputs that can be channels last."""
    if not any(_image(v, m) for v, m in zip(inputs.leaves, inputs.per_member, strict=True)):
        return False
    return any(
        c.function in _CONVOLUTIONS and len(c.args[0].size) == 4 and c.args[0].dtype in _DTYPES for c in source.calls
    )


def _turned_calls(source: Source) -> list[Tried]:
    """The convolutions of a step, and their backward passes, with channels-last images."""
    found = []
    for call in source.calls:
        images = 2 if call.function is _BACKWARD else 1 if call.function in _CONVOLUTIONS else 0
        if images and not call.kwargs:
            args = [_as_operand(a, last=i < images) for i, a in enumerate(call.args)]
            found.append(Tried(call.function, args))
    return found


def _as_operand(value: Any, last: bool) -> Any:
    if not isinstance(value, BufferView):
        return value
    if not last or len(value.size) not in (3, 4):
        return value.operand
    channels, pixels = value.size[1], value.size[2:]
    steps = [math.prod(pixels[i + 1 :]) * channels for i in range(len(pixels))]
    return Operand(value.size, (channels * math.prod(pixels), 1, *steps), value.dtype)


def _image(leaf: Any, per_member: bool) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim == 4 + per_member and leaf.dtype in _DTYPES


@torch.no_grad()
def turned_all(inputs: Inputs) -> Inputs:
    """Copies of the inputs with channels-last images, also of those with one channel, whose layouts coincide."""
    return replace(inputs, leaves=tuple(map(_turned, inputs.leaves, inputs.per_member)))


def _turned(leaf: Any, per_member: bool) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    if not _image(leaf, per_member):
        return leaf.clone()
    axes = (*range(per_member), *(per_member + a for a in (0, 2, 3, 1)))
    buffer = torch.empty([leaf.shape[a] for a in axes], dtype=leaf.dtype, device=leaf.device)
    return buffer.permute([axes.index(a) for a in range(leaf.ndim)]).copy_(leaf)


def stored_alike(leaves: Sequence[Any], places: Sequence[BufferView]) -> list[Any]:
    """The tensors among results, stored with the layouts of these views."""
    left = iter(places)
    return [_as(v, next(left)) if isinstance(v, Tensor) else v for v in leaves]


def _as(tensor: Tensor, place: BufferView) -> Tensor:
    lengths = zip(tensor.shape, tensor.stride(), place.stride, strict=True)
    if all(mine == theirs for size, mine, theirs in lengths if size > 1):
        return tensor
    buffer = torch.empty_strided(tensor.shape, place.stride, dtype=tensor.dtype, device=tensor.device)
    return buffer.copy_(tensor)


def _keep(source: Source, seconds: Times) -> Times:
    """Keep times for later; returns those that hold, which another process may have measured first."""
    return kept(source.device).put(_key(source), seconds)


def _key(source: Source) -> str:
    """The key of a step's times, which are others once the package's libraries have been compiled."""
    own = build.available(_LIBRARIES) if source.device.type == "cpu" else ()
    return " ".join([_step(source), *(["with", *own] if own else [])])


def _step(source: Source) -> str:
    return f"layout of {source.digest()}"


def _timed(given: Run, last: Run, device: torch.device) -> Times:
    """Seconds of both, after a first run of each; the least of alternating laps, ended once the result is clear."""
    clock = clock_of(device)
    runs = {GIVEN: given, LAST: last}
    least = dict.fromkeys(runs, float("inf"))
    counts = dict.fromkeys(runs, 1)
    fewest, most = _LAPS
    for lap in range(most):
        for name, run in runs.items():
            begin = clock()
            for _ in range(counts[name]):
                run()
            least[name] = min(least[name], max(clock() - begin, 1e-9) / counts[name])
            counts[name] = max(1, round(_LAP_S / least[name]))
        if lap + 1 >= fewest and not least[LAST] < least[GIVEN] < _CLEAR * least[LAST]:
            break
    return dict(least)
