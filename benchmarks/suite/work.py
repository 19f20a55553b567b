"""The work of a training step, and the least time that it can take: a roofline.

Source: Williams, Waterman, Patterson 2009 (roofline model); operations as `torch.utils.flop_counter` counts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.suite.job import Job
from benchmarks.suite.machine import bandwidth
from benchmarks.suite.shares import Profile, held_back, shares
from benchmarks.suite.tasks import Feed, Task, inputs

STATE_PASSES = 10
"""How often a parameter's bytes move in a step: read forward and backward, its gradient written, and Adam's pass, which
reads parameter, gradient and both moments and writes all but the gradient."""
ACTIVATION_PASSES = 4
"""How often the bytes of an activation kept for the backward move: written, read, and the same for its gradient."""


@dataclass(frozen=True)
class Work:
    """The work of one member's step.

    Attributes:
        flop: matrix products and convolutions, forward and backward, without the optimizer and elementwise work.
        parameter_bytes, activation_bytes, batch_bytes: of parameters; of tensors kept by autograd for the backward; of
            x and y.
    """

    flop: int
    parameter_bytes: int
    activation_bytes: int
    batch_bytes: int

    @classmethod
    def of(cls, job: Job) -> Work:
        """Counted on the plain module."""
        task, (x, y) = job.task, Feed(job.task, job.where)(0)
        module = task.plain_member(0).to(job.where)
        # The counter's table lacks the fused kernels of attention on a CPU.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            _backward(task, module, x, y)
        module = task.member(0).to(job.where)
        kept: dict[int, int] = {}
        own = {p.untyped_storage().data_ptr() for p in module.parameters()}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with saved_tensors_hooks(keep, lambda t: t), job.autocast():
            losses = [update.loss_of(module, x, y) for update in task.updates(dict(module.named_parameters()))]
        del losses
        parameters = sum(p.nbytes for p in module.parameters())
        batch = sum(part.nbytes for part in (*inputs(x), y))
        return cls(counter.get_total_flops(), parameters, sum(kept.values()), batch)

    @property
    def moved_bytes(self) -> int:
        """A lower estimate of the bytes that a member's step moves."""
        return STATE_PASSES * self.parameter_bytes + ACTIVATION_PASSES * self.activation_bytes + self.batch_bytes

    @property
    def working_set(self) -> int:
        """The bytes that a member's step uses: state and activations."""
        return 4 * self.parameter_bytes + self.activation_bytes + self.batch_bytes


def _backward(task: Task, module: nn.Module, x: Any, y: Tensor) -> None:
    """All updates of a step, without the optimizer."""
    named = dict(module.named_parameters())
    for update in task.updates(named):
        update.loss_of(module, x, y).backward(inputs=[named[name] for name in update.trains])


def roofline(work: Work, members: int, step_s: float, peaks: dict[str, Any], seen: Profile | None) -> dict[str, Any]:
    """The least time of a step of all members, what share of the time taken that is, and where the rest goes.

    The bandwidth is that of memory in which ONE member's working set fits (members may take turns in a cache), so the
    bound is a lower one for every mode. ``shares`` and ``held_back`` say where the time went, as `shares` does.

    Args:
        work: of one member.
        step_s: of all.
        peaks: see `machine.peaks`.
        seen: the mode's step in the profiler; None where the work is not torch's in this process.
    """
    operations_s = members * work.flop / peaks["matrix_flop_per_s"]
    bytes_s = members * work.moved_bytes / bandwidth(peaks, work.working_set)
    bound_s = max(operations_s, bytes_s)
    found: dict[str, Any] = {
        "operations_s": operations_s,
        "bytes_s": bytes_s,
        "bytes_s_main_memory": members * work.moved_bytes / peaks["bandwidth"][-1][1],
        "bound": "operations" if operations_s >= bytes_s else "bytes",
        "achieved": bound_s / step_s,
        "calls": seen and seen.calls,
        "calls_share": seen and seen.calls * peaks["operator_s"] / step_s,
        "shares": None,
        "held_back": None,
    }
    if seen is not None:
        found["shares"] = shares(seen)
        found["held_back"] = held_back(found["shares"], seen.step_s, operations_s)
    return found
