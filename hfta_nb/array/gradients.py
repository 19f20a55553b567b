"""Block-wise differentiation of an array, and where its gradients go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hfta_nb.array.engine import Block, Call, Inputs, concatenate, snapshot
from hfta_nb.errors import FusionError

if TYPE_CHECKING:
    from hfta_nb.array.fused import FusedArray


def call_module(module: nn.Module, given: Any) -> Any:
    """Call with a tuple of positional inputs, a dict of keyword inputs, or one input."""
    if isinstance(given, tuple):
        return module(*given)
    return module(**given) if isinstance(given, dict) else module(given)


class Gradients:
    """The gradients of one `backward`: computed block by block, written into the arena, then delivered to `.grad`.

    Args:
        array: the array.
        inputs: of this call.
        keep: False to compute them only (to see whether, or how fast, that works).
    """

    def __init__(self, array: FusedArray, inputs: Inputs, *, keep: bool = True) -> None:
        self.array, self.inputs, self.keep = array, inputs, keep
        self.parameters = dict(array.named_parameters())
        self.fresh = {name for name, p in self.parameters.items() if p.grad is None}
        self.received: dict[str, list[Block]] = {}
        self.upstream: list[Tensor | None] = [None] * len(inputs.grad_leaves())

    def of(self, call: Call, blocks: Sequence[Block]) -> tuple[Tensor, Any]:
        """Losses ``[M]`` and auxiliary results, detached."""
        results = []
        for block in blocks:
            losses, aux = self.array.engine.run(block, call, self.inputs)
            names = [name for name, p in block.parameters.items() if p.requires_grad]
            wanted = [block.parameters[name] for name in names] + self.inputs.grad_leaves()
            if not wanted or not losses.requires_grad:
                raise FusionError("the loss depends on nothing that requires a gradient", where="backward")
            grads = torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
            if self.keep:
                self._take(block, names, grads)
            results.append((losses.detach(), pytree.tree_map_only(Tensor, Tensor.detach, aux)))
        return concatenate(results)  # type: ignore[no-any-return]

    def _take(self, block: Block, names: list[str], grads: Sequence[Tensor | None]) -> None:
        fresh_to, fresh_from = [], []
        for name, grad in zip(names, grads[: len(names)], strict=True):
            if grad is None:
                continue
            self.received.setdefault(name, []).append(block)
            if name in self.fresh:
                fresh_to.append(block.grad_rows[name])
                fresh_from.append(grad)
            else:
                old = self.parameters[name].grad
                assert old is not None  # else it would be fresh
                rows = old[block.start] if block.single else old[block.start : block.stop]
                rows.add_(grad)
        if fresh_to:
            torch._foreach_copy_(fresh_to, fresh_from)
        for i, grad in enumerate(grads[len(names) :]):
            before = self.upstream[i]
            self.upstream[i] = grad if before is None or grad is None else before + grad

    def deliver(self) -> None:
        """Set `.grad`, and pass the gradients of the inputs on."""
        self.array.missing_grads.clear()
        for name, blocks in self.received.items():
            if name not in self.fresh:
                continue
            view = self.array.arena_of(name).grad_view(name)
            got = sum(b.stop - b.start for b in blocks)
            if got < len(self.array):
                have = {i for b in blocks for i in range(b.start, b.stop)}
                lacking = [i for i in range(len(self.array)) if i not in have]
                view[lacking] = 0
                self.array.missing_grads[name] = lacking
            self.parameters[name].grad = view
        pairs = [(x, g) for x, g in zip(self.inputs.grad_leaves(), self.upstream, strict=True) if g is not None]
        if pairs:
            torch.autograd.backward([x for x, _ in pairs], [g for _, g in pairs])


def tune_block_size(array: FusedArray, run: Callable[[], Any], budget_s: float) -> dict[int, float]:
    """Set the array's `block_size` to that with which `run` is fastest.

    Args:
        run: computes losses and gradients and keeps nothing.

    Returns:
        Seconds of one run by block size, the median of several.
    """
    members = len(array)
    sizes = sorted({1, members, *(s for s in (4,) if s < members)}, reverse=True)
    restore = snapshot(dict(array.named_buffers()), array.generators)
    laps: dict[int, list[float]] = {size: [] for size in sizes}
    deadline = time.perf_counter() + budget_s
    try:
        for lap in range(12):
            for size in sizes:
                array.block_size = size
                laps[size].append(_time(run, array.generators.device))
            if time.perf_counter() > deadline and lap:
                break
    finally:
        restore()
    # The first lap warms up: caches, allocator, kernels chosen at first use.
    medians = {size: sorted(times[1:])[(len(times) - 1) // 2] for size, times in laps.items()}
    array.block_size = min(medians, key=lambda size: medians[size])
    return medians


def _time(run: Callable[[], Any], device: torch.device) -> float:
    begin = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin
