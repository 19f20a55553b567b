"""Replaces chains of image norm, activation and max-pooling, with their gradients, by two calls of the library.

The activation is a ReLU, or by member one of several kinds. No intermediate results are written between the norm and
the operations that follow it. The backward recomputes them: these kernels are limited by memory traffic beyond the
cache. A chain is replaced if the library is measured to be faster than torch's kernels in sequence, and if no other
call uses the intermediate results.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hfta_nb.engine.kernels.native import images
from hfta_nb.engine.kernels.native.images import Images
from hfta_nb.engine.kernels.strategy.autotune import Choice
from hfta_nb.engine.kernels.strategy.kernel_variants import PLAIN
from hfta_nb.engine.replay.image_norm_kernels import CHOSEN, RESULTS, Kernel, chosen
from hfta_nb.engine.replay.trace import BufferView, Instruction

_aten = torch.ops.aten
_NORMS = {
    _aten.native_group_norm.default: _aten.native_group_norm_backward.default,
    _aten.native_batch_norm.default: _aten.native_batch_norm_backward.default,
}
_RELU, _RELU_BACKWARD = _aten.relu.default, _aten.threshold_backward.default
_BY_KIND, _BY_KIND_BACKWARD = torch.ops.hfta_nb.by_kind.default, torch.ops.hfta_nb.by_kind_backward.default
_POOL, _POOL_BACKWARD = _aten.max_pool2d_with_indices.default, _aten.max_pool2d_with_indices_backward.default
_FOLLOWING = (_RELU, _BY_KIND), (_POOL,)
_PRECEDING = (_RELU_BACKWARD, _BY_KIND_BACKWARD), (_POOL_BACKWARD,)
_WINDOW = [2, 2], [2, 2], [0, 0], [1, 1]


@dataclass
class _FusedPattern:
    """Indices of calls: of the norm and what follows it, and of the gradients in the order in which they run."""

    forward: list[int]
    backward: list[int] = field(default_factory=list)


def fused_patterns(
    calls: Sequence[Instruction],
    wanted: Collection[int],
    half: int,
    branches: Sequence[int] | None,
    device: torch.device,
) -> tuple[list[Instruction], list[int], list[Choice]]:
    """The calls, with chains replaced by the library's; for each its former index (see `_together`); the choices.

    Args:
        calls: of a program.
        wanted: storages that contain results.
        half: how many of the calls belong to the first of two halves.
        branches: per call, its thread; None for one thread.
        device: of all tensors.
    """
    found = _Chains(calls, wanted, [(i < half, branches and branches[i]) for i in range(len(calls))], device)
    return *found.taken(), list(found.choices.values())


class _Chains:
    """The chains of a program.

    Args:
        calls: of the program.
        wanted: storages that contain results.
        apart: per call, a value that must be equal within each half of a chain.
        device: of all tensors.
    """

    def __init__(
        self, calls: Sequence[Instruction], wanted: Collection[int], apart: Sequence[Any], device: torch.device
    ):
        self._calls, self._wanted, self._apart, self._device = calls, wanted, apart, device
        self._readers: dict[int, list[int]] = {}
        self._maker: dict[int, int] = {}
        for i, call in enumerate(calls):
            for storage in call.reads():
                self._readers.setdefault(storage, []).append(i)
            self._maker.update(dict.fromkeys(call.makes, i))
        self.choices: dict[str, Choice] = {}

    def taken(self) -> tuple[list[Instruction], list[int]]:
        """The calls, with chains replaced by the library's; and for each its former index."""
        found: dict[int, Instruction | None] = {}
        if self._device.type == "cpu":
            for i, call in enumerate(self._calls):
                if call.function in _NORMS and _single(call) and images.usable():
                    found.update(self._replaced(i))
        every = [(found.get(i, call), i) for i, call in enumerate(self._calls)]
        kept = [(call, i) for call, i in every if call is not None]
        return [call for call, _ in kept], [i for _, i in kept]

    def _replaced(self, i: int) -> dict[int, Instruction | None]:
        """Replacements of calls for the chain that starts at a norm; None if there is none."""
        call = self._calls[i]
        for pattern in self._patterns(i):
            made = self._made(call, pattern)
            if made is None:
                continue
            forward, backward = made
            choice = chosen(forward, backward, self._device)
            if choice is None:
                continue
            self.choices[choice.what] = choice
            if choice.chosen.name == PLAIN:
                return {}
            gone: dict[int, Instruction | None] = dict.fromkeys([*pattern.forward, *pattern.backward])
            gone[pattern.forward[0]] = forward
            if backward is not None:
                gone[pattern.backward[-1]] = backward
            return gone
        return {}

    # Finding chains.

    def _patterns(self, i: int) -> list[_FusedPattern]:
        """Possible chains, from the longest one to the norm alone."""
        forward = [i]
        for functions in _FOLLOWING:
            after = [r for r in self._reading(forward[-1]) if self._calls[r].function in functions]
            if len(after) != 1 or after[0] < forward[-1]:
                break
            forward.append(after[0])
        backward = self._backward(i)
        return [
            _FusedPattern(forward[: k + 1], backward[len(backward) - k - 1 :]) for k in reversed(range(len(forward)))
        ]

    def _backward(self, i: int) -> list[int]:
        """The norm's gradients, preceded by the gradients that they depend on."""
        call = self._calls[i]
        found = [j for j in self._reading(i, 1) if self._calls[j].function is _NORMS[call.function]]
        if len(found) != 1:
            return []
        for functions in _PRECEDING:
            grad = self._calls[found[0]].args[0]
            maker = self._maker.get(grad.storage) if isinstance(grad, BufferView) else None
            if maker is None or self._calls[maker].function not in functions:
                break
            found.insert(0, maker)
        return found

    def _reading(self, i: int, result: int = 0) -> list[int]:
        place = self._calls[i].results[result]
        return [] if place is None else self._readers.get(place.storage, [])

    def _made(self, norm: Instruction, pattern: _FusedPattern) -> tuple[Instruction, Instruction | None] | None:
        """The chain as calls of the library; None if it cannot be replaced."""
        calls = self._calls
        found = _Parts([calls[k] for k in pattern.forward], [calls[k] for k in pattern.backward])
        if pattern.backward and len(pattern.backward) != len(pattern.forward):
            return None
        if not pattern.backward and self._reading(pattern.forward[0], 1):
            return None
        if not found.fit() or not self._unseen(pattern) or not self._together(pattern):
            return None
        return found.calls()

    def _unseen(self, pattern: _FusedPattern) -> bool:
        """True if no other call uses the intermediate results that are not kept."""
        own = {*pattern.forward, *pattern.backward}
        last = {pattern.forward[-1], *pattern.backward[-1:]}
        between = {s for k in own - last for s in self._calls[k].makes}
        kept = {r.storage for r in self._calls[pattern.forward[0]].results[1:] if r is not None}
        if len(pattern.forward) > 2:
            between |= set(self._calls[pattern.forward[-1]].makes[1:])  # indices
        between -= kept
        return not between & set(self._wanted) and all(set(self._readers.get(s, ())) <= own for s in between)

    def _together(self, pattern: _FusedPattern) -> bool:
        """True if the forward may run at its first call and the gradients at their last one, with unchanged inputs for
        recomputation.

        At its first: members' running statistics that are strided are copied to their places right after the norm.
        """
        calls = self._calls
        if any(len({self._apart[k] for k in part}) > 1 for part in (pattern.forward, pattern.backward)):
            return False
        made = {s for k in pattern.forward for s in calls[k].makes}
        if any(c.writes & made for c in self._between(pattern.forward)):
            return False
        if pattern.backward:
            made = {s for k in pattern.backward for s in calls[k].makes}
            given = {s for k in pattern.backward for s in calls[k].reads()}
            rest = self._between(pattern.backward)
            if any((c.reads() | c.writes) & made or c.writes & given for c in rest):
                return False
        end = pattern.backward[-1] if pattern.backward else pattern.forward[-1]
        after = calls[pattern.forward[1]] if len(pattern.forward) > 1 else None
        kinds = after.args[1] if after is not None and after.function is _BY_KIND else ()
        fixed = {a.storage for a in (*calls[pattern.forward[0]].args[:3], *kinds) if isinstance(a, BufferView)}
        return not any(calls[k].writes & fixed for k in range(pattern.forward[0], end))

    def _between(self, part: Sequence[int]) -> list[Instruction]:
        """The calls among those of one half that do not belong to it."""
        return [self._calls[k] for k in range(part[0], part[-1]) if k not in part]


@dataclass
class _Parts:
    """The calls of a chain."""

    forward: list[Instruction]
    backward: list[Instruction]

    def fit(self) -> bool:
        """True if the library supports the chain."""
        norm, after = self.forward[0], self.forward[1:]
        x, out, last = norm.args[0], norm.results[0], self.forward[-1].results[0]
        if x is None or out is None or last is None:
            return False
        self.x: BufferView = x
        self.out: BufferView = out
        self.last: BufferView = last
        self.groups = norm.args[6] if norm.function is _aten.native_group_norm.default else 0
        self.act, self.pool, self.side = after[0] if after else None, len(after) > 1, _last(self.x)
        kept = [p for p in (*norm.args, *norm.results) if isinstance(p, BufferView)]
        self.fixed = not self.groups and not norm.args[5]
        if any(p.dtype != torch.float32 for p in kept) or (self.fixed and (self.backward or norm.args[3] is None)):
            return False
        if self.side is None or not all(p.operand.contiguous or p in (self.x, self.out) for p in kept):
            return False
        several = math.prod(self.x.size) // (self.x.size[0] * self.groups or self.x.size[1]) > 1
        if not several or not _alike(self.out, self.x):
            return False
        if self.act is not None and not (_as_one(self.act.args[0], self.act.results[0], self.out) and self._known()):
            return False
        return (not self.pool or self._pools(after[1])) and (not self.backward or self._backward_fits())

    def _known(self) -> bool:
        """True if the library has the activation, and it treats the channels as the norm does."""
        assert self.act is not None  # the caller has checked
        if self.act.function is _RELU:
            return True
        given, _, kinds = self.act.args
        if len(given.size) != len(self.x.size) + 1 or not all(kind in images.KINDS for kind in kinds.split(",")):
            return False
        (members, samples, channels, *space), (step, by_sample, by_channel, *steps) = given.size, given.stride
        size, stride = (samples, members * channels, *space), (by_sample, by_channel, *steps)
        beside = members == 1 or step == channels * by_channel
        return beside and _alike(self.out, given._replace(size=size, stride=stride))

    def _pools(self, pool: Instruction) -> bool:
        act = self.forward[1].results[0]
        given = pool.args[0]
        same = act is not None and (given.storage, given.offset) == (act.storage, act.offset)
        fits = len(self.x.size) == 4 and self.side and same and _alike(given, self.x)
        return bool(fits) and min(self.x.size[2:]) >= 2 and self._window(pool.args[1:]) and _last(self.last) is True

    def _window(self, args: Sequence[Any]) -> bool:
        """True for windows of 2 x 2 beside each other."""
        given = [list(a) if isinstance(a, list | tuple) else a for a in args]
        full = [*given[:4], *_WINDOW[len(given) :]]
        full[1] = full[1] or full[0]
        up = len(given) > 4 and given[4]  # to part of a window
        return full == list(_WINDOW) and not (up and any(n % 2 for n in self.x.size[2:]))

    def _mask_fits(self, mask: Instruction) -> bool:
        """True if a call is the gradient of the activation."""
        assert self.act is not None  # the caller has checked
        if self.act.function is _RELU:
            return mask.function is _RELU_BACKWARD and list(mask.args[1:]) == [self.act.results[0], 0]
        return mask.function is _BY_KIND_BACKWARD and list(mask.args[1:]) == list(self.act.args)

    def _backward_fits(self) -> bool:
        norm, grads, own = self.forward[0], self.backward[-1], self.groups
        kept = [*grads.args[1:5]] if own else [grads.args[1], *grads.args[5:7], grads.args[2]]
        if kept != [norm.args[0], *norm.results[1:], norm.args[1]] or not (own or grads.args[7]):
            return False
        dx = grads.results[0]
        if dx is None or not _alike(dx, self.x) or not _single(grads):
            return False
        self.grad: BufferView = self.backward[0].args[0]
        if self.grad.dtype != torch.float32:
            return False
        if self.act is not None:
            mask = self.backward[-2]
            if not self._mask_fits(mask):
                return False
            if not self.pool:
                if not _as_one(self.grad, mask.results[0], self.out):
                    return False
                self.grad = self.grad._replace(size=self.out.size, stride=self.out.stride)
        if self.pool:
            back, pool = self.backward[0], self.forward[2]
            if (back.args[1], back.args[-1]) != (pool.args[0], pool.results[1]) or not self._window(back.args[2:-1]):
                return False
        wanted = self.last if self.pool else self.out
        self.turned = bool(self.side) and not _alike(self.grad, wanted)
        return _alike(self.grad, wanted) or (
            self.turned and self.grad.size == wanted.size and self.grad.operand.contiguous
        )

    def calls(self) -> tuple[Instruction, Instruction | None]:
        """The library's calls."""
        norm = self.forward[0]
        (samples, channels, *space), own = self.x.size, self.groups
        height, width = space if self.pool else (1, math.prod(space))
        turned = bool(self.backward) and self.turned
        if not own and self.side and not self.pool and not turned:
            samples, width = 1, samples * width  # one sample's pixels, for a batch norm
        size = samples, channels, height, width
        momentum = 0.0 if own else norm.args[6]
        relu = self.act is not None and self.act.function is _RELU
        how = Images(size, own, bool(self.side), relu, self.pool, norm.args[7], momentum, fixed=self.fixed)
        more: dict[str, Any] = {}
        if self.act is not None and not relu:
            given, more[CHOSEN], kinds = self.act.args
            how = replace(how, kinds=kinds, members=given.size[0])
        running = () if own else norm.args[3:5]
        names = "x", "weight", "bias", *(("running_mean", "running_var") if running else ()), *more
        args = [*norm.args[:3], *running, *more.values()]
        shown = self.last if self.pool else self.last._replace(size=self.out.size, stride=self.out.stride)
        results = shown, *norm.results[1:]
        makes = tuple(p.storage for p in results if p is not None)
        writes = frozenset(s for c in self.forward for s in c.writes)
        forward = Instruction(Kernel(how, False, names, RESULTS), args, {}, results, makes, writes)
        if not self.backward:
            return forward, None
        grads = self.backward[-1]
        kernel = Kernel(
            replace(how, turned=turned),
            True,
            ("grad", "x", "weight", "bias", "mean", "scale", *more),
            ("out", "weight_grad", "bias_grad"),
        )
        needed = [self.grad, *norm.args[:3], *norm.results[1:], *more.values()]
        return forward, Instruction(kernel, needed, {}, grads.results, grads.makes, frozenset())


def _single(call: Instruction) -> bool:
    """True if all results of a call are separate tensors."""
    made = [r.storage for r in call.results if r is not None]
    return sorted(made) == sorted(call.makes) and len(set(made)) == len(made) and not call.draws


def _last(place: BufferView) -> bool | None:
    """True if channels are adjacent in memory, False if the pixels of a channel are; None for neither."""
    if len(place.size) < 2 or 0 in place.size:
        return None
    if place.permuted((0, *range(2, len(place.size)), 1)).operand.contiguous and place.size[1] > 1:
        return True
    return False if place.operand.contiguous and math.prod(place.size[2:]) > 1 else None


def _alike(one: Any, two: BufferView) -> bool:
    """True if two tensors have the same memory layout."""
    return isinstance(one, BufferView) and (one.size, one.stride) == (two.size, two.stride)


def _as_one(given: Any, made: Any, like: BufferView) -> bool:
    """True if a pointwise function's tensors cover whole storages that are ordered like another one."""
    if not isinstance(given, BufferView) or not isinstance(made, BufferView) or made.dtype != like.dtype:
        return False
    same = (given.size, given.stride, given.offset) == (made.size, made.stride, made.offset)
    return same and given.offset == like.offset and given.reach == math.prod(given.size) == math.prod(like.size)
