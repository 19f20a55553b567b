"""Replayed `array(x)` with a loss of the caller: changes in between, and calls that are not replayed."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.errors import FusionError
from tests.contract.replay import (
    ENTRIES,
    MEMBERS,
    REPLAYED,
    TIGHT,
    compare,
    forget,
    loss_of_all,
    mlp,
    notes,
    one_step,
    pair,
    replayed,
    same,
    warm,
)
from tests.contract.serial import loss_of, plain


def test_a_change_between_forward_and_backward(x: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    warm(array, other, x)
    for a in (array, other):
        given = x.clone()
        loss = loss_of_all(a(given))
        given.add_(1)
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
            loss.backward()
        loss = loss_of_all(a(x))
        with torch.no_grad():
            a.get_parameter("2.weight").add_(1)
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation|has been modified inplace"):
            loss.backward()


def test_a_backward_that_must_compute_again_and_can_t_says_so(x: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    warm(array, other, x)
    loss = loss_of_all(array(x))
    loss.backward(retain_graph=True)
    array.get_submodule("3").p = 0.5
    with pytest.raises(FusionError, match="since then an input or the model has changed"):
        loss.backward()


def test_a_change_of_the_model_before_the_backward(x: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    warm(array, other, x)
    for a in (array, other):
        forget(a)
        loss = loss_of_all(a(x))
        a.eval()
        a.get_submodule("3").p = 0.9
        a(x)
        loss.backward()
    same(array, other)


def test_a_loss_that_is_kept_keeps_no_inputs(device: torch.device) -> None:
    array, other = pair(plain, device)
    given = torch.ones(6, 5, dtype=torch.float64, device=device)
    warm(array, other, given)
    own = given.clone()
    watch = weakref.ref(own)
    loss = loss_of_all(array(own))
    loss.backward()
    del own
    gc.collect()
    assert watch() is None
    assert loss.grad_fn is not None


def test_backward_and_split_form_beside_each_other(x: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    y = torch.ones(6, 3, dtype=x.dtype, device=device)
    for step in range(7):
        for a in (array, other):
            forget(a)
            out = a(x + step)
            a.backward(loss_of, x, y)
            loss_of_all(out).backward()
            a.backward(loss_of, x, y)
        same(array, other)
    assert notes(array) == notes(array, "backward") == REPLAYED


def test_without_gradients(x: Tensor, device: torch.device) -> None:
    array, other = pair(mlp, device)
    y = torch.ones(6, 3, dtype=x.dtype, device=device)
    for mode in (True, False):
        for step in range(6):
            told = []
            for a in (array, other):
                a.train(mode)
                with torch.no_grad():
                    one = a(x + step)
                with torch.inference_mode():
                    two = a(x + step)
                told.append((one, two.clone(), a.evaluate(loss_of, x + step, y)))
                assert not one.requires_grad
            torch.testing.assert_close(told[0], told[1], **TIGHT)
            same(array, other)
    assert notes(array, "without gradients") == REPLAYED


def test_results_without_gradients_are_the_caller_s(x: Tensor, device: torch.device) -> None:
    array, _ = pair(plain, device)
    array.eval()
    with torch.no_grad():
        wanted = array(x).clone()
        for _ in range(6):
            told = array(x)
            assert torch.equal(told, wanted)
            told.add_(1)


@pytest.mark.filterwarnings("ignore:an input .* that requires a gradient goes to all")
def test_somebody_s_transforms(x: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    warm(array, other, x)
    rows = [
        torch.autograd.functional.jacobian(lambda v, a=a: a(v).sum((0, 1)), x, vectorize=vectorize)
        for a in (array, other)
        for vectorize in (False, True)
    ]
    for row in rows[1:]:
        torch.testing.assert_close(rows[0], row, **TIGHT)
    for a in (array, other):
        forget(a)
        with torch.autograd.graph.save_on_cpu():
            out = a(x)
        assert not replayed(out)
        loss_of_all(out).backward()
    same(array, other)


def test_mixed_precision(x: Tensor) -> None:
    array, other = pair(plain, x.device, torch.float32)
    for _ in range(6):
        told = []
        for a in (array, other):
            forget(a)
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                out = a(x.float())
            assert out.dtype == torch.bfloat16
            loss_of_all(out.float()).backward()
            told.append(out)
        assert torch.equal(*told)
        for p, q in zip(array.parameters(), other.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad)
    assert notes(array) == REPLAYED


@pytest.mark.parametrize("entry", ["backward", "array(x)", "without gradients"])
@pytest.mark.parametrize("block", [1, MEMBERS])
def test_weights_that_autocast_keeps_are_not_kept_by_a_recording(entry: str, block: int, x: Tensor) -> None:
    array, other = pair(plain, x.device, torch.float32, block)
    for _ in range(3):
        told = []
        for a in (array, other):
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                for _ in range(4):
                    result = ENTRIES[entry](a, loss_of, x.float(), x[:, :3])
            with torch.no_grad():
                for p in a.parameters():
                    p.sub_(0.05)
            told.append(result)
        torch.testing.assert_close(*told, atol=1e-3, rtol=1e-2)


class Picks(nn.Module):
    """Picks entries by their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.order = nn.Linear(5, 4), [2, 0]

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[:, self.order].sin()


def test_entries_picked_by_their_numbers(x: Tensor, device: torch.device) -> None:
    array, other = pair(Picks, device)
    for step in range(10):
        if step == 6:
            for a in (array, other):
                a._skeleton.order[1] = 3  # type: ignore[union-attr, index, operator]
        for a in (array, other):
            one_step(a, x)
        told = [a.evaluate(lambda o, t: o[[1, 0]], x) for a in (array, other)]
        torch.testing.assert_close(*told, **TIGHT)
        same(array, other)
        assert step != 5 or notes(array) == notes(array, "without gradients") == REPLAYED


class MakesTensors(Picks):
    """Makes a tensor of the value of another."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * torch.tensor([x.detach().sum(), 2.0]).to(x).sum()


@pytest.mark.filterwarnings("ignore:Converting a tensor:UserWarning")
def test_a_tensor_made_of_values_is_no_constant(x: Tensor, device: torch.device) -> None:
    array, other = pair(MakesTensors, device)
    for factor in (1, 1, 1, 1, 1, 2, 3):  # the same at first, as if it were one
        told = [(one_step(a, x * factor), a.backward(loss_of, x * factor, x[:, :4])) for a in (array, other)]
        torch.testing.assert_close(*told, **TIGHT)
        same(array, other)
    reason = "a tensor is made of numbers that may be values of others"
    if device.type != "cpu":
        reason = f"tensors on cpu and {device.type}:0"
    assert notes(array) == notes(array, "backward") == f"not recorded: {reason}"


class Aliased(nn.Module):
    """Gives the same memory twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.inner(x)
        return out, out[:, :2]


class Returns(Aliased):
    """Gives its input back."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(x), x


class Hooked(Aliased):
    """A submodule has a backward hook."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 4)
        self.last.register_full_backward_hook(lambda module, gave, took: None)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.last(self.inner(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [Aliased, Returns, Hooked])
def test_what_is_not_replayed_is_said(kind: type[nn.Module], x: Tensor, device: torch.device) -> None:
    array, other = pair(kind, device)
    compare(array, other, x, times=5)
    assert notes(array).startswith("not recorded: ")


class Doubling(torch.autograd.Function):
    """Its backward writes into what the forward has kept."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (kept,) = ctx.saved_tensors
        kept.data.mul_(0.5)
        return grad * kept


class Scribbling(nn.Module):
    """Uses it, one member at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return Doubling.apply(self.inner(x)).sin()  # type: ignore[no-any-return, no-untyped-call]


def test_a_backward_that_writes_into_the_forward_s_memory(x: Tensor, device: torch.device) -> None:
    array, other = pair(Scribbling, device, block=1)
    compare(array, other, x, times=5)
    assert "the backward of Doubling may differentiate by itself" in notes(array)


def test_the_loss_that_a_person_writes(x: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    y = torch.tensor([0, 1, 2, 0, 1, 2], device=device)
    for _ in range(5):
        for a in (array, other):
            forget(a)
            out = a(x)
            F.cross_entropy(out.flatten(0, 1), y.repeat(MEMBERS)).mul(MEMBERS).backward()
        same(array, other)
    assert notes(array) == REPLAYED
