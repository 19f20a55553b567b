"""What callers change between calls: tensors put in place of an array's, and hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning, FusionError

from .serial import make
from .test_verification import CPU

DOUBLE, STEPS, CHANGED, ENDED = torch.float64, 9, 4, 7
"""The change comes when calls are replayed, and may end when they are again."""

Change = Callable[[Any, int], None]
"""Changes an array or a plain module before a step."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))  # type: ignore[no-any-return]


def by_data(module: Any, step: int) -> None:
    if step == CHANGED:
        for p in module.parameters():
            p.data = p.data * 0.9


def by_vector(module: Any, step: int) -> None:
    if step == CHANGED:
        vector = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
        nn.utils.vector_to_parameters(vector * 0.9, module.parameters())


def by_swap(module: Any, step: int) -> None:
    """Use other weights for a while, as averages are evaluated."""
    if step == CHANGED:
        kept = [p.data for p in module.parameters()]
        for p in module.parameters():
            p.data = torch.full_like(p, 0.1)
        module.eval()
        with torch.no_grad():
            module.seen = module(torch.ones(2, 5, dtype=DOUBLE))
        module.train()
        for p, data in zip(module.parameters(), kept, strict=True):
            p.data = data


def by_buffer(module: Any, step: int) -> None:
    if step == CHANGED:
        module.norm.running_mean = module.norm.running_mean + 1
        module.norm.running_var = module.norm.running_var * 2


def by_tensor_hook(module: Any, step: int) -> None:
    if step == CHANGED:
        module.handles = [p.register_hook(lambda grad: grad.clamp(-0.01, 0.01)) for p in module.parameters()]
    if step == ENDED:
        for handle in module.handles:
            handle.remove()


def by_grad_hook(module: Any, step: int) -> None:
    def halve(p: Tensor) -> None:
        assert p.grad is not None
        p.grad.mul_(0.5)

    if step == CHANGED:
        module.handles = [p.register_post_accumulate_grad_hook(halve) for p in module.parameters()]
    if step == ENDED:
        for handle in module.handles:
            handle.remove()


def by_module_hook(module: Any, step: int) -> None:
    if step == CHANGED:
        module.norm.handle = module.norm.register_forward_hook(lambda module, args, out: out * 1.5)
    if step == ENDED:
        module.norm.handle.remove()


CHANGES = (by_data, by_vector, by_swap, by_buffer, by_tensor_hook, by_grad_hook, by_module_hook)


@pytest.mark.pairs
@pytest.mark.each("change", "split")
@pytest.mark.parametrize("accumulate", [False, True], ids=["", "accumulate"])
@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("split", [False, True], ids=["backward", "array(x)"])
@pytest.mark.parametrize("change", CHANGES)
def test_training_goes_on_as_in_plain_modules(change: Change, split: bool, block: int, accumulate: bool) -> None:
    modules = make(Net, 3, DOUBLE, CPU)
    x, y = torch.randn(STEPS, 8, 5, dtype=DOUBLE), torch.randn(STEPS, 8, 3, dtype=DOUBLE)
    array = hfta.fuse(modules)
    array.self_tuning, array.block_size = False, block
    optimizer = hfta.optim.SGD(array, lr=0.1, momentum=0.9)
    others = [torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9) for module in modules]
    for step in range(STEPS):
        change(array, step)
        if split:
            array.losses(F.mse_loss, array(x[step]), y[step]).sum().backward()
        else:
            array.backward(F.mse_loss, x[step], y[step])
        if not accumulate or step % 2:
            optimizer.step()
            optimizer.zero_grad()
        for module, other in zip(modules, others, strict=True):
            change(module, step)
            F.mse_loss(module(x[step]), y[step]).backward()
            if not accumulate or step % 2:
                other.step()
                other.zero_grad()
        if change is by_swap and step >= CHANGED:
            torch.testing.assert_close(array.seen, torch.stack([module.seen for module in modules]))
        for i, module in enumerate(modules):
            own = {name: t[i] for name, t in [*array.named_parameters(), *array.named_buffers()]}
            for name, t in [*module.named_parameters(), *module.named_buffers()]:
                torch.testing.assert_close(own[name], t, rtol=1e-9, atol=1e-10, msg=lambda text, n=name: f"{n}: {text}")


def test_a_step_of_an_optimizer_updates_what_was_put_in_place() -> None:
    modules = make(Net, 2, DOUBLE, CPU)
    array, x = hfta.fuse(modules), torch.randn(8, 5, dtype=DOUBLE)
    optimizer = hfta.optim.SGD(array, lr=0.1)
    array.backward(lambda out, _: out.square().mean(), x)
    by_data(array, CHANGED)
    optimizer.step()
    for i, module in enumerate(modules):
        module(x).square().mean().backward()
        by_data(module, CHANGED)
        torch.optim.SGD(module.parameters(), lr=0.1).step()
        for own, alone in zip(array.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(own[i], alone)


@pytest.mark.parametrize(
    ("put", "named"),
    [
        (lambda array: setattr(next(array.parameters()), "data", torch.zeros(2, 6, 4, dtype=DOUBLE)), "first.weight"),
        (lambda array: setattr(array.norm, "running_var", None), "norm.running_var"),
        (lambda array: setattr(array.norm, "running_var", torch.ones(6, dtype=DOUBLE)), "norm.running_var"),
    ],
    ids=["shape of a parameter", "no buffer", "a buffer without members"],
)
def test_what_can_not_be_put_in_place_is_refused(put: Callable[[Any], None], named: str) -> None:
    array = hfta.fuse(make(Net, 2, DOUBLE, CPU))
    put(array)
    for call in (lambda: array(torch.zeros(4, 5, dtype=DOUBLE)), lambda: array.take_over()):
        with pytest.raises(FusionError, match=named.replace(".", r"\.")):
            call()


def test_hooks_of_the_array_have_no_effect_on_backward_and_this_is_told() -> None:
    array = hfta.fuse(make(Net, 2, DOUBLE, CPU))
    array.register_forward_hook(lambda module, args, out: out * 2)
    x = torch.randn(8, 5, dtype=DOUBLE)
    with pytest.warns(ArrayWarning, match="hooks that are registered on the array"):
        array.backward(F.mse_loss, x, torch.zeros(8, 3, dtype=DOUBLE))


def test_gradients_are_put_back_if_a_call_with_hooks_fails() -> None:
    array, x = hfta.fuse(make(Net, 2, DOUBLE, CPU)), torch.randn(8, 5, dtype=DOUBLE)
    array.backward(F.mse_loss, x, torch.zeros(8, 3, dtype=DOUBLE))
    before = [p.grad.clone() for p in array.parameters() if p.grad is not None]
    for p in array.parameters():
        p.register_hook(lambda grad: None)
    with pytest.raises(FusionError):
        array.backward(lambda out, y: out, x)
    for p, grad in zip(array.parameters(), before, strict=True):
        torch.testing.assert_close(p.grad, grad)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_jit_trace_is_refused() -> None:
    array, x = hfta.fuse(make(Net, 2, DOUBLE, CPU)).eval(), torch.randn(8, 5, dtype=DOUBLE)
    with pytest.raises(FusionError, match=r"torch\.jit\.trace.*array\[i\]"):
        torch.jit.trace(array, (x,), check_trace=False)
    traced = torch.jit.trace(array[1].eval(), (x,))
    torch.testing.assert_close(traced(x), array(x)[1])
