"""Kind 3: what a loss keeps in two places at once, in iterators, and in objects of libraries."""

from __future__ import annotations

import ctypes
import functools
import itertools
import multiprocessing
import random
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from mmap import mmap
from queue import SimpleQueue
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hfta_nb.errors import FusionError
from tests.contract.handed.loss_memory import FORMS, OWN, X, Y
from tests.contract.handed.loss_parameters import WithBuffer
from tests.contract.handed_over import Situation

NOT_KEPT = (FusionError, "changes a value that can't be kept for each")


def shared_stream() -> Any:
    """One random stream, and one tensor, that two objects draw from and write to."""
    rng, scale = random.Random(0), torch.ones((), dtype=torch.float64)
    two, scales = SimpleNamespace(rng=rng), [scale]

    def loss(output: Tensor, y: Tensor) -> Tensor:
        scale.mul_(0.9).add_(output.detach().mean(), alpha=0.1)
        return F.mse_loss(output, y) * rng.random() * two.rng.random() * scales[0]

    return loss


def decorated() -> Any:
    """`functools.wraps` makes the counter look like a function of torch's."""

    @functools.wraps(F.mse_loss)
    def loss(*args: Any) -> Tensor:
        loss.calls += 1  # type: ignore[attr-defined]
        return F.mse_loss(*args) * loss.calls  # type: ignore[attr-defined]

    loss.calls = 0  # type: ignore[attr-defined]
    return loss


def zipped() -> Any:
    """Iterators of Python's own."""
    first, second = iter([1.0] * 50), zip(itertools.count(1), map(float, range(50)), strict=False)
    return lambda output, y: F.mse_loss(output, y) * (next(first) + sum(next(second)))


def by_context() -> Any:
    """A variable of the context, and one of the thread."""
    step, local = ContextVar("step", default=0), threading.local()
    local.step = 0

    def loss(output: Tensor, y: Tensor) -> Tensor:
        step.set(step.get() + 1)
        local.step += 1
        return F.mse_loss(output, y) * (step.get() + local.step)

    return loss


def scheduled() -> Any:
    """The weight of the loss is the rate of a scheduler."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        optimizer.step()
        scheduler.step()
        return F.mse_loss(output, y) * optimizer.param_groups[0]["lr"]

    return loss


def of_a_loader() -> Any:
    batches = itertools.cycle(DataLoader(list(torch.arange(4.0)), batch_size=2))
    return lambda output, y: F.mse_loss(output, y) * next(batches).mean()


def with_critic() -> Any:
    """Trains a network of its own."""
    critic = nn.Linear(1, 1).double()
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            critic(output.detach()).square().mean().backward()
        optimizer.step()
        return F.mse_loss(output, y) * critic.weight.detach().sum()

    return loss


class InDescriptor:
    """An attribute that a descriptor keeps."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.values: dict[int, float] = {}

    def __get__(self, owner: Any, kind: type | None = None) -> float:
        return self.values.get(id(owner), 1.0)

    def __set__(self, owner: Any, value: float) -> None:
        self.values[id(owner)] = value


def by_descriptor() -> Any:
    class Loss:
        weight = InDescriptor()

        def __call__(self, output: Tensor, y: Tensor) -> Tensor:
            self.weight *= 0.9
            return F.mse_loss(output, y) * self.weight

    return Loss()


def by_proxy() -> Any:
    held = MappingProxyType({"weights": [1.0]})

    def loss(output: Tensor, y: Tensor) -> Tensor:
        held["weights"][0] *= 0.9
        return F.mse_loss(output, y) * held["weights"][0]

    return loss


def weakly() -> Any:
    """As many as are alive."""
    seen, kept = weakref.WeakSet[Any](), list[Any]()

    def loss(output: Tensor, y: Tensor) -> Tensor:
        kept.append(nn.Identity())
        seen.add(kept[-1])
        return F.mse_loss(output, y) * len(seen)

    return loss


def elsewhere(make: Callable[[], Any]) -> Callable[[], Any]:
    """A loss whose counter is memory of another library."""

    def made() -> Any:
        held = make()

        def loss(output: Tensor, y: Tensor) -> Tensor:
            if isinstance(held, SimpleQueue):
                held.put(1)
                return F.mse_loss(output, y) * held.qsize()
            if hasattr(held, "value"):
                held.value += 1
                return F.mse_loss(output, y) * held.value
            held[0] += 1
            return F.mse_loss(output, y) * held[0]

        return loss

    return made


ELSEWHERE: dict[str, Callable[[], Any]] = {
    "queue": SimpleQueue,
    "number of C": lambda: ctypes.c_int(0),
    "array of C": lambda: (ctypes.c_double * 2)(),
    "value of processes": lambda: multiprocessing.Value("i", 0),
    "array of processes": lambda: multiprocessing.Array("d", 2),
    "memory": lambda: memoryview(bytearray(4)),
    "mapped memory": lambda: mmap(-1, 8),
}

SITUATIONS = [
    Situation(3, "batch norm", lambda: WithBuffer(1, affine=False), x=X, y=Y, forms=FORMS, long=("study",)),
    Situation(3, "shared stream", shared_stream, x=X, y=Y, forms=OWN),
    Situation(3, "decorated", decorated, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "zip and map", zipped, x=X, y=Y, forms=FORMS, long=("losses",)),
    Situation(3, "context", by_context, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "scheduler", scheduled, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "loader", of_a_loader, x=X, y=Y, forms=OWN, refused=dict.fromkeys(OWN, NOT_KEPT)),
    Situation(3, "critic", with_critic, x=X, y=Y, forms=OWN, refused=dict.fromkeys(OWN, NOT_KEPT)),
    Situation(3, "descriptor", by_descriptor, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "proxy", by_proxy, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "weak set", weakly, x=X, y=Y, forms=FORMS[:1]),
    *(Situation(3, name, elsewhere(make), x=X, y=Y, forms=FORMS[:1], refused=dict.fromkeys(FORMS[:1], NOT_KEPT))
      for name, make in ELSEWHERE.items()),
]  # fmt: skip
