"""Verification: when calls are compared with the plain module, what is compared, and how differences are reported."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.eager import verified_kinds
from hfta_nb.engine.eager.verification import Verification
from hfta_nb.errors import ArrayWarning, StudyError
from hfta_nb.ui.run_phase import RunPhase
from hfta_nb.ui.train_view import details
from tests.contract.serial import make

CPU = torch.device("cpu")


def under_vmap() -> bool:
    return torch._C._functorch.maybe_current_level() is not None


class Switched(nn.Module):
    """Comes to something else under `vmap` than alone, once it is switched."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.wrong = nn.Linear(5, 5), False

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        return h + 1 if self.wrong and under_vmap() else h


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = Switched(), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.inner(x)))  # type: ignore[no-any-return]


def losses(array: FusedArray, form: str, x: Tensor) -> Tensor:
    for p in array.parameters():
        p.grad = None
    if form == "backward":
        return array.backward(F.mse_loss, x, x)  # type: ignore[return-value]
    if form == "evaluate":
        return array.evaluate(F.mse_loss, x, x)  # type: ignore[return-value]
    found = torch.stack([F.mse_loss(out, x) for out in array(x)])
    found.sum().backward()
    return found.detach()


@pytest.mark.parametrize("form", ["backward", "array(x)", "evaluate"])
def test_what_is_recorded_anew_is_compared_anew(form: str, verified: None) -> None:
    modules = make(Around, 3, torch.float64, CPU)
    array, x = hfta.fuse(modules), torch.randn(6, 5, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArrayWarning)
        for _ in range(6):
            losses(array, form, x)
    assert "recorded" in set(array.explain()["how"])
    array._skeleton.inner.wrong = True  # type: ignore[union-attr, assignment]
    with pytest.warns(ArrayWarning, match="`inner`.*off by"):
        found = losses(array, form, x)
    alone = torch.stack([F.mse_loss(module(x), x) for module in modules])
    torch.testing.assert_close(found, alone.detach(), atol=1e-12, rtol=0)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    check = Verification.check
    monkeypatch.setattr(Verification, "check", lambda self, result: seen.append(1) or check(self, result))
    return seen


def test_a_batch_of_another_size_is_compared_but_not_without_end(
    monkeypatch: pytest.MonkeyPatch, verified: None
) -> None:
    seen = counted(monkeypatch)
    array = hfta.fuse(make(lambda: nn.Linear(5, 5), 3, torch.float64, CPU))
    for samples in (6, 4, 6, 4):
        losses(array, "backward", torch.randn(samples, 5, dtype=torch.float64))
    assert len(seen) == 2
    for samples in range(7, 30):
        losses(array, "backward", torch.randn(samples, 5, dtype=torch.float64))
    assert len(seen) == 8


def test_state_that_a_call_leaves_as_it_was_is_compared_once(monkeypatch: pytest.MonkeyPatch, verified: None) -> None:
    seen = counted(monkeypatch)
    array = hfta.fuse(make(lambda: nn.BatchNorm1d(5), 3, torch.float64, CPU))
    x = torch.randn(6, 5, dtype=torch.float64)
    for _ in range(3):
        losses(array, "backward", x)
    assert len(seen) == 2  # the running statistics changed in the first
    array.eval()
    for _ in range(3):
        losses(array, "evaluate", x)
    assert len(seen) == 3


class Blocking(nn.Module):
    """Lets no gradient through to its input under `vmap`; those of its parameters are right."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x.detach() if under_vmap() else x))


@pytest.mark.parametrize("form", ["backward", "array(x)", "array(x), compared at once"])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "per member"])
@pytest.mark.filterwarnings("ignore:an input .* that requires a gradient goes to all")
def test_gradients_of_inputs_are_compared(
    form: str, own: bool, verified: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form.endswith("at once"):
        monkeypatch.setattr(verified_kinds, "_MOST_AWAITED", 0)
    modules = make(Blocking, 3, torch.float64, CPU)
    array, y = hfta.fuse(modules), torch.randn(6, 5, dtype=torch.float64)
    x = torch.randn(*((3,) if own else ()), 6, 5, dtype=torch.float64, requires_grad=True)
    given = hfta.per_member(x) if own else x

    def train() -> None:
        if form == "backward":
            array.backward(F.mse_loss, given, y)
        else:
            torch.stack([F.mse_loss(out, y) for out in array(given)]).sum().backward()

    with pytest.warns(ArrayWarning, match="gradient of input 0"):
        train()
    found, x.grad = x.grad, None
    for i, module in enumerate(modules):
        F.mse_loss(module(x[i] if own else x), y).backward()
    torch.testing.assert_close(found, x.grad, atol=1e-12, rtol=0)


@pytest.mark.parametrize("form", ["backward", "array(x)"])
def test_right_gradients_of_inputs_are_taken_for_right(form: str, verified: None) -> None:
    y = torch.randn(6, 5, dtype=torch.float64)
    array = hfta.fuse(make(lambda: nn.Sequential(nn.Linear(5, 5), nn.Tanh()), 3, torch.float64, CPU))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArrayWarning)
        warnings.filterwarnings("ignore", "an input .* that requires a gradient goes to all")
        for _ in range(4):
            x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
            if form == "backward":
                array.backward(F.mse_loss, x, y)
            else:
                torch.stack([F.mse_loss(out, y) for out in array(x)]).sum().backward()
    assert array.block_size == 3


@pytest.mark.filterwarnings("ignore:an input .* that requires a gradient goes to all")
def test_an_input_that_is_the_target_too_gets_its_gradient_once(verified: None) -> None:
    modules = make(lambda: nn.Linear(5, 5), 3, torch.float64, CPU)
    array, x = hfta.fuse(modules), torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    array.backward(F.mse_loss, x, x)
    found, x.grad = x.grad, None
    for module in modules:
        F.mse_loss(module(x), x).backward()
    torch.testing.assert_close(found, x.grad, atol=1e-12, rtol=0)


class Outside(nn.Module):
    """Draws from NumPy's and Python's own streams, and where `values` says so in a way that `vmap` can't follow."""

    def __init__(self, values: bool) -> None:
        super().__init__()
        self.linear, self.inner = nn.Linear(5, 5), Drawing(values)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.linear(x))  # type: ignore[no-any-return]


class Drawing(nn.Module):
    def __init__(self, values: bool) -> None:
        super().__init__()
        self.values = values

    def forward(self, x: Tensor) -> Tensor:
        h = x * float(np.random.rand()) + random.random()
        if self.values and under_vmap():
            raise RuntimeError("not under vmap")
        return h


@pytest.mark.parametrize("whole", [False, True], ids=["", "one by one"])
@pytest.mark.parametrize("values", [False, True], ids=["", "submodule one by one"])
def test_every_member_draws_the_same_numbers_from_streams_of_the_process(
    values: bool, whole: bool, verified: None
) -> None:
    modules = make(lambda: Outside(values), 3, torch.float64, CPU)
    array, x = hfta.fuse(modules), torch.randn(6, 5, dtype=torch.float64)
    array.block_size = 1 if whole else 3
    np.random.seed(0)
    random.seed(0)
    found = [losses(array, "backward", x) for _ in range(3)]
    for i, module in enumerate(modules):
        np.random.seed(0)
        random.seed(0)
        for own in found:
            torch.testing.assert_close(own[i], F.mse_loss(module(x), x).detach(), atol=1e-12, rtol=0)


class Noisy(torch.autograd.Function):
    """Adds numbers from NumPy's stream to the gradient, as quantization with random rounding does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] + torch.from_numpy(np.random.standard_normal(grads[0].shape))


class NoisyBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Noisy.apply(self.linear(x))


@pytest.mark.filterwarnings("ignore::hfta_nb.errors.ArrayWarning")
def test_numbers_that_a_backward_draws_stay_drawn(verified: None) -> None:
    """The comparison leaves streams of the process as the call alone would leave them."""
    ends = {}
    for verify in ("never", "first"):
        torch.manual_seed(0)
        array = hfta.fuse([NoisyBackward() for _ in range(2)], verify=verify)
        np.random.seed(0)
        array.backward(lambda output, x: output.sum(), torch.ones(4, 3, dtype=torch.float64))
        ends[verify] = np.random.random()
    assert ends["first"] == ends["never"]


def test_a_model_whose_representation_fails_with_a_member_axis_is_trained(self_tuning: None) -> None:
    class Shown(nn.Linear):
        def extra_repr(self) -> str:
            rows, columns = self.weight.shape
            return f"{rows} by {columns}"

    modules = make(lambda: Shown(5, 5), 3, torch.float64, CPU)
    array, x = hfta.fuse(modules), torch.randn(6, 5, dtype=torch.float64)
    for _ in range(4):
        found = losses(array, "backward", x)
    torch.testing.assert_close(found, torch.stack([F.mse_loss(m(x), x) for m in modules]).detach())


# Studies.


def wrong(width: int = 5) -> nn.Module:
    module = Around()
    module.inner.wrong = True
    return module


def study(directory: Path, build: Callable[..., nn.Module] = wrong, **more: Any) -> hfta.Study:
    x = torch.randn(24, 5)
    fixed: dict[str, Any] = {"epochs": 1, "batch_size": 12, "loss": F.mse_loss, "device": "cpu"}
    return hfta.Study(build, {"lr": [1e-3, 1e-2]}, (x, x), directory=directory, **fixed, **more)


@pytest.mark.filterwarnings("ignore::hfta_nb.errors.ArrayWarning")
def test_a_study_tells_what_was_found(tmp_path: Path, verified: None) -> None:
    asked = study(tmp_path / "run")
    told = [event for event in asked.run() if isinstance(event, ev.DifferenceFound)]
    assert [(event.group, event.submodule) for event in told] == [(0, "inner")]
    assert "than alone" in told[0].reason
    assert asked.history.differences == told
    assert any("`inner` runs member by member" in text for text in details(asked.history, RunPhase.FINISHED))
    assert hfta.Study.load(tmp_path / "run", family=wrong).history.differences == told


def test_a_study_need_not_compare(tmp_path: Path, verified: None) -> None:
    asked = study(tmp_path / "run", verify="never")
    assert not [event for event in asked.run() if isinstance(event, ev.DifferenceFound)]
    assert hfta.Study.load(tmp_path / "run", family=wrong).verify == "never"
    assert "verify='never'" in asked.to_code()


def test_a_study_that_is_to_compare_when_it_likes() -> None:
    with pytest.raises(StudyError, match=r"verify: unknown choice.*first, always, never"):
        hfta.Study("mlp", {"lr": [1e-3]}, "iris", verify="sometimes")


class OnlyTogether(nn.Module):
    """Raises an error outside of an array, in its forward or in its backward."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.linear, self.where = nn.Linear(5, 5), where

    def forward(self, x: Tensor) -> Tensor:
        if self.where == "forward" and not under_vmap():
            raise ValueError("only together")
        out: Tensor = self.linear(x)
        return out if under_vmap() or self.where == "forward" else Undifferentiable.apply(out)  # type: ignore[no-any-return, no-untyped-call]


class Undifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        raise ValueError("no gradient")


@pytest.mark.parametrize("form", ["backward", "array(x)", "evaluate"])
def test_a_plain_module_that_raises_where_the_array_does_not_is_told_once(form: str, verified: None) -> None:
    array, x = hfta.fuse([OnlyTogether("forward") for _ in range(3)]), torch.randn(6, 5)
    with pytest.warns(ArrayWarning, match="plain module of member 2 raises.*ValueError: only together"):
        losses(array, form, x)
    assert array.explain()["how"].str.contains("only together").sum() == 1
    losses(array, form, torch.randn(7, 5))  # warns no more


def test_outputs_that_the_plain_module_cannot_differentiate_are_no_reason_to_warn(verified: None) -> None:
    x = torch.randn(6, 5)
    hfta.fuse([OnlyTogether("backward") for _ in range(3)])(x)
    with pytest.warns(ArrayWarning, match="ValueError: no gradient"):
        losses(hfta.fuse([OnlyTogether("backward") for _ in range(3)]), "backward", x)
