"""A job for a mode: the members, their learning rates, the device, the precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.suite.tasks import Task, task
from hfta_nb.train.step import Precision

PRECISIONS = ("float32", "tf32", "bf16", "fp16")
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class UnavailableError(Exception):
    """A mode or a row cannot run here; the message is the reason."""


@dataclass(frozen=True)
class Job:
    """The members to train, in a form that can be sent to another process.

    Attributes:
        model: name of the task.
        members: how many.
        precision: one of `PRECISIONS`; bf16 and fp16 are torch's autocast, fp16 with gradient scaling.
        device: as torch names it.
        own_lr: each member has its own learning rate, as in a sweep; else all have 1e-3.
        quick: the smallest size of the task.
        check_steps: steps whose losses are compared.
    """

    model: str
    members: int
    precision: str = "float32"
    device: str = "cpu"
    own_lr: bool = True
    quick: bool = False
    check_steps: int = 10

    @property
    def task(self) -> Task:
        """The architecture."""
        return task(self.model, self.device, self.quick)

    @property
    def lrs(self) -> list[float]:
        """A learning rate per member: from 3e-4 to 3e-3 in equal ratios, or 1e-3 for all."""
        if self.members == 1 or not self.own_lr:
            return [1e-3] * self.members
        return [3e-4 * 10 ** (i / (self.members - 1)) for i in range(self.members)]

    @property
    def where(self) -> torch.device:
        return torch.device(self.device)

    @property
    def half(self) -> torch.dtype | None:
        """The dtype of autocast; None without."""
        return HALF.get(self.precision)

    @property
    def arithmetic(self) -> Precision:
        """The precision as in a study; serial training uses it as well."""
        return Precision("fp32" if self.precision == "float32" else self.precision, self.where)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Torch's autocast if the precision uses it."""
        return self.arithmetic.autocast()

    def check(self) -> None:
        """Check that this device supports the job.

        Raises:
            UnavailableError: with the reason.
        """
        if self.precision == "tf32" and self.where.type == "cpu":
            raise UnavailableError("a CPU has no tf32")
        if self.where.type == "cuda" and not torch.cuda.is_available():
            raise UnavailableError("torch sees no GPU")


@contextlib.contextmanager
def numbers(job: Job) -> Iterator[None]:
    """Compute float32 products according to the precision within the context."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before, benchmark = (matmul.allow_tf32, cudnn.allow_tf32), cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = job.precision == "tf32"
    cudnn.benchmark = True
    try:
        yield
    finally:
        (matmul.allow_tf32, cudnn.allow_tf32), cudnn.benchmark = before, benchmark
