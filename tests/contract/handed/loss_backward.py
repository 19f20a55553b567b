"""Kind 3: losses whose backward changes what they keep, and losses that keep views of their own tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hfta_nb.errors import FusionError
from tests.contract.handed.loss_memory import FORMS, OWN, X, Y
from tests.contract.handed_over import Situation

COUNT = 0


def _attribute(name: str) -> str:
    """Without what it belongs to, which a study has by another name."""
    return name.partition(".")[2] or name


def backward_of(name: str) -> dict[str, tuple[type[Exception], str]]:
    return dict.fromkeys(FORMS, (FusionError, f"{name.partition('.')[2] or name}: the backward changes"))


def view_of(name: str) -> dict[str, tuple[type[Exception], str]]:
    return dict.fromkeys(FORMS, (FusionError, f"{name.partition('.')[2] or name}: a function .* keeps a view"))


class Kept:
    """Something that a loss keeps, and a loss of an output, a target and itself."""

    def __init__(self, loss: Callable[[Any, Tensor, Tensor], Tensor], **values: Any) -> None:
        self.loss = loss
        self.__dict__.update(values)

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        return self.loss(self, output, y)


def kept(loss: Callable[[Any, Tensor, Tensor], Tensor], **values: Any) -> Callable[[], Kept]:
    return lambda: Kept(loss, **{k: v() for k, v in values.items()})


def counting(own: Any, output: Tensor, y: Tensor) -> Tensor:
    def hook(grad: Tensor) -> None:
        own.calls += 1

    output.register_hook(hook)
    return F.mse_loss(output, y) * (1 + own.calls)


def counting_unread(own: Any, output: Tensor, y: Tensor) -> Tensor:
    def hook(grad: Tensor) -> None:
        own.calls += 1

    output.register_hook(hook)
    return F.mse_loss(output, y)


def late(own: Any, output: Tensor, y: Tensor) -> Tensor:
    own.step += 1
    return counting(own, output, y) if own.step > 4 else F.mse_loss(output, y)


def captured(own: Any, output: Tensor, y: Tensor) -> Tensor:
    """The hook writes into the tensor that the loss had at hand."""
    average = own.average
    output.register_hook(lambda g: (average.mul_(0.9).add_(g.abs().sum(), alpha=0.1), None)[1])
    return F.mse_loss(output, y) * (1 + own.average)


def listed(own: Any, output: Tensor, y: Tensor) -> Tensor:
    norms = own.norms
    output.register_hook(lambda g: (norms.append(g.norm()), None)[1])
    return F.mse_loss(output, y) * (1 + len(own.norms))


def by_closure() -> Any:
    calls = 0

    def loss(output: Tensor, y: Tensor) -> Tensor:
        def hook(grad: Tensor) -> None:
            nonlocal calls
            calls += 1

        output.register_hook(hook)
        return F.mse_loss(output, y) * (1 + calls)

    return loss


def by_global(output: Tensor, y: Tensor) -> Tensor:
    def hook(grad: Tensor) -> None:
        global COUNT
        COUNT += 1

    output.register_hook(hook)
    return F.mse_loss(output, y) * (1 + COUNT)


class Reversal(torch.autograd.Function):
    """Reverses the gradient, and counts on its owner."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, owner: Any) -> Tensor:
        ctx.owner = owner
        return output.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.owner.calls += 1
        return grad, None


def of_function(own: Any, output: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(Reversal.apply(output, own), y) * (1 + own.calls)


class OnClass(torch.autograd.Function):
    """For `vmap`; counts on the class."""

    generate_vmap_rule = True
    calls = 0

    @staticmethod
    def forward(output: Tensor) -> Tensor:
        return output.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        OnClass.calls += 1
        return grad


class ModuleHook(nn.Module):
    """A backward hook of a module within the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.inner = 0, nn.Identity()
        self.inner.register_full_backward_hook(self.hook)

    def hook(self, *_: Any) -> None:
        self.calls += 1

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.inner(output), y) * (1 + self.calls)


class Checkpointed:
    """A checkpoint counts once more in the backward."""

    def __init__(self) -> None:
        self.calls = 0

    def inner(self, output: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return F.mse_loss(output, y)

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        return checkpoint(self.inner, output, y, use_reentrant=False) * (1 + self.calls)


def doubling(output: Tensor, y: Tensor) -> Tensor:
    """A hook that keeps nothing."""
    if output.requires_grad:  # not in validation, where a loop of one's own would fail too
        output.register_hook(lambda g: 2 * g)
    return F.mse_loss(output, y)


class Buffer(nn.Module):
    """Writes into a buffer, or into a view of it that it keeps."""

    buffer: Tensor

    def __init__(self, base: bool) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("buffer", torch.zeros(2, dtype=torch.float64))
        self.row = self.buffer[0]

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            (self.buffer if self.base else self.row).add_(output.mean())
        return F.mse_loss(output, y) * (1 + self.buffer[0] + self.row)


def row_in_closure() -> Any:
    scales = torch.zeros(2, dtype=torch.float64)
    rows = list(scales)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            rows[1].add_(output.mean())
        return F.mse_loss(output, y) * (1 + scales.sum())

    return loss


def of_numpy() -> Any:
    table = np.zeros((2, 2))
    row = table[::-1][0]

    def loss(output: Tensor, y: Tensor) -> Tensor:
        table[1] += 1
        return F.mse_loss(output, y) * (1 + float(row.sum()))

    return loss


def made_in_a_call(own: Any, output: Tensor, y: Tensor) -> Tensor:
    """The view is made by the first call, and written into by the second."""
    if own.buffer is None:
        own.buffer = torch.zeros(2, dtype=torch.float64)
        own.row = own.buffer[0]
    else:
        with torch.no_grad():
            own.row.add_(output.detach().mean())
    return F.mse_loss(output, y) * (1 + own.buffer[0])


def replaced(own: Any, output: Tensor, y: Tensor) -> Tensor:
    """Two names for one memory that nobody writes into."""
    loss = F.mse_loss(output, y) * (1 + own.before + own.last)
    own.before = own.last.detach()
    own.last = output.detach().mean()
    own.again = own.last.detach()
    return loss


def parts_of_one(own: Any, output: Tensor, y: Tensor) -> Tensor:
    """Columns of one tensor, which share no number."""
    with torch.no_grad():
        own.columns[0].add_(output.mean())
    return F.mse_loss(output, y) * (1 + own.columns[0].sum() + own.columns[1].sum())


def zero() -> Tensor:
    return torch.zeros((), dtype=torch.float64)


def columns() -> tuple[Tensor, ...]:
    return torch.zeros(3, 2, dtype=torch.float64).unbind(1)


def on_class(output: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(OnClass.apply(output), y) * (1 + OnClass.calls)


def row(name: str, loss: Callable[[], Any], refused: Any = None, **options: Any) -> Situation:
    return Situation(3, name, loss, x=X, y=Y, refused=refused or {}, **{"forms": OWN, **options})


SITUATIONS = [
    row("hook", kept(counting, calls=int), backward_of("Kept.calls"), forms=FORMS),
    row("hook, unread", kept(counting_unread, calls=int), backward_of("Kept.calls")),
    row("hook, from the fifth step", kept(late, calls=int, step=int), backward_of("Kept.calls")),
    row("hook with a tensor", kept(captured, average=zero), backward_of("Kept.average")),
    row("hook with a list", kept(listed, norms=list), backward_of("Kept.norms")),
    row("hook with a closure", by_closure, backward_of("calls")),
    row("hook with a global", lambda: by_global, backward_of("COUNT")),
    row("hook of a module", ModuleHook, backward_of("ModuleHook.calls")),
    row("own function", kept(of_function, calls=int), backward_of("Kept.calls"), forms=FORMS, long=("study",)),
    row("own function with a class", lambda: on_class, backward_of("OnClass.calls")),
    row("checkpoint", Checkpointed, backward_of("Checkpointed.calls")),
    row("hook that keeps nothing", lambda: doubling, forms=FORMS, long=("study",)),
    row("view", lambda: Buffer(base=False), view_of("Buffer.row"), forms=FORMS),
    row("base of a view", lambda: Buffer(base=True), view_of("Buffer.buffer")),
    row("list of rows", row_in_closure, view_of("rows")),
    row("view of NumPy", of_numpy, view_of("table")),
    row("view made in a call", kept(made_in_a_call, buffer=type(None), row=type(None)), view_of("Kept.row")),
    row("view, replaced", kept(replaced, before=zero, last=zero, again=zero)),
    row("columns", kept(parts_of_one, columns=columns)),
]
