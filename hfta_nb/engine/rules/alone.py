"""Whether this package's LSTM is faster than torch's for a member that runs as its plain module."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hfta_nb.engine.kernels.strategy import autotune
from hfta_nb.engine.kernels.strategy.kernel_variants import COMPILED, PLAIN
from hfta_nb.engine.kernels.strategy.times import Times
from hfta_nb.engine.kernels.strategy.timing_cache import kept
from hfta_nb.engine.kernels.strategy.variant_trials import killed, trying
from hfta_nb.engine.members.threads import available_threads
from hfta_nb.engine.members.untraced import untraced

_LAPS, _LONG_S = 3, 0.02

LstmKernel = Callable[[Sequence[Tensor], Sequence[Tensor | None]], Tensor]
"""From x ``[T, N, in]``, h and c ``[N, H]``, two weights and two biases (or None) to h at all time steps."""


def own_is_faster(own: LstmKernel, sizes: tuple[int, int, int, int], biased: bool) -> bool:
    """True if forward and backward of one layer in one direction are faster; measured once, and kept like other times.

    Args:
        own: the package's LSTM.
        sizes: time steps, samples, inputs, hidden units.
        biased: whether there are biases.
    """
    device = torch.device("cpu")
    known, key = kept(device), f"lstm alone {sizes} {biased} {available_threads()}"
    times = known.get(key)
    if times is None:
        if killed(known, key, COMPILED):
            return False
        with trying(known, key, COMPILED), untraced(), torch.inference_mode(False), torch.enable_grad():
            times = _measured(own, sizes, biased)
        times = known.put(key, times)
    return autotune.cost(COMPILED, times) < autotune.cost(PLAIN, times)


def _measured(own: LstmKernel, sizes: tuple[int, int, int, int], biased: bool) -> Times:
    steps, samples, inputs, hidden = sizes
    draw = torch.Generator().manual_seed(0)
    x, h = torch.randn(steps, samples, inputs, generator=draw), torch.zeros(samples, hidden)
    weights = [torch.randn(4 * hidden, size, generator=draw) / 16 for size in (inputs, hidden)]
    biases = [torch.zeros(4 * hidden) for _ in weights] if biased else []
    learning = [t.requires_grad_() for t in (x, *weights, *biases)]
    padded = [*weights, *biases, *[None] * (2 - len(biases))]

    def plain() -> Tensor:
        given = x, (h[None], h[None]), [*weights, *biases], biased, 1, 0.0, True, False, False
        return torch.lstm(*given)[0]

    ways: dict[str, Callable[[], Tensor]] = {PLAIN: plain, COMPILED: lambda: own((x, h, h), padded)}
    clock = autotune.clock_of(x.device)
    laps: dict[str, list[float]] = {name: [] for name in ways}
    for lap in range(_LAPS):
        for name, way in ways.items():
            begin = clock()
            out = way()
            torch.autograd.grad(out.sum(), learning)
            laps[name].append(max(clock() - begin, 1e-9))
        if lap and min(laps[PLAIN]) > _LONG_S:
            break
    return {name: min(times) for name, times in laps.items()}
