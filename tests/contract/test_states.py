"""Models that hold, change and call again values: every member equals its module alone, in both forms of a training
step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.eager.compare_outcomes import Mismatch
from hfta_nb.engine.eager.verification import Verification
from hfta_nb.errors import ArrayWarning, FusionError, MemberError
from tests.contract.serial import make
from tests.contract.states.modules import MODULES

STEPS, RATE = 4, 0.02
LOST = 1e4
CPU = torch.device("cpu")
Gradients = list[Tensor | None]


def alone(module: nn.Module, seed: int, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Gradients]]:
    """The loss and the gradients of each training step, then the output in evaluation."""
    torch.manual_seed(seed)
    for _ in range(STEPS):
        for p in module.parameters():
            p.grad = None
        loss = F.mse_loss(module(x), y)
        loss.backward()
        yield loss.detach(), [None if p.grad is None else p.grad.clone() for p in module.parameters()]
        with torch.no_grad():
            for p in module.parameters():
                if p.grad is not None:
                    p -= RATE * p.grad
    yield module.eval()(x).detach(), []


def together(array: FusedArray, split: bool, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Gradients]]:
    for _ in range(STEPS):
        for p in array.parameters():
            p.grad = None
        if split:
            outputs = array(x)
            losses = torch.stack([F.mse_loss(output, y) for output in outputs])
            losses.sum().backward()
        else:
            losses = array.backward(F.mse_loss, x, y)  # type: ignore[assignment]
        yield losses.detach(), [None if p.grad is None else p.grad.clone() for p in array.parameters()]
        with torch.no_grad():
            for p in array.parameters():
                if p.grad is not None:
                    p -= RATE * p.grad
    yield array.eval()(x).detach(), []


def compare(build: Callable[[], nn.Module], members: int, split: bool, samples: int) -> FusedArray:
    """Train both ways and see that they agree; returns the array."""
    modules = make(build, members, torch.float64, CPU)
    x = torch.randn(samples, 5, dtype=torch.float64)
    y = torch.randn_like(copy.deepcopy(modules[0])(x))
    array = hfta.fuse(modules, list(range(members)))
    found = list(together(array, split, x, y))
    for i, module in enumerate(modules):
        for step, (value, grads) in enumerate(alone(module, i, x, y)):
            where = f"member {i}, step {step}"
            if not value.isfinite().all() or value.abs().max() > LOST:
                break  # training has diverged, and rounding with it
            torch.testing.assert_close(found[step][0][i], value, atol=1e-9, rtol=1e-7, msg=where)
            for own, grad in zip(found[step][1], grads, strict=True):
                if grad is None:
                    assert own is None or not own[i].any(), where
                else:
                    assert own is not None, where
                    torch.testing.assert_close(own[i], grad, atol=1e-9, rtol=1e-7, msg=where)
        else:
            for own, theirs in zip(array[i].buffers(), module.buffers(), strict=True):
                torch.testing.assert_close(own, theirs, atol=1e-9, rtol=1e-7)
    return array


@pytest.mark.pairs
@pytest.mark.parametrize("split", [False, True], ids=["backward", "array(x)"])
@pytest.mark.parametrize(("members", "samples"), [(3, 6), (4, 4)], ids=["", "as many samples as members"])
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.each("name", "split")
@pytest.mark.filterwarnings("ignore:`torch.cpu.amp")
def test_as_alone(name: str, members: int, samples: int, split: bool, verified: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArrayWarning)  # the causes are mended, not only caught
        if name == "checkpoint" and split:  # torch's hooks on saved tensors are seen in the backward only
            warnings.simplefilter("ignore", ArrayWarning)
        compare(MODULES[name], members, split, samples)


# The comparison itself.


class Wrong(nn.Module):
    """Comes to something else under `vmap` than alone, which nobody has foreseen."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.linear, self.where = nn.Linear(5, 5), where
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        off = float(torch._C._functorch.maybe_current_level() is not None)
        h = self.linear(x)
        if self.where == "output":
            h = h + off
        elif self.where == "gradient":
            h = h * (1 - off) + off * h.detach()
        elif self.where == "buffer":
            self.count += off
        elif self.where == "attribute":
            self.note = off
        elif self.where == "random numbers" and off:
            torch.rand(())
        return torch.tanh(h)


class Around(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(5, 5), Wrong(where), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(self.first(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("split", [False, True], ids=["backward", "array(x)"])
@pytest.mark.parametrize("where", ["output", "gradient", "buffer", "attribute", "random numbers"])
def test_a_difference_is_told_and_mended_in_its_submodule(where: str, split: bool, verified: None) -> None:
    with pytest.warns(ArrayWarning, match="than alone.*explain") as told:
        array = compare(lambda: Around(where), 3, split, 6)
    assert len(told) <= 2  # once in training, and once in evaluation
    if where != "random numbers":
        assert list(array.settings.paths) == ["inner"]
    table = array.explain()
    assert table["how"].str.contains("than alone").any()


def test_what_can_t_be_mended_is_refused(monkeypatch: pytest.MonkeyPatch, verified: None) -> None:
    def differs(self: Verification, result: object) -> bool:
        raise Mismatch("member 2 comes to another result 0 than alone", None)

    monkeypatch.setattr(Verification, "check", differs)
    modules = make(lambda: nn.Linear(5, 5), 3, torch.float64, CPU)
    array = hfta.fuse(modules)
    x = torch.randn(6, 5, dtype=torch.float64)
    with pytest.raises(FusionError, match="another result 0 than alone; the plain module may give"):
        array.backward(F.mse_loss, x, x)
    assert all(p.grad is None for p in array.parameters())
    assert array.block_size == 3
    array.verify = "never"
    array.backward(F.mse_loss, x, x)


def test_gradients_that_were_there_are_as_before_after_a_difference(verified: None) -> None:
    modules = make(lambda: Around("output"), 3, torch.float64, CPU)
    x = torch.randn(6, 5, dtype=torch.float64)
    right = hfta.fuse(modules)
    with pytest.warns(ArrayWarning):
        right.backward(F.mse_loss, x, x)
    once = [p.grad.clone() for p in right.parameters() if p.grad is not None]
    twice = hfta.fuse(modules)
    for p, grad in zip(twice.parameters(), once, strict=True):
        p.grad = grad.clone()
    with pytest.warns(ArrayWarning):
        twice.backward(F.mse_loss, x, x)
    for p, grad in zip(twice.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * grad, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("when", "calls"), [("never", 0), ("first", 1), ("always", 5)])
def test_when_calls_are_compared(when: str, calls: int, monkeypatch: pytest.MonkeyPatch, verified: None) -> None:
    seen: list[int] = []
    check = Verification.check
    monkeypatch.setattr(Verification, "check", lambda self, result: seen.append(1) or check(self, result))
    modules = make(lambda: nn.Linear(5, 5), 3, torch.float64, CPU)
    array = hfta.fuse(modules, verify=when)
    x = torch.randn(6, 5, dtype=torch.float64)
    for _ in range(5):
        array.backward(F.mse_loss, x, x)
    assert len(seen) == calls


def test_a_call_of_another_kind_is_compared_too(monkeypatch: pytest.MonkeyPatch, verified: None) -> None:
    seen: list[int] = []
    check = Verification.check
    monkeypatch.setattr(Verification, "check", lambda self, result: seen.append(1) or check(self, result))
    array = hfta.fuse(make(lambda: nn.Linear(5, 5), 3, torch.float64, CPU))
    x = torch.randn(6, 5, dtype=torch.float64)
    array(x)
    array.backward(F.mse_loss, x, x)
    array.eval()
    array.evaluate(F.mse_loss, x, x)
    array(x.unsqueeze(1))
    assert len(seen) == 4


def test_a_model_that_is_chaotic_alone_is_not_taken_for_different(verified: None) -> None:
    class Chaotic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.sigmoid(self.linear(x))
            for _ in range(60):  # the logistic map: errors double at every step
                h = 3.99 * h * (1 - h)
            return h

    modules = make(Chaotic, 3, torch.float32, CPU)
    array, x = hfta.fuse(modules), torch.randn(6, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArrayWarning)
        array(x)
    assert array.block_size == 3


def test_a_memo_that_only_the_first_of_a_class_has_filled_keeps_nothing_apart() -> None:
    class Inspector:
        known: ClassVar[dict[str, int]] = {}

        def __init__(self) -> None:
            self.kind, self._memo = "sum", {}
            if not Inspector.known:
                Inspector.known["message"] = self._memo["message"] = 1

    class Passing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.inspector = nn.Linear(5, 5), Inspector()

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    modules = make(Passing, 3, torch.float64, CPU)
    assert hfta.why_not(modules[0], modules[1]) is None
    assert hfta.fuse(modules).engine.architectures is None
    modules[1].inspector.kind = "mean"
    assert "inspector" in str(hfta.why_not(modules[0], modules[1]))


class _Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        raise ValueError("no way back")


def test_an_error_of_the_backward_is_not_told_as_one_of_the_loss() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            return _Failing.apply(self.linear(x))  # type: ignore[no-any-return]

    array, x = hfta.fuse(make(Failing, 3, torch.float64, CPU)), torch.randn(6, 5, dtype=torch.float64)
    with pytest.raises(MemberError, match="member 0, the backward pass: ValueError: no way back"):
        array.backward(F.mse_loss, x, x)


def test_a_setting_that_is_none_is_an_error() -> None:
    with pytest.raises(FusionError, match="verify: unknown choice; got 'sometimes'; accepted: first, always, never"):
        hfta.fuse(make(lambda: nn.Linear(5, 5), 2, torch.float32, CPU), verify="sometimes")
