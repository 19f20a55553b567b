"""Chooses a program's kernels by time, and adds the steps that these need."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.kernels.native.recurrent import BOUND
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.engine.kernels.strategy.autotune import Choice, choose, made
from hfta_nb.engine.kernels.strategy.channels_last_norms import BATCH_NORM, batch_norm, in_groups
from hfta_nb.engine.kernels.strategy.kernel_variants import PLAIN, PRODUCTS, KernelVariant, Operand
from hfta_nb.engine.replay.fused_kernel import FusedKernel
from hfta_nb.engine.replay.native_calls import NativeCall
from hfta_nb.engine.replay.out_variants import KERNELS, bare
from hfta_nb.engine.replay.trace import BufferView, Instruction


def indifferent(call: Instruction) -> bool:
    """True if oneDNN's precision setting cannot affect this call."""
    if isinstance(call.function, FusedKernel) or call.function._schema.name in BOUND:
        return True
    return call.function in KERNELS and call.function not in PRODUCTS


class KernelSelector:
    """Chooses kernels for one program.

    Args:
        on: choose; otherwise every call stays unchanged.
        device: of the program's tensors.
        still: storages that no call of the program writes to, copies of which can be shared.
        steady: the setting of oneDNN's products for the whole program, if calls run on several threads: it belongs to
            the process. None to change it between calls.

    Attributes:
        choices: made so far, each kind once.
        seconds: the total time of products.
    """

    def __init__(self, on: bool, device: torch.device, still: Collection[int], steady: str | None = None) -> None:
        self.on, self.device, self.still = on, device, still
        self.choices: dict[str, Choice] = {}
        self._before = self._now = matmul_precision.get()
        self._wanted = self._before
        self.steady, self.seconds = steady, 0.0
        self._copies: dict[BufferView, Tensor] = {}
        self._copies_of = {0: self._copies}
        self._copying: list[Callable[[], Any]] = []

    def best(
        self,
        call: Instruction,
        called: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        worth: float = 0.0,
    ) -> tuple[Callable[..., Any], Sequence[Any]]:
        """The function to call for a kernel: `called`, or a faster variant; it requires `steps_before`.

        Args:
            call: the recorded call.
            called: takes the arguments of the call.
            args: the actual arguments.
            kwargs: the actual keywords.
            worth: seconds that the package's own kernel saves elsewhere.
        """
        self._wanted = self._now if indifferent(call) or self.steady is not None else self._before
        if not self.on or call.draws:
            return called, args
        product = call.function in PRODUCTS
        if product:
            args = [self._copied(p, a) for p, a in zip(call.args, args, strict=True)]
        shapes = [_operand(a if isinstance(a, Tensor) else p) for p, a in zip(call.args, args, strict=True)]
        if call.function is BATCH_NORM and in_groups(shapes, self.device):
            called = batch_norm
        named = {k: _operand(v) for k, v in kwargs.items()}
        allowed = self._steadily if product and self.steady is not None else None
        choice = choose(call.function, called, shapes, named, self.device, allowed=allowed, worth=worth)
        if choice is None:
            return called, args
        self.choices[choice.what] = choice
        if product:
            self.seconds += choice.seconds.get(choice.chosen.name) or math.inf
        if choice.chosen.setting is not None and self.steady is None:
            self._wanted = choice.chosen.setting
        if choice.chosen.copies and all(self._can_copy(p, a) for p, a in zip(call.args[-2:], args[-2:], strict=True)):
            both = [self._copy(p, a) for p, a in zip(call.args[-2:], args[-2:], strict=True)]
            return choice.chosen.make(called), [*args[:-2], *both]
        return made(choice.chosen, called), args

    def _steadily(self, way: KernelVariant) -> bool:
        if self.steady == matmul_precision.ONEDNN != self._before:
            return way.name != PLAIN  # it would use oneDNN as well
        return way.setting is None

    def on_branch(self, number: int) -> None:
        """Further choices belong to this thread's calls: copies are not shared with other threads."""
        self._copies = self._copies_of.setdefault(number, {})

    def takes(self, call: Instruction, own: NativeCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """True if the library computes a call fastest, independently of settings."""
        if not self.on:
            return False
        buffers = {n: _operand(p) for n, p in zip(own.buffers, call.results, strict=True) if p is not None}
        named = {k: _operand(v) for k, v in kwargs.items()}
        shapes = [_operand(a) for a in args]
        choice = choose(call.function, bare(call.function), shapes, named, self.device, [own.way(buffers)])
        if choice is None or choice.chosen.name == PLAIN:
            return False
        self.choices[choice.what], self._wanted = choice, self._now
        return True

    def steps_before(self) -> list[Callable[[], Any]]:
        """Steps that must precede the last chosen kernel."""
        steps, self._copying = self._copying, []
        if self._wanted != self._now:
            self._now = self._wanted
            steps.append(matmul_precision.switch(self._now))
        return steps

    def restore_setting(self) -> list[Callable[[], Any]]:
        """Steps that restore the setting within a run."""
        self._wanted = self._before
        return self.steps_before()

    def done(self) -> str | None:
        """The setting to restore after each run; None if none changes."""
        switched = any(c.chosen.setting is not None for c in self.choices.values())
        return self._before if switched or self.opening() is not None else None

    def opening(self) -> Callable[[], Any] | None:
        """The first step of a run."""
        return None if self.steady in (None, self._before) else matmul_precision.switch(str(self.steady))

    # Copies that several kernels share.

    def _can_copy(self, place: BufferView, value: Any) -> bool:
        if not isinstance(value, Tensor):
            return False
        flat = value.transpose(1, 2) if _turned(place) else value
        return place.storage in self.still or flat.is_contiguous()

    def _copied(self, place: Any, value: Any) -> Any:
        """An existing copy in the requested order of axes."""
        if not isinstance(place, BufferView) or len(place.size) != 3:
            return value
        buffer = self._copies.get(_flat(place))
        if buffer is None:
            return value
        return buffer.transpose(1, 2) if _turned(place) else buffer

    def _copy(self, place: BufferView, value: Tensor) -> Tensor:
        turned = _turned(place)
        flat = value.transpose(1, 2) if turned else value
        if flat.is_contiguous():
            return value
        buffer = flat.new_empty(flat.shape)
        self._copies[_flat(place)] = buffer
        self._copying.append(partial(buffer.copy_, flat))
        return buffer.transpose(1, 2) if turned else buffer


def _turned(place: BufferView) -> bool:
    return place.stride[1] == 1 and place.stride[2] != 1


def _flat(place: BufferView) -> BufferView:
    if not _turned(place):
        return place
    (members, rows, columns), (first, second, third) = place.size, place.stride
    return place._replace(size=(members, columns, rows), stride=(first, third, second))


def _operand(value: Any) -> Any:
    if isinstance(value, BufferView):
        return value.operand
    if isinstance(value, Tensor):
        return Operand(tuple(value.shape), value.stride(), value.dtype)
    if isinstance(value, list | tuple):
        return [_operand(v) for v in value]
    return value
