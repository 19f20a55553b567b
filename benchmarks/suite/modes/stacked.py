"""`torch.func.vmap` as an experienced user writes it: stacked states, `functional_call`, `grad_and_value`, stacked
Adam."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.suite.job import Job
from benchmarks.suite.modes.base import Mode, table
from benchmarks.suite.modes.serial import adam
from benchmarks.suite.tasks import Feed, Update

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


class Stacked(Mode):
    """Gradients of all members in one vmapped call.

    If all members have the same learning rate, torch's own fused Adam steps the stacked parameters, as Adam is
    elementwise; otherwise `StackedAdam` does. Buffers outside of the `state_dict` are the same in all members (masks,
    positions) and stay unstacked.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        task = job.task
        self.notes: dict[str, str] = {}
        if task.fallback is not None:
            self.notes["recurrence"] = "the recurrence is written out, as vmap can't run torch's kernel"
        modules = [task.plain_member(i).to(job.where) for i in range(job.members)]
        parameters, buffers = stack_module_state(modules)
        kept = set(modules[0].state_dict())
        self.base, self.feed = modules[0], Feed(task, job.where)
        self.parameters = {k: v.detach() for k, v in parameters.items()}
        self.buffers = {k: v for k, v in buffers.items() if k in kept}
        self.updates = task.updates(self.parameters)
        self.optimizers = [self._optimizer([self.parameters[name] for name in u.trains]) for u in self.updates]
        self.scaler = torch.amp.GradScaler(job.where.type) if job.precision == "fp16" else None
        self.own = self.gradients = [self._gradients(update) for update in self.updates]
        self._choose_attention()
        if job.half is not None and not self._runs():
            self._norms_in_float32()
            self._choose_attention()
        self.note = "; ".join(self.notes.values())

    def _optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        lrs = set(self.job.lrs)
        return adam(parameters, lrs.pop()) if len(lrs) == 1 else StackedAdam(parameters, self.job.lrs)

    def _gradients(self, update: Update) -> Callable[..., Any]:
        """From trained parameters, others, buffers, x, y and a scale to gradients and losses."""
        job, base = self.job, self.base

        def loss(trained: Any, others: Any, buffers: Any, x: Any, y: Tensor, scale: Tensor | None) -> Any:
            def module(*args: Any, **words: Any) -> Any:
                return functional_call(base, ({**trained, **others}, buffers), args, words)

            with job.autocast():
                found = update.loss_of(module, x, y)
            return (found if scale is None else found * scale), found.detach()

        return vmap(grad_and_value(loss, has_aux=True), in_dims=(0, 0, 0, None, None, None))

    def train(self, steps: int) -> list[Tensor]:
        return [self._step(number) for number in range(self.done, self.done + steps)]

    def losses(self, held: list[Tensor]) -> list[list[float]]:
        return table(held)

    def _choose_attention(self) -> None:
        """For attention: torch's own choice of kernel, or the one from plain operations if that is faster.

        `vmap` has no rule for the fused kernel on a CPU and calls it once per member, or cannot run it at all.
        """
        if not any(isinstance(m, torch.nn.MultiheadAttention) for m in self.base.modules()):
            return
        [own], (x, y) = self.own, self.feed(0)

        def plain(*args: Any) -> Any:
            with sdpa_kernel(SDPBackend.MATH):
                return own(*args)

        candidates = {"torch's own choice of kernel": own, "plain operations": plain}
        took = dict.fromkeys(candidates, math.inf)
        buffers = {k: v.clone() for k, v in self.buffers.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            for name in [*candidates] * 3:
                with contextlib.suppress(RuntimeError):  # the fused kernel under bf16, for example
                    self.synchronise()
                    begin_s = time.perf_counter()
                    candidates[name](self.parameters, {}, buffers, x, y, None)
                    self.synchronise()
                    took[name] = min(took[name], time.perf_counter() - begin_s)
        best = min(took, key=lambda name: took[name])
        self.gradients = [candidates[best]]
        self.notes["attention"] = f"attention by {best}, the faster of two"

    def _runs(self) -> bool:
        """True if the gradients of every update can be computed."""
        x, y = self.feed(0)
        buffers = {k: v.clone() for k, v in self.buffers.items()}
        try:
            for update, gradients_of in zip(self.updates, self.gradients, strict=True):
                gradients_of(*self._parted(update), buffers, x, y, None)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return False
        return True

    def _norms_in_float32(self) -> None:
        """Norms in float32: `vmap`'s rules cannot mix half precision with float32 parameters, which torch's kernels
        can."""
        half = self.job.half

        def before(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
            return (args[0].float(),)

        def after(_: nn.Module, args: Any, output: Tensor) -> Tensor:
            return output.to(half)

        for module in self.base.modules():
            if isinstance(module, _NORMS):
                module.register_forward_pre_hook(before)
                module.register_forward_hook(after)
        self.notes["norms"] = "norms in float32, as vmap can't mix precisions in them"

    def _parted(self, update: Update) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The parameters that an update trains, and the others."""
        trained = {name: self.parameters[name] for name in update.trains}
        return trained, {name: value for name, value in self.parameters.items() if name not in trained}

    def _step(self, number: int) -> Tensor:
        x, y = self.feed(number)
        scale = None if self.scaler is None else self.scaler.scale(torch.ones((), device=self.job.where))
        found = []
        for update, gradients_of, optimizer in zip(self.updates, self.gradients, self.optimizers, strict=True):
            trained, others = self._parted(update)
            gradients, (_, losses) = gradients_of(trained, others, self.buffers, x, y, scale)
            for name, parameter in trained.items():
                parameter.grad = gradients[name]
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
            found.append(losses)
        if self.scaler is not None:
            self.scaler.update()
        return found[0] if len(found) == 1 else torch.stack(found).sum(0)


class StackedCompiled(Stacked):
    """The same, with the vmapped call compiled by `torch.compile`."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.gradients = [torch.compile(one, dynamic=False) for one in self.gradients]


class StackedAdam(torch.optim.Optimizer):
    """Adam over stacked parameters ``[M, ...]`` with a learning rate per member, in torch's multi-tensor operations.

    Args:
        parameters: the stacked tensors; their `.grad` is read.
        lrs: a learning rate per member.

    Source: Kingma and Ba 2015, algorithm 1, with the bias corrections where `torch.optim.Adam` has them.
    """

    def __init__(
        self, parameters: Iterable[Tensor], lrs: list[float], betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        super().__init__(list(parameters), {"betas": betas, "eps": 1e-8})
        self.tensors: list[Tensor] = self.param_groups[0]["params"]
        self.means = [torch.zeros_like(p) for p in self.tensors]
        self.squares = [torch.zeros_like(p) for p in self.tensors]
        shapes = [(-1,) + (1,) * (p.ndim - 1) for p in self.tensors]
        self.minus_lrs = [p.new_tensor([-lr for lr in lrs]).view(s) for p, s in zip(self.tensors, shapes, strict=True)]
        self.count = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        gradients = [p.grad for p in self.tensors]
        (beta1, beta2), eps = self.param_groups[0]["betas"], self.param_groups[0]["eps"]
        self.count += 1
        torch._foreach_lerp_(self.means, gradients, 1 - beta1)
        torch._foreach_mul_(self.squares, beta2)
        torch._foreach_addcmul_(self.squares, gradients, gradients, 1 - beta2)
        roots = torch._foreach_sqrt(self.squares)
        torch._foreach_div_(roots, (1 - beta2**self.count) ** 0.5)
        torch._foreach_add_(roots, eps)
        steps = torch._foreach_div(self.means, roots)
        torch._foreach_mul_(steps, 1 / (1 - beta1**self.count))
        torch._foreach_mul_(steps, self.minus_lrs)
        torch._foreach_add_(self.tensors, steps)
