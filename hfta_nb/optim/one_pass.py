"""A step of Adam or SGD on a GPU: one pass over ``[M, columns]`` with the hyperparameters of all members on the device.

A Triton kernel makes it, whatever the number of members (`hfta_nb.optim.triton_kernels`). Where Triton is missing,
fails, or gives other numbers than torch, a chain of torch's elementwise kernels does. Neither reads anything back to
the host, so that a CUDA graph can capture a step.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hfta_nb.engine.comparison import compare
from hfta_nb.optim.fused_kernels import settings_of
from hfta_nb.optim.hyperparameters import Columns, HostColumn

DEVICES = {"cuda"}
"""Types of the devices where steps are made this way: elsewhere a kernel launch costs less, and memory more."""

Numbers: TypeAlias = Mapping[str, HostColumn]
Moving: TypeAlias = Callable[[Tensor, Tensor], dict[str, Tensor]]
"""From learning rates and step numbers, ``[M]`` in float64, to the numbers of `apply` that depend on them."""
Step: TypeAlias = Callable[[Tensor | None], None]
"""A step, of a mask ``[M]`` that is True for members that are left as they are; None for none."""


class Rule(Protocol):
    """What an optimizer tells about its update; see `FlatOptimizer` for the rest.

    Attributes:
        kernel: name of its Triton kernel.
        trial: values of three members, with which the kernel is compared before it is used.
    """

    kernel: ClassVar[str]
    trial: ClassVar[Numbers]

    @property
    def kinds(self) -> Mapping[str, Any]: ...
    def states(self, values: Numbers) -> tuple[str, ...]: ...
    def fixed(self, values: Numbers) -> dict[str, HostColumn]:
        """What `apply` and the kernel need, but for what `moving` gives."""

    def moving(self, values: Numbers, device: torch.device) -> Moving:
        """Makes the function that computes, on the device, what changes from step to step."""

    def apply(self, p: Tensor, g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any]) -> None: ...


def covers(p: Tensor) -> bool:
    """Whether a step of these parameters is one pass of this sort."""
    return p.device.type in DEVICES and p.is_floating_point()


class OnePass:
    """One step of some tensors of all members; as `FusedCalls`, but of any hyperparameters in one call.

    Args:
        rule: the optimizer.
        tensors: parameters, gradients and states ``[M, columns]``; the rows of each have no gaps.
        values: hyperparameters.
        steps: updates so far, per member.

    Attributes:
        counts: updates so far, ``[M]``, on the device.
    """

    def __init__(self, rule: Rule, tensors: Sequence[Tensor], values: Numbers, steps: HostColumn) -> None:
        p, g, *states = tensors
        self.counts = torch.tensor(steps, dtype=torch.float32, device=p.device)
        self._places = [t.data_ptr() for t in tensors]
        self._settings, self._lrs = settings(rule, values), values["lr"].tolist()
        self._lr = torch.tensor(self._lrs, dtype=torch.float64, device=p.device)
        self._device = p.device
        state = dict(zip(rule.states(values), states, strict=True))
        kernels = usable(rule, p, tuple(state))
        if kernels is None:
            self._step: Step = Chain(rule, p, g, state, values, self.counts, self._lr)
        else:
            step = kernels.bind(rule.kernel, p, g, state, rule.fixed(values), self.counts, self._lr)
            nobody = torch.zeros(len(steps), dtype=torch.bool, device=p.device)
            self._step = lambda skip: step(nobody if skip is None else skip)
        self._guard = partial(torch.cuda.device, p.device) if p.is_cuda else contextlib.nullcontext

    def over(self, tensors: Sequence[Tensor], settings: Sequence[Hashable]) -> bool:
        """Whether this is about these tensors and settings."""
        return [t.data_ptr() for t in tensors] == self._places and list(settings) == self._settings

    def learn(self, lrs: Sequence[float]) -> None:
        """Take other learning rates, from the next step on; a step that was captured reads them where they are."""
        if list(lrs) != self._lrs:
            self._lrs = list(lrs)
            sent = torch.tensor(self._lrs, dtype=torch.float64)
            self._lr.copy_(sent.pin_memory() if self._lr.is_cuda else sent, non_blocking=True)  # the host doesn't wait

    def mask(self, members: Sequence[int]) -> Tensor:
        """The mask of members to leave out."""
        host = torch.zeros(len(self.counts), dtype=torch.bool)
        host[list(members)] = True
        return host.to(self._device)

    def __call__(self, skip: Tensor | None = None) -> None:
        """One step.

        Args:
            skip: ``[M]``, true for members that are left as they are; None for none.
        """
        with self._guard():
            self._step(None if skip is None else skip.to(self._device, torch.bool))


def settings(rule: Rule, values: Numbers) -> list[Hashable]:
    """The values of a rule's hyperparameters, but for the learning rates, as far as a step is bound to them."""
    return settings_of(values, [name for name in rule.kinds if name != "lr"])


class Chain:
    """A step as `apply` makes it, with all that changes from step to step computed on the device.

    Args:
        rule: the optimizer, which is not kept.
        p, g, state: as for `apply`.
        values: hyperparameters.
        counts: updates so far, per member, on the device.
        lr: learning rates ``[M]``, float64, on the device.
    """

    def __init__(
        self,
        rule: Rule,
        p: Tensor,
        g: Tensor,
        state: dict[str, Tensor],
        values: Numbers,
        counts: Tensor,
        lr: Tensor,
    ) -> None:
        self._apply = weakref.WeakMethod(rule.apply)  # no circle: what holds a GPU's memory is to go at once
        self._tensors, self._counts, self._lr = (p, g, state), counts, lr
        self._fixed = Columns().on(rule.fixed(values), p)
        self._moving = rule.moving(values, p.device)
        self._dtype = torch.float32 if p.dtype in (torch.float16, torch.bfloat16) else p.dtype

    def __call__(self, skip: Tensor | None) -> None:
        apply, (p, g, state) = self._apply(), self._tensors
        assert apply is not None  # its optimizer is stepping
        moving = self._moving(self._lr, (self._counts + 1).double())
        self._counts.add_(1 if skip is None else skip.logical_not())
        numbers = {k: (v if v.dtype == torch.bool else v.to(self._dtype)).unsqueeze(-1) for k, v in moving.items()}
        changed = [p, *state.values()]
        before = [] if skip is None else [t.clone() for t in changed]
        apply(p, g, state, {**self._fixed, **numbers})
        if skip is not None:
            for now, old in zip(changed, before, strict=True):
                torch.where(skip.unsqueeze(-1), old, now, out=now)


# Whether the kernels can be had.

_found: dict[Hashable, Any] = {}
"""The module of kernels, or None, by kernel, state, device and dtype: what was found out once."""
_ERROR = {torch.float64: 1e-12, torch.float32: 1e-5}
"""By how much a kernel may differ from torch's own after three steps, relative to 1; half precision: 0.02."""


def usable(rule: Rule, p: Tensor, states: tuple[str, ...]) -> Any:
    """The module of Triton kernels; None where they can't be used, of which a warning tells once.

    Before the first use, three steps of a small array are compared with torch's own kernels.
    """
    key = rule.kernel, states, p.device, p.dtype
    if key not in _found:
        _found[key] = None
        with contextlib.suppress(ImportError):  # as on Windows; nothing to tell
            from hfta_nb.optim import triton_kernels

            reason = _reason_against(triton_kernels, rule, p, states)
            if reason:
                warnings.warn(
                    f"the Triton kernel of {type(rule).__name__} is not used on {p.device}, {p.dtype}: {reason}. "
                    "Steps are made by several kernels of torch's instead, which takes longer.",
                    stacklevel=2,
                )
            else:
                _found[key] = triton_kernels
    return _found[key]


@torch.no_grad()
def _reason_against(kernels: Any, rule: Rule, p: Tensor, states: tuple[str, ...]) -> str:
    """Why the kernels are not to be used; empty where they are."""
    values, columns = rule.trial, 40
    wave = torch.arange(3.0 * columns, device=p.device).view(3, columns)
    found = []
    for number in range(2):
        value, gradient = (torch.sin(wave * k).to(p.dtype) for k in (1.7, 2.3))
        state = {name: torch.sin(wave * k).square().to(p.dtype) for k, name in enumerate(states, 3)}
        lr = torch.tensor(values["lr"], device=p.device)
        counts = torch.tensor([0.0, 4.0, 9.0], device=p.device)
        found.append([value, gradient, *state.values(), counts])
        try:
            step: Step = (
                Chain(rule, value, gradient, state, values, counts, lr)
                if number
                else kernels.bind(rule.kernel, value, gradient, state, rule.fixed(values), counts, lr)
            )
            for left in (False, True, False):
                step(torch.tensor([left, False, False], device=p.device))
        except Exception as error:  # no compiler, a GPU that Triton doesn't know, ...
            return (str(error).strip() or type(error).__name__).splitlines()[0]
    names = "the parameter", "the gradient", *states, "the number of steps"
    by_kernel, by_torch = (dict(zip(names, tensors, strict=True)) for tensors in found)
    off = compare(by_kernel, by_torch, lambda t: _ERROR.get(t.dtype, 0.02), members=len(wave))
    return f"it gives other numbers ({off[0]})" if off else ""


TRIAL = {"lr": np.array([0.1, 0.02, 0.003]), "weight_decay": np.array([0.2, 0.0, 0.1])}
"""Part of `Rule.trial`."""
