"""Gradient clipping per member equals torch's on each member alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import OptimError
from tests.contract.serial import make

CPU = torch.device("cpu")
SIZES = [1e-3, 1.0, 50.0]


class Mixed(nn.Module):
    """Parameters of two dtypes, of all numbers of axes, one that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(4, 3))
        self.unused = nn.Parameter(torch.randn(7))
        self.b = nn.Parameter(torch.randn(5))
        self.c = nn.Parameter(torch.randn(()))
        self.d = nn.Parameter(torch.randn(2, 3, 2))


def _mixed(second: torch.dtype, dtype: torch.dtype, device: torch.device) -> list[nn.Module]:
    modules = make(Mixed, 3, dtype, device)
    for module in modules:
        module.d.data = module.d.data.to(second)
    return modules


def _fill(array: nn.Module, modules: list[nn.Module], lacking: dict[str, list[int]] | None = None) -> None:
    """Gradients of all sizes; no member has one of `unused`, and of `lacking` only some have."""
    lacking = lacking or {}
    torch.manual_seed(0)
    array.missing_grads = dict(lacking)
    arena_of = array.arena_of
    for name, p in array.named_parameters():
        if name == "unused":
            p.grad = None
            continue
        rows = torch.randn(p.shape, dtype=torch.float64) * torch.tensor(SIZES).double().view(-1, *[1] * (p.ndim - 1))
        rows[lacking.get(name, [])] = 0
        view = arena_of(name).grad_view(name)
        view.copy_(rows)
        p.grad = view if name != "b" else view.clone()  # one lies elsewhere
        for i, module in enumerate(modules):
            own = dict(module.named_parameters())[name]
            own.grad = None if i in lacking.get(name, []) else p.grad[i].clone()


def _equal(array: nn.Module, modules: list[nn.Module], tolerance: float) -> None:
    for name, p in array.named_parameters():
        for i, module in enumerate(modules):
            own = dict(module.named_parameters())[name].grad
            if own is not None:
                torch.testing.assert_close(p.grad[i], own, atol=tolerance, rtol=tolerance)


NORMS = [2.0, 1.0, 3.0, math.inf, -math.inf, 0.0, -1.0]


@pytest.mark.each("norm_type")
@pytest.mark.parametrize("norm_type", NORMS)
@pytest.mark.parametrize("max_norm", [1.0, [0.1, 2.0, 30.0]], ids=["one", "each"])
@pytest.mark.parametrize(
    ("dtype", "second", "tolerance"),
    [(torch.float64, torch.float64, 1e-12), (torch.float32, torch.float64, 1e-5)],
    ids=["float64", "mixed"],
)
def test_norm(norm_type: float, max_norm, dtype, second, tolerance: float, device: torch.device) -> None:
    modules = _mixed(second, dtype, device)
    array = hfta.fuse(modules)
    for lacking in ({}, {"a": [1], "b": [0, 2]}):
        _fill(array, modules, lacking)
        measured = hfta.optim.get_total_norm(array, norm_type)
        norms = hfta.optim.clip_grad_norm_(array, max_norm, norm_type)
        assert torch.equal(measured, norms)
        for i, module in enumerate(modules):
            limit = max_norm[i] if isinstance(max_norm, list) else max_norm
            own = torch.nn.utils.clip_grad_norm_(module.parameters(), limit, norm_type)
            torch.testing.assert_close(norms[i].double(), own.double(), atol=tolerance, rtol=tolerance)
        _equal(array, modules, tolerance)


@pytest.mark.parametrize("value", [0.5, [0.1, 0.0, 3.0]], ids=["one", "each"])
def test_value(value, device: torch.device) -> None:
    modules = _mixed(torch.float64, torch.float32, device)
    array = hfta.fuse(modules)
    _fill(array, modules)
    hfta.optim.clip_grad_value_(array, value)
    for i, module in enumerate(modules):
        torch.nn.utils.clip_grad_value_(module.parameters(), value[i] if isinstance(value, list) else value)
    _equal(array, modules, 1e-7)


def test_some_parameters_only() -> None:
    modules = _mixed(torch.float64, torch.float64, CPU)
    array = hfta.fuse(modules)
    _fill(array, modules)
    untouched = array.b.grad.clone()
    norms = hfta.optim.clip_grad_norm_([array.a, array.d], 0.5)
    alone = hfta.optim.clip_grad_norm_(array.c, [0.1, 0.2, 0.3])
    for i, module in enumerate(modules):
        own = torch.nn.utils.clip_grad_norm_([module.a, module.d], 0.5)
        torch.testing.assert_close(norms[i], own, atol=1e-12, rtol=0)
        torch.testing.assert_close(alone[i], torch.nn.utils.clip_grad_norm_(module.c, [0.1, 0.2, 0.3][i]))
    assert torch.equal(array.b.grad, untouched)
    _equal(array, modules, 1e-12)


def test_a_norm_of_ones_own() -> None:
    modules = _mixed(torch.float64, torch.float64, CPU)
    array = hfta.fuse(modules)
    _fill(array, modules)
    grads = [p.grad for p in array.parameters() if p.grad is not None]
    norms = hfta.optim.get_total_norm(grads)
    torch.testing.assert_close(norms, hfta.optim.get_total_norm(array), atol=1e-12, rtol=0)
    hfta.optim.clip_grads_with_norm_(array, 1.0, norms)
    for module in modules:
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    _equal(array, modules, 1e-12)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_one_member_that_has_lost_its_way(poison: float) -> None:
    """HFTA's global norm shrank the neighbours' gradients with one member's; here no bit of theirs changes."""
    modules = _mixed(torch.float64, torch.float32, CPU)
    array = hfta.fuse(modules)
    results = []
    for value in (None, poison):
        _fill(array, modules)
        if value is not None:
            array.a.grad[1, 0, 0] = value
        before = [p.grad.clone() for p in array.parameters() if p.grad is not None]
        norms = hfta.optim.clip_grad_norm_(array, 1.0)
        hfta.optim.clip_grad_value_(array, 0.01)
        results.append((norms, [p.grad.clone() for p in array.parameters() if p.grad is not None]))
    for first, second in zip(*(r[1] for r in results), strict=True):
        assert torch.equal(first[[0, 2]], second[[0, 2]])
    assert torch.equal(results[0][0][[0, 2]], results[1][0][[0, 2]])
    _fill(array, modules)
    array.a.grad[1, 0, 0] = poison
    before = [p.grad.clone() for p in array.parameters() if p.grad is not None]
    with pytest.raises(OptimError, match=r"members \[1\]: the norm of the gradients is not finite"):
        hfta.optim.clip_grad_norm_(array, 1.0, error_if_nonfinite=True)
    after = [p.grad for p in array.parameters() if p.grad is not None]
    assert all(torch.equal(p, q) or p.isnan().any() for p, q in zip(before, after, strict=True))


def test_padded_entries_count_for_nothing() -> None:
    """Also where zeros would: the smallest entry, or a negative norm."""
    array = hfta.fuse(make(lambda: nn.Linear(4, 3), 2, torch.float64, CPU))
    own = {k: torch.ones_like(p, dtype=torch.bool) for k, p in array.named_parameters()}
    own["weight"][1, :, 2:] = False
    array._state.owned = own
    for norm_type in NORMS:
        for p, mask in zip(array.parameters(), own.values(), strict=True):
            p.grad = torch.where(mask, torch.cos(torch.arange(p.numel()).view(p.shape).double()), 0.0)
        norms = hfta.optim.get_total_norm(array, norm_type)
        for i in range(2):
            rows = [p.grad[i][m[i]] for p, m in zip(array.parameters(), own.values(), strict=True)]
            torch.testing.assert_close(norms[i], torch.nn.utils.get_total_norm(rows, norm_type), atol=1e-12, rtol=1e-12)


def test_no_gradients() -> None:
    array = hfta.fuse(make(lambda: nn.Linear(4, 3), 2, torch.float64, CPU))
    assert hfta.optim.clip_grad_norm_(array, 1.0).tolist() == [0.0, 0.0]
    hfta.optim.clip_grad_value_(array, 1.0)


def test_what_is_not_accepted() -> None:
    modules = make(lambda: nn.Linear(4, 3), 2, torch.float64, CPU)
    array = hfta.fuse(modules)
    optim = hfta.optim
    cases = [
        (lambda: optim.clip_grad_norm_(array, [1.0]), "max_norm: not one value per member"),
        (lambda: optim.clip_grad_norm_(modules[0].parameters(), 1.0), "not a parameter of an array"),
        (lambda: optim.clip_grad_norm_([array.weight, hfta.fuse(modules).weight], 1.0), "another array|of an array"),
        (lambda: optim.clip_grad_norm_([], 1.0), "no parameters"),
        (lambda: optim.clip_grad_value_(array, -1.0), "out of bounds"),
        (lambda: optim.clip_grads_with_norm_(array, 1.0, torch.ones(3)), "not one norm per member"),
        (lambda: optim.get_total_norm([torch.ones(2, 3), torch.ones(3)]), "not tensors of the same members"),
        (lambda: optim.get_total_norm([]), "not tensors of the same members"),
    ]
    for call, words in cases:
        with pytest.raises(OptimError, match=words):
            call()


def _train(array: nn.Module, x: Tensor, y: Tensor, max_norm) -> None:
    optimizer = hfta.optim.Adam(array, lr=[0.1, 0.01, 0.05])
    for _ in range(20):
        optimizer.zero_grad()
        array.backward(nn.functional.mse_loss, x, y)
        hfta.optim.clip_grad_norm_(array, max_norm)
        optimizer.step()


def test_twenty_steps_with_clipping(device: torch.device) -> None:
    modules = make(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), 3, torch.float64, device)
    x, y = (torch.randn(6, n, dtype=torch.float64, device=device) for n in (4, 3))
    array = hfta.fuse(modules)
    limits = [0.01, 0.1, 10.0]
    _train(array, x, y, limits)
    for i, module in enumerate(modules):
        own = torch.optim.Adam(module.parameters(), lr=[0.1, 0.01, 0.05][i])
        for _ in range(20):
            own.zero_grad()
            nn.functional.mse_loss(module(x), y).backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), limits[i])
            own.step()
        for p, q in zip(array.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(p[i], q, atol=1e-10, rtol=0)
