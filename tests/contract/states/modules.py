"""The modules, by what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Initialised(nn.Module):
    """Data-dependent initialisation at the first call, by setting or by writing into ``.data``."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.linear, self.log_scale = nn.Linear(5, 5), nn.Parameter(torch.zeros(5))
        self.in_place, self.done = in_place, False

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        if not self.done:
            value = -h.std(0).log()
            if self.in_place:
                self.log_scale.data.copy_(value)
            else:
                self.log_scale.data = value
            self.done = True
        return h * self.log_scale.exp()


class _ByBackward(torch.autograd.Function):
    """Calls the module again in the backward, and differentiates by `torch.autograd.backward`."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, x: Tensor) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            torch.autograd.backward(ctx.module(x), grads[0])
        return None, x.grad


class ByGrad(torch.autograd.Function):
    """The same by `torch.autograd.grad`, as adjoint methods do."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return None, *torch.autograd.grad(ctx.module(x), (x, *ctx.module.parameters()), grads[0])


class Scale(nn.Module):
    """Elementwise: a weight with a member axis too many gives a wrong result, and no error, where that fits."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.weight)


class CallsAgain(nn.Module):
    def __init__(self, inner: nn.Module, by_grad: bool) -> None:
        super().__init__()
        self.first, self.inner, self.by_grad = nn.Linear(5, 5), inner, by_grad

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.by_grad:
            return ByGrad.apply(self.inner, h, *self.inner.parameters())  # type: ignore[no-any-return]
        return _ByBackward.apply(self.inner, h)  # type: ignore[no-any-return]


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.inner = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.3), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)  # type: ignore[no-any-return]


class Rewound(nn.Module):
    """Remembers where its random numbers began, and draws them again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.began = nn.Linear(5, 5), None

    def drawn(self, x: Tensor, again: bool) -> Tensor:
        if not again:
            self.began = torch.get_rng_state()
            return F.dropout(self.linear(x), 0.4, self.training)
        with torch.random.fork_rng():
            torch.set_rng_state(self.began)  # type: ignore[arg-type]
            return F.dropout(self.linear(x), 0.4, self.training)

    def forward(self, x: Tensor) -> Tensor:
        return _Redrawn.apply(self, x, self.linear.weight, self.linear.bias)  # type: ignore[no-any-return]


class _Redrawn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, module: Rewound, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module.drawn(x, False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            of = (x, ctx.module.linear.weight, ctx.module.linear.bias)
            return None, *torch.autograd.grad(ctx.module.drawn(x, True), of, grads[0])


class NoneFirst(nn.Module):
    """A buffer and an attribute that are None until the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(5, 5), None
        self.register_buffer("mean", None)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        own = h.detach().mean(0)
        self.mean = own if self.mean is None else 0.9 * self.mean + 0.1 * own
        self.last = h.detach()
        return h - self.mean


class Growing(nn.Module):
    """A buffer that begins empty and takes the shape of what it sees."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.linear, self.in_place = nn.Linear(5, 5), in_place
        self.register_buffer("memory", torch.zeros(0))
        self.register_buffer("neighbour", torch.ones(3))  # which must not be written over

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        if self.memory.numel() == 0:
            self.memory = self.memory.resize_(h.shape).zero_() if self.in_place else torch.zeros_like(h)
        if self.in_place:
            self.memory.mul_(0.5).add_(h.detach())
        else:
            self.memory = 0.5 * self.memory + h.detach()
        return h + self.memory * self.neighbour.mean()


class Holding(nn.Module):
    """Containers and counters that change without being set anew."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.seen: list[Tensor] = []
        self.counts, self.named = [0], dict[str, float]()

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        self.seen.append(h.detach().mean())
        self.counts[0] += 1
        self.named["last"] = self.counts[0] / 2
        return h * self.counts[0] + (self.seen[-2] if len(self.seen) > 1 else 0) + self.named["last"]


class Averaging(nn.Module):
    """A plain tensor, no buffer, that is written into."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.mean = nn.Linear(5, 5), torch.zeros(5, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        self.mean.mul_(0.9).add_(h.detach().mean(0))
        return h + self.mean


class Drawing(nn.Module):
    """Random streams of its own, torch's and NumPy's, and an array that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.stream, self.numbers = torch.Generator().manual_seed(3), np.random.RandomState(3)
        self.table = np.arange(3.0)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(5, generator=self.stream, dtype=x.dtype)
        return self.linear(x) + noise + float(self.numbers.randn()) + float(self.table.sum())


class Strict(tuple):  # type: ignore[type-arg]
    """A tuple that can be neither compared nor counted, as some libraries have them."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("not comparable")

    def __len__(self) -> int:
        raise TypeError("no length")

    __hash__ = None  # type: ignore[assignment]


class Irreducible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.parts = nn.Linear(5, 5), Strict((1, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Viewed(nn.Module):
    """Views that a single member's strides allow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x).view(len(x), 2, 3).transpose(0, 1)
        return h[0].view(len(x), 3) + h.transpose(0, 1).view(len(x), 6)[:, 3:]


MODULES: dict[str, Callable[[], nn.Module]] = {
    "data set": lambda: Initialised(in_place=False),
    "data written into": lambda: Initialised(in_place=True),
    "backward that calls backward": lambda: CallsAgain(nn.Linear(5, 5), by_grad=False),
    "elementwise, backward": lambda: CallsAgain(Scale(), by_grad=False),
    "backward that calls grad": lambda: CallsAgain(nn.Linear(5, 5), by_grad=True),
    "elementwise, grad": lambda: CallsAgain(Scale(), by_grad=True),
    "reentrant checkpoint": lambda: Checkpointed(reentrant=True),
    "checkpoint": lambda: Checkpointed(reentrant=False),
    "state of random numbers": Rewound,
    "None at first": NoneFirst,
    "buffer that is replaced by a larger": lambda: Growing(in_place=False),
    "buffer that grows": lambda: Growing(in_place=True),
    "containers": Holding,
    "tensor that is no buffer": Averaging,
    "streams": Drawing,
    "tuple without length": Irreducible,
    "views": Viewed,
}
