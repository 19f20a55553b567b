"""Kind 3: what a loss keeps in two places at once, in iterators, and in objects of libraries."""

from __future__ import annotations

import functools
import itertools
import random
import threading
from contextvars import ContextVar
from types import SimpleNamespace
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


SITUATIONS = [
    Situation(3, "batch norm", lambda: WithBuffer(1, affine=False), x=X, y=Y, forms=FORMS, long=("study",)),
    Situation(3, "shared stream", shared_stream, x=X, y=Y, forms=OWN),
    Situation(3, "decorated", decorated, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "zip and map", zipped, x=X, y=Y, forms=FORMS, long=("losses",)),
    Situation(3, "context", by_context, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "scheduler", scheduled, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "loader", of_a_loader, x=X, y=Y, forms=OWN, refused=dict.fromkeys(OWN, NOT_KEPT)),
    Situation(3, "critic", with_critic, x=X, y=Y, forms=OWN, refused=dict.fromkeys(OWN, NOT_KEPT)),
]
