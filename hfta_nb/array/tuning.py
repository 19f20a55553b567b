"""Finding out how many members at once are fastest."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from hfta_nb.array.attempt import attempt, gradient_probe
from hfta_nb.array.engine import Call, Inputs
from hfta_nb.array.fallback import snapshot
from hfta_nb.array.gradients import Gradients
from hfta_nb.array.native import build

if TYPE_CHECKING:
    from hfta_nb.array.fused import FusedArray

_HOPELESS = 1.6
"""Times the fastest: slower than this without replaying, a block size is not looked at with it."""
_RECORDING = 3
"""Calls until a step is replayed, and the first replay."""
_LAPS = 3, 10
"""Laps that count, of each block size and way to run: at least, and at most of those close to the fastest."""
_ENOUGH_S = 5e-3
"""After so long laps are not added any more: only short ones say little."""
_GAIN = 0.95
"""Fewer members at once must take less than this part of the time of more."""
_CLOSE = 1.25
"""Times the fastest."""


def tune(
    array: FusedArray,
    inputs: Inputs,
    call: Call,
    step: Callable[[], Any],
    budget_s: float,
    only: Collection[str] | None = None,
) -> dict[int, float]:
    """Set the array's `block_size` to that with which a step is fastest; nothing else changes.

    Args:
        inputs, call: what a step computes.
        step: does it.
        budget_s: about how long to take.
        only: names of the parameters that it trains; None for all.

    Returns:
        Seconds of one step by block size, the least of several; nothing where only one is possible.
    """

    def run(inputs: Inputs) -> Any:
        return Gradients(array, inputs, only=only, keep=False).of(call, array._blocks.leaves())

    restore, asked = snapshot(array), array.settings.compiling
    array.settings.compiling = "never"
    try:
        with build.compiling():  # here it may pay
            attempt(array, "backward", inputs, run, gradient_probe(array, call, None))
        members = len(array)
        if array.block_size == 1:
            return {}
        deadline = _clock(array.generators.device)() + budget_s
        sizes = sorted({1, members, *(s for s in (4,) if s < members)}, reverse=True)
        replaying = array.capture and not inputs.grad_leaves()
        found = _least(array, lambda: run(inputs), sizes, 1, (1, 1) if replaying else _LAPS, deadline)
        if replaying:
            hopeful = [size for size in sizes if found[size] <= _HOPELESS * min(found.values())]
            with _gradients_kept(array) as forget:

                def whole() -> None:
                    forget()
                    step()

                if len(hopeful) > 1:
                    array._steps.at_once = True
                    found.update(_least(array, whole, hopeful, _RECORDING, _LAPS, deadline))
        array.block_size = members
        for size in sizes:
            if found[size] < _GAIN * found[array.block_size]:
                array.block_size = size
        return found
    finally:
        restore()
        array.settings.compiling = asked
        array._steps.at_once = False
        array._steps.keep(array.block_size)  # what was recorded for others takes room


def _least(
    array: FusedArray,
    run: Callable[[], Any],
    sizes: Sequence[int],
    unused: int,
    counted: tuple[int, int],
    deadline: float,
) -> dict[int, float]:
    """Seconds of `run` by block size.

    The first `unused` laps warm up: caches, kernels chosen at first use. Of those that count there are at least and at
    most so many.
    """
    clock = _clock(array.generators.device)
    laps: dict[int, list[float]] = {size: [] for size in sizes}
    close = list(sizes)
    fewest, most = counted
    for lap in range(unused + most):
        if lap > unused and clock() > deadline:
            break
        if lap >= unused + fewest:
            least = {size: min(laps[size][unused:]) for size in sizes}
            close = [size for size in close if least[size] <= _CLOSE * min(least.values())]
            if len(close) < 2 or sum(laps[close[0]][unused:]) > _ENOUGH_S:
                break
        for size in close:
            array.block_size = size
            begin = clock()
            run()
            laps[size].append(clock() - begin)
    return {size: min(times[unused:]) for size, times in laps.items()}


def _clock(device: torch.device) -> Callable[[], float]:
    """On one thread the processor's time, which other processes leave alone."""
    if device.type == "cpu":
        return time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def synchronised() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronised


@contextmanager
def _gradients_kept(array: FusedArray) -> Iterator[Callable[[], None]]:
    """Gives what forgets all gradients; afterwards they are as before."""
    parameters = list(array.parameters())
    before = [p.grad for p in parameters]
    values = [a.grad.clone() for a in array.arenas] if any(g is not None for g in before) else None
    missing = dict(array.missing_grads)

    def forget() -> None:
        for p in parameters:
            p.grad = None

    try:
        yield forget
    finally:
        for p, grad in zip(parameters, before, strict=True):
            p.grad = grad
        for arena, value in zip(array.arenas, values or (), strict=False):
            arena.grad.copy_(value)
        array.missing_grads.clear()
        array.missing_grads.update(missing)
