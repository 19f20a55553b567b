"""Losses with settings per member equal torch's on each member alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import FusionError
from hfta_nb.models.losses import MemberLoss
from tests.contract.serial import largest, make

losses = hfta.losses
SMOOTHING = [0.0, 0.1, 1.0]
WEIGHTS = torch.tensor([[1.0, 2.0, 0.5, 1.0], [0.1, 1.0, 1.0, 3.0], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
POSITIVE = torch.tensor([[1.0, 2.0, 0.5, 1.0], [0.1, 1.0, 1.0, 3.0], [5.0, 1.0, 1.0, 1.0]], dtype=torch.float64)


def _classes(device: torch.device) -> Tensor:
    return torch.tensor([0, 3, 1, 2, -100, 3], device=device)


def _threes(device: torch.device) -> Tensor:
    return torch.tensor([0, 3, 1, 2, 3, 0], device=device)


def _likelihoods(device: torch.device) -> Tensor:
    return torch.rand(6, 4, dtype=torch.float64, device=device).softmax(-1)


def _numbers(device: torch.device) -> Tensor:
    return torch.randn(6, 4, dtype=torch.float64, device=device)


def _bits(device: torch.device) -> Tensor:
    return (torch.rand(6, 4, device=device) > 0.5).double()


ROWS = [
    (lambda: losses.cross_entropy(label_smoothing=hfta.per_member(SMOOTHING)), _classes),
    (lambda: losses.cross_entropy(label_smoothing=SMOOTHING), _likelihoods),
    (lambda: losses.cross_entropy(weight=hfta.per_member(WEIGHTS)), _classes),
    (lambda: losses.cross_entropy(weight=hfta.per_member(WEIGHTS), label_smoothing=0.2, ignore_index=3), _threes),
    (lambda: losses.cross_entropy(weight=hfta.per_member(WEIGHTS), label_smoothing=SMOOTHING), _classes),
    (lambda: losses.cross_entropy(weight=hfta.per_member(WEIGHTS), label_smoothing=SMOOTHING), _likelihoods),
    (lambda: losses.cross_entropy(weight=WEIGHTS[0], label_smoothing=SMOOTHING), _classes),
    (lambda: losses.cross_entropy(weight=WEIGHTS[0], label_smoothing=0.1), _classes),
    (lambda: losses.nll_loss(weight=hfta.per_member(WEIGHTS)), _classes),
    (lambda: losses.binary_cross_entropy_with_logits(pos_weight=hfta.per_member(POSITIVE)), _bits),
    (
        lambda: losses.binary_cross_entropy_with_logits(weight=hfta.per_member(WEIGHTS), pos_weight=POSITIVE[0]),
        _bits,
    ),
    (lambda: losses.huber_loss(delta=[0.1, 1.0, 3.0]), _numbers),
    (lambda: losses.smooth_l1_loss(beta=[0.0, 1.0, 3.0]), _numbers),
    (lambda: losses.smooth_l1_loss(beta=0.5), _numbers),
]
rows = pytest.mark.parametrize(("build", "target"), ROWS)


def _build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))


def _setup(target, device: torch.device, dtype: torch.dtype = torch.float64):
    modules = make(_build, 3, dtype, device)
    torch.manual_seed(0)
    x, y = torch.randn(6, 5, dtype=dtype, device=device), target(device)
    return modules, x, y.to(dtype) if y.is_floating_point() else y


@rows
@pytest.mark.parametrize("block", [3, 1])
def test_twenty_steps(build, target, block: int, device: torch.device) -> None:
    loss: MemberLoss = build()
    loss.shared = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in loss.shared.items()}
    modules, x, y = _setup(target, device)
    array = hfta.fuse(modules)
    array.block_size = block
    optimizer = hfta.optim.Adam(array, lr=[0.1, 0.01, 0.05])
    curve = []
    for _ in range(20):
        optimizer.zero_grad()
        curve.append(array.backward(loss, x, y))
        optimizer.step()
    for i, module in enumerate(modules):
        alone = loss.of(i)
        if "weight" in loss.own or "pos_weight" in loss.own:
            alone.keywords.update({k: v.to(device) for k, v in alone.keywords.items() if isinstance(v, Tensor)})
        own = torch.optim.Adam(module.parameters(), lr=[0.1, 0.01, 0.05][i])
        for step in range(20):
            own.zero_grad()
            value = alone(module(x), y)
            value.backward()
            own.step()
            torch.testing.assert_close(curve[step][i], value.detach(), atol=1e-10, rtol=0)
    assert largest(array, modules) <= 1e-10


@rows
def test_float32(build, target) -> None:
    loss: MemberLoss = build()
    loss.shared = {k: v.float() if isinstance(v, Tensor) else v for k, v in loss.shared.items()}
    modules, x, y = _setup(target, torch.device("cpu"), torch.float32)
    array = hfta.fuse(modules)
    values = array.backward(loss, x, y)
    for i, module in enumerate(modules):
        alone = loss.of(i)
        alone.keywords.update({k: v.float() for k, v in alone.keywords.items() if isinstance(v, Tensor)})
        torch.testing.assert_close(values[i], alone(module(x), y).detach(), atol=1e-5, rtol=1e-5)
    assert values.dtype == torch.float32


def test_images_and_targets_of_ones_own() -> None:
    """Logits ``[N, C, H, W]``, targets per member, evaluation."""
    modules = make(lambda: nn.Conv2d(2, 4, 1), 3, torch.float64, torch.device("cpu"))
    x, y = torch.randn(5, 2, 3, 3, dtype=torch.float64), torch.randint(0, 4, (3, 5, 3, 3))
    loss = losses.cross_entropy(label_smoothing=SMOOTHING, weight=hfta.per_member(WEIGHTS), ignore_index=2)
    array = hfta.fuse(modules)
    values = array.evaluate(loss, x, hfta.per_member(y))
    for i, module in enumerate(modules):
        own = F.cross_entropy(module(x), y[i], WEIGHTS[i], ignore_index=2, label_smoothing=SMOOTHING[i])
        torch.testing.assert_close(values[i], own.detach(), atol=1e-12, rtol=0)


def test_what_is_not_accepted() -> None:
    cases = [
        (lambda: losses.cross_entropy(label_smoothing=1.5), "label_smoothing: out of bounds"),
        (lambda: losses.cross_entropy(label_smoothing=[0.1, -0.1]), "label_smoothing, member 1: out of bounds"),
        (lambda: losses.cross_entropy(label_smoothing=["a"]), "not numbers"),
        (lambda: losses.huber_loss(delta=[1.0, 0.0]), "delta, member 1: out of bounds"),
        (lambda: losses.smooth_l1_loss(beta=-1.0), "beta: out of bounds"),
    ]
    for call, words in cases:
        with pytest.raises(FusionError, match=words):
            call()
    array = hfta.fuse(make(_build, 3, torch.float32, torch.device("cpu")))
    x, y = torch.zeros(2, 5), torch.zeros(2, dtype=torch.long)
    loss = losses.cross_entropy(label_smoothing=SMOOTHING)
    with pytest.raises(FusionError, match=r"call it through array\.backward\(loss, x, y\)"):
        loss(torch.zeros(2, 3), y)
    two = losses.cross_entropy(label_smoothing=SMOOTHING[:2])
    with pytest.raises(FusionError, match="another number of members"):
        array.backward(two, x, y)
    assert repr(loss) == "cross_entropy(ignore_index, weight, label_smoothing per member)"
