"""Gradients of `array(x)` are compared in the caller's backward, before they reach `.grad`."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.eager import member_gradients
from hfta_nb.errors import ArrayWarning, FusionError

from .serial import make
from .test_verification import CPU, under_vmap

DOUBLE = torch.float64


class Halved(nn.Module):
    """Under `vmap`, one parameter gets half its gradient; outputs are right."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.first.bias
        if under_vmap():
            bias = (bias + bias.detach()) / 2
        return self.last(torch.tanh(F.linear(x, self.first.weight, bias)))


class Overwriting(nn.Module):
    """Under `vmap`, or alone, writes into what its backward needs."""

    def __init__(self, together: bool) -> None:
        super().__init__()
        self.inner, self.together = nn.Linear(5, 5), together

    def forward(self, x: Tensor) -> Tensor:
        found = torch.sigmoid(self.inner(x))
        return found.mul_(1) if under_vmap() == self.together else found


class Amplifying(nn.Module):
    """Outputs and gradients depend on last bits, which are others under `vmap`; one gradient may be wrong there."""

    def __init__(self, halved: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.halved = nn.Linear(5, 5), nn.Linear(5, 5), halved

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if under_vmap():
            hidden = hidden * (1 + torch.finfo(hidden.dtype).eps)
        bias = self.last.bias
        if under_vmap() and self.halved:
            bias = (bias + bias.detach()) / 2
        return F.linear(torch.sin(1e8 * hidden), self.last.weight, bias)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 5), nn.Sigmoid())


def of_serial(modules: list[nn.Module], loss: Callable[[nn.Module], Tensor]) -> list[list[Tensor | None]]:
    for module in modules:
        module.zero_grad()
        loss(module).backward()
    return [[p.grad for p in module.parameters()] for module in modules]


def assert_grads(array: hfta.FusedArray, expected: list[list[Tensor | None]]) -> None:
    for place, parameter in enumerate(array.parameters()):
        for member, grads in enumerate(expected):
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad[member], grads[place], atol=1e-12, rtol=1e-9)


def relative_error(array: hfta.FusedArray, expected: list[list[Tensor | None]], place: int) -> float:
    """The largest difference of a parameter's gradients, relative to the largest gradient."""
    grad, alone = list(array.parameters())[place].grad, torch.stack([own[place] for own in expected])  # type: ignore[arg-type]
    assert grad is not None
    return float((grad - alone).abs().max() / alone.abs().max())


def compared_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each separate call that computes gradients for a comparison."""
    seen: list[int] = []
    outcome = member_gradients.MemberGradients.outcome
    monkeypatch.setattr(member_gradients.MemberGradients, "outcome", lambda self: seen.append(1) or outcome(self))
    return seen


def test_wrong_gradients_are_mended_before_they_reach_grad(verified: None) -> None:
    modules, x = make(Halved, 3, DOUBLE, CPU), torch.randn(6, 5, dtype=DOUBLE)
    array = hfta.fuse(modules)
    out = array(x)
    with pytest.warns(ArrayWarning, match=r"gradient of first\.bias.*off by"):
        out.square().sum().backward()
    expected = of_serial(modules, lambda module: module(x).square().sum())
    assert_grads(array, expected)
    array.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArrayWarning)
        array(x).square().sum().backward()
    assert_grads(array, expected)


def test_a_backward_that_fails_is_mended(verified: None) -> None:
    modules, x = make(lambda: Overwriting(True), 3, DOUBLE, CPU), torch.randn(6, 5, dtype=DOUBLE)
    array = hfta.fuse(modules)
    for _ in range(4):
        array.zero_grad()
        array(x).square().sum().backward()
        assert_grads(array, of_serial(modules, lambda module: module(x).square().sum()))


def test_a_plain_module_that_cannot_be_differentiated_is_told_once(verified: None) -> None:
    array, x = hfta.fuse(make(lambda: Overwriting(False), 3, DOUBLE, CPU)), torch.randn(6, 5, dtype=DOUBLE)
    with pytest.warns(ArrayWarning, match="raises where the array does not"):
        array(x).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArrayWarning)
        array(x).sum().backward()


@pytest.mark.parametrize("calls", [1, 4])
def test_right_gradients_cost_no_other_call(calls: int, verified: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = compared_at_once(monkeypatch)
    modules, x = make(plain, 3, DOUBLE, CPU), torch.randn(6, 5, dtype=DOUBLE)
    array = hfta.fuse(modules)
    for _ in range(calls):
        array.zero_grad()
        array(x).square().sum().backward()
    assert_grads(array, of_serial(modules, lambda module: module(x).square().sum()))
    assert not seen


def test_gradients_that_depend_on_last_bits_cost_no_other_call(verified: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = compared_at_once(monkeypatch)
    modules, x = make(Amplifying, 3, DOUBLE, CPU), torch.randn(6, 5, dtype=DOUBLE)
    array = hfta.fuse(modules)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArrayWarning)
        array(x).square().sum().backward()
    expected = of_serial(modules, lambda module: module(x).square().sum())
    assert 1e-9 < relative_error(array, expected, 0) < 1e-5
    assert not seen


def test_a_wrong_gradient_beside_such_ones_is_mended(verified: None) -> None:
    modules, x = make(lambda: Amplifying(halved=True), 3, DOUBLE, CPU), torch.randn(6, 5, dtype=DOUBLE)
    array = hfta.fuse(modules)
    with pytest.warns(ArrayWarning, match=r"gradient of last\.bias.*off by"):
        array(x).square().sum().backward()
    assert relative_error(array, of_serial(modules, lambda module: module(x).square().sum()), 3) < 1e-5


@pytest.mark.parametrize("loss", [lambda out: None, lambda out: out[0].sum()], ids=["no backward", "of one member"])
def test_a_call_whose_gradients_nobody_saw_is_not_taken_for_right(
    loss: Callable[[Tensor], Tensor | None], verified: None
) -> None:
    modules, x = make(Halved, 3, DOUBLE, CPU), torch.randn(6, 5, dtype=DOUBLE)
    array = hfta.fuse(modules)
    total = loss(array(x))
    if total is not None:
        total.backward()
        array.zero_grad()
    with pytest.warns(ArrayWarning, match=r"gradient of first\.bias"):
        array(x).square().sum().backward()
    assert_grads(array, of_serial(modules, lambda module: module(x).square().sum()))


def test_calls_without_backward_are_compared_at_once_in_the_end(
    verified: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = compared_at_once(monkeypatch)
    array = hfta.fuse(make(plain, 3, DOUBLE, CPU))
    x = torch.randn(6, 5, dtype=DOUBLE)
    for _ in range(5):
        array(x)
    assert len(seen) == 1


def test_two_calls_before_one_backward(verified: None) -> None:
    modules = make(Halved, 3, DOUBLE, CPU)
    x, y = torch.randn(2, 6, 5, dtype=DOUBLE)
    array = hfta.fuse(modules)
    with pytest.warns(ArrayWarning, match=r"gradient of first\.bias"):
        (array(x) * array(y)).sum().backward()
    assert_grads(array, of_serial(modules, lambda module: (module(x) * module(y)).sum()))


@pytest.mark.parametrize("build", [plain, Halved])
@pytest.mark.filterwarnings("ignore::hfta_nb.errors.ArrayWarning")
def test_gradients_are_differentiable(build: Callable[[], nn.Module], verified: None) -> None:
    modules, x = make(build, 3, DOUBLE, CPU), torch.randn(6, 5, dtype=DOUBLE)
    array = hfta.fuse(modules)

    def penalty(loss: Tensor, parameters: list[nn.Parameter]) -> Tensor:
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        return torch.stack([g.square().sum() for g in grads]).sum() + loss

    penalty(array(x).square().sum(), list(array.parameters())).backward()
    assert_grads(array, of_serial(modules, lambda m: penalty(m(x).square().sum(), list(m.parameters()))))


def test_a_kept_graph_is_differentiated_again(verified: None) -> None:
    modules, x = make(plain, 3, DOUBLE, CPU), torch.randn(6, 5, dtype=DOUBLE)
    array = hfta.fuse(modules)
    loss = array(x).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert_grads(array, of_serial(modules, lambda module: 2 * module(x).square().sum()))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_outputs_may_be_changed_in_place(verified: None) -> None:
    modules, x = make(lambda: nn.Linear(5, 5), 3, DOUBLE, CPU), torch.randn(6, 5, dtype=DOUBLE)
    array = hfta.fuse(modules)
    torch.relu_(array(x)).square().sum().backward()
    assert_grads(array, of_serial(modules, lambda module: torch.relu(module(x)).square().sum()))


def test_the_backward_within_autocast_of_the_forward_only(verified: None) -> None:
    modules, x = make(Halved, 3, torch.float32, CPU), torch.randn(6, 5)
    array = hfta.fuse(modules)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = array(x)
    with pytest.warns(ArrayWarning, match=r"gradient of first\.bias"):
        out.float().square().sum().backward()
    for i, module in enumerate(modules):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            alone = module(x)
        alone.float().square().sum().backward()
        for parameter, own in zip(array.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad[i], own.grad, atol=1e-5, rtol=1e-2)  # type: ignore[index]


@pytest.mark.parametrize("change", ["input", "mode"])
def test_what_cannot_be_repeated_is_refused(change: str, verified: None) -> None:
    array, x = hfta.fuse(make(Halved, 3, DOUBLE, CPU)), torch.randn(6, 5, dtype=DOUBLE)
    out = array(x)
    if change == "mode":
        array.eval()
    else:
        x.mul_(1)
    with pytest.raises(FusionError, match="since then an input or the array has changed"):
        out.square().sum().backward()


class Keeping(nn.Module):
    """Holds on to a part of its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = torch.tanh(self.first(x))
        return self.last(self.hidden)  # type: ignore[no-any-return]


class Hooked(nn.Module):
    """Counts its backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.backwards = nn.Linear(5, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        found = torch.tanh(self.inner(x))
        if found.requires_grad:
            found.register_hook(self.count)  # type: ignore[no-untyped-call]
        return found

    def count(self, grad: Tensor) -> None:
        self.backwards += 1


@pytest.mark.parametrize("build", [Keeping, Hooked])
@pytest.mark.filterwarnings("ignore::hfta_nb.errors.ArrayWarning")
def test_a_graph_that_the_model_has_to_do_with_is_compared_at_once(
    build: Callable[[], nn.Module], verified: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = compared_at_once(monkeypatch)
    modules, x = make(build, 3, DOUBLE, CPU), torch.randn(6, 5, dtype=DOUBLE)
    array = hfta.fuse(modules)
    out = array(x)
    assert seen
    out.square().sum().backward()
    assert_grads(array, of_serial(modules, lambda module: module(x).square().sum()))
    if build is Hooked:
        assert [array[i].backwards for i in range(3)] == [1, 1, 1]


def test_no_call_imports_the_symbolic_shapes_of_torch() -> None:
    """Their import takes longer than many models' first call."""
    code = """
import sys, torch, hfta_nb as hfta
array = hfta.fuse([torch.nn.Linear(3, 2) for _ in range(3)])
x = torch.ones(4, 3)
for _ in range(6):
    array(x).square().sum().backward()
    array(x.requires_grad_()).square().sum().backward()
    array.backward(lambda out, y: (out - y).square().sum(), x.detach(), torch.ones(4, 2))
print(sorted({"sympy", "torch.fx.experimental.symbolic_shapes"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]"]
