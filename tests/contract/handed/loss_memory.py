"""Kind 3: losses and metrics that keep something between their calls: counters, averages, lists, buffers."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import ChainMap, OrderedDict, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.contract.handed_over import Situation, numbers

X, Y = (numbers(12, n, seed=n).float().double() for n in (4, 1))
"""Numbers that float32 has as well."""
FORMS = ("backward", "losses", "study")
OWN = FORMS[:2]
STEP = 0
SHARED = {"step": 0}
SETTINGS = SimpleNamespace(step=0)


class Counting:
    """A plain object: the weight of the penalty rises with each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return F.mse_loss(output, y) + min(1.0, self.calls / 10) * output.square().mean()

    def method(self, output: Tensor, y: Tensor) -> Tensor:
        return self(output, y)


class Centred(nn.Module):
    """DINO's centre: a buffer that follows the outputs, in place or by a new tensor."""

    center: Tensor

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("center", torch.zeros(1, 1))

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(output - self.center, y)
        with torch.no_grad():
            mean = output.mean(0, keepdim=True)
            if self.in_place:
                self.center.mul_(0.9).add_(mean, alpha=0.1)
            else:
                self.center = 0.9 * self.center + 0.1 * mean
        return loss


class Balanced:
    """The loss over its moving average, a tensor in an attribute that is None at first."""

    def __init__(self) -> None:
        self.average: Tensor | None = None

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(output, y)
        now = loss.detach()
        self.average = now if self.average is None else 0.9 * self.average + 0.1 * now
        return loss / self.average


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        self.n += 1
        return F.mse_loss(output, y) * self.n


class OfClass:
    """The counter is the class's."""

    calls = 0

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        type(self).calls += 1
        return F.mse_loss(output, y) / OfClass.calls


def of_class() -> OfClass:
    OfClass.calls = 0
    return OfClass()


def nonlocal_counter() -> Any:
    step = 0

    def loss(output: Tensor, y: Tensor) -> Tensor:
        nonlocal step
        step += 1
        return F.mse_loss(output, y) + step / 10 * output.abs().mean()

    return loss


def list_in_closure() -> Any:
    history: list[Tensor] = []

    def loss(output: Tensor, y: Tensor) -> Tensor:
        value = F.mse_loss(output, y)
        history.append(value.detach())
        return value * len(history) + sum(history)

    return loss


def dict_of_tensors() -> Any:
    state: dict[str, Any] = {"n": 0}

    def loss(output: Tensor, y: Tensor) -> Tensor:
        state["n"] += 1
        state["mean"] = 0.9 * state.get("mean", 0.0) + 0.1 * output.detach().mean()
        return (output - y + state["mean"]).square().mean() / state["n"]

    return loss


def by_global(output: Tensor, y: Tensor) -> Tensor:
    global STEP
    STEP += 1
    return F.mse_loss(output, y) + STEP / 10 * output.abs().mean()


def global_counter() -> Any:
    global STEP
    STEP = 0
    return by_global


def by_dict(output: Tensor, y: Tensor) -> Tensor:
    SHARED["step"] += 1
    return F.mse_loss(output, y) * SHARED["step"]


def global_dict() -> Any:
    SHARED["step"] = 0
    return by_dict


def by_settings(output: Tensor, y: Tensor) -> Tensor:
    SETTINGS.step += 1
    return F.mse_loss(output, y) * SETTINGS.step


def global_object() -> Any:
    SETTINGS.step = 0
    return by_settings


def by_default(output: Tensor, y: Tensor, seen: list[int]) -> Tensor:
    seen.append(1)
    return F.mse_loss(output, y) * len(seen)


def mutable_default() -> Any:
    def loss(output: Tensor, y: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006
        return by_default(output, y, seen)

    return loss


def function_attribute() -> Any:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        loss.calls += 1  # type: ignore[attr-defined]
        return F.mse_loss(output, y) * loss.calls  # type: ignore[attr-defined]

    loss.calls = 0  # type: ignore[attr-defined]
    return loss


def two_that_share() -> Any:
    """A loss, and an object of it in a list, which is also a key's value."""
    counter = Counting()
    parts = [counter]
    named = {"first": counter}

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return parts[0](output, y) + named["first"].calls * output.abs().mean()

    return loss


def best_so_far() -> Any:
    """Reads a tensor's value, so that members run one by one."""
    best = [float("inf")]

    def loss(output: Tensor, y: Tensor) -> Tensor:
        value = F.mse_loss(output, y)
        best[0] = min(best[0], value.item())
        return value * (1 + best[0])

    return loss


def every_third() -> Any:
    """Changes nothing in its first calls."""
    state = SimpleNamespace(calls=0, weight=1.0)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        state.calls += 1
        if state.calls % 3 == 0:
            state.weight *= 0.5
        return F.mse_loss(output, y) * state.weight

    return loss


def by_globals(output: Tensor, y: Tensor) -> Tensor:
    globals()["STEP"] += 1
    return F.mse_loss(output, y) * STEP


def globals_counter() -> Any:
    global STEP
    STEP = 0
    return by_globals


def numpy_stream() -> Any:
    rng = np.random.default_rng(0)
    return lambda output, y: F.mse_loss(output, y) * rng.random()


def torch_stream() -> Any:
    generator = torch.Generator().manual_seed(0)
    return lambda output, y: F.mse_loss(output + torch.rand((), generator=generator, dtype=output.dtype), y)


def iterator() -> Any:
    numbers = itertools.count(1)
    return lambda output, y: F.mse_loss(output, y) * next(numbers)


def queue() -> Any:
    """The last outputs, as contrastive losses keep them."""
    last: deque[Tensor] = deque(maxlen=3)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        value = F.mse_loss(output, y) + sum((output - old).square().mean() for old in last)
        last.append(output.detach())
        return value

    return loss


def heap() -> Any:
    """Changed by a function that is written in C."""
    smallest: list[float] = []

    def loss(output: Tensor, y: Tensor) -> Tensor:
        heapq.heappush(smallest, -len(smallest))
        return F.mse_loss(output, y) * (1 + len(smallest))

    return loss


class Teacher(nn.Module):
    """Follows the outputs by a module without gradients, through ``.data``."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Linear(1, 1).requires_grad_(False)
        self.mean.weight.data.fill_(0.5)
        self.mean.bias.data.zero_()

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(output, self.mean(y))
        self.mean.bias.data = 0.9 * self.mean.bias.data + 0.1 * output.detach().mean(0)
        return loss


class Ordered:
    """Keeps the last tensors, the newest first, in a dict with an order."""

    def __init__(self) -> None:
        self.last: OrderedDict[int, Tensor] = OrderedDict()

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        value = F.mse_loss(output, y)
        self.last[len(self.last)] = value.detach()
        self.last.move_to_end(len(self.last) - 1, last=False)
        return value * (1 + next(iter(self.last.values())))


class Chained:
    """Counts in one of several dicts."""

    def __init__(self) -> None:
        self.state: ChainMap[str, int] = ChainMap({}, {"n": 0})

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        self.state["n"] += 1
        return F.mse_loss(output, y) * self.state["n"]


class CountingMetric:
    """The mean over the calls so far."""

    def __init__(self) -> None:
        self.total, self.n = 0.0, 0

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        self.n += 1
        self.total = self.total + (output - y).abs().mean()
        return self.total / self.n


SITUATIONS = [
    Situation(3, "attribute", Counting, x=X, y=Y, forms=FORMS),
    Situation(3, "bound method", lambda: Counting().method, x=X, y=Y, forms=OWN, long=("losses",)),
    Situation(3, "partial", lambda: functools.partial(by_default, seen=[]), x=X, y=Y, forms=OWN, long=("losses",)),
    Situation(
        3,
        "positional partial",
        lambda: functools.partial(lambda n, o, y: by_default(o, y, n), []),
        x=X,
        y=Y,
        forms=OWN,
    ),
    Situation(3, "nonlocal", nonlocal_counter, x=X, y=Y, forms=OWN, long=("losses",)),
    Situation(3, "list in a closure", list_in_closure, x=X, y=Y, forms=FORMS, long=("study",)),
    Situation(3, "dict of tensors", dict_of_tensors, x=X, y=Y, forms=OWN),
    Situation(3, "global", global_counter, x=X, y=Y, forms=FORMS, long=("study",)),
    Situation(3, "global dict", global_dict, x=X, y=Y, forms=OWN, long=("losses",)),
    Situation(3, "global object", global_object, x=X, y=Y, forms=OWN, long=("losses",)),
    Situation(3, "mutable default", mutable_default, x=X, y=Y, forms=OWN, long=("losses",)),
    Situation(3, "function attribute", function_attribute, x=X, y=Y, forms=OWN, long=("losses",)),
    Situation(3, "class attribute", of_class, x=X, y=Y, forms=OWN, long=("losses",)),
    Situation(3, "slots", Slotted, x=X, y=Y, forms=OWN, long=("losses",)),
    Situation(3, "shared object", two_that_share, x=X, y=Y, forms=OWN, long=("losses",)),
    Situation(3, "best so far", best_so_far, x=X, y=Y, forms=OWN),
    Situation(3, "every third call", every_third, x=X, y=Y, forms=OWN, long=("losses",)),
    Situation(3, "globals()", globals_counter, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "numpy stream", numpy_stream, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "torch stream", torch_stream, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "iterator", iterator, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "queue", queue, x=X, y=Y, forms=OWN, long=("losses",)),
    Situation(3, "heap", heap, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "teacher", Teacher, x=X, y=Y, forms=OWN),
    Situation(3, "moving average", Balanced, x=X, y=Y, forms=FORMS, long=("study",)),
    Situation(3, "ordered dict", Ordered, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "chained dicts", Chained, x=X, y=Y, forms=FORMS[:1]),
    Situation(3, "buffer", Centred, x=X, y=Y, forms=OWN),
    Situation(3, "buffer in place", lambda: Centred(in_place=True), x=X, y=Y, forms=FORMS),
    Situation(
        3, "metric", lambda: F.mse_loss, metrics=lambda: {"running_mae": CountingMetric()}, x=X, y=Y, forms=("study",)
    ),
]
