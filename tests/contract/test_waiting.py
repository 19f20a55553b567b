"""Training steps never wait for the device: no value is read into Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import hfta_nb as hfta
from hfta_nb.models.metrics import Metric
from hfta_nb.train.step import ArrayStep

READING = {"item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__", "unique"}
ROW = {
    "lr": 1e-2, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "momentum": 0.9, "nesterov": False,
    "lr_scheduler": "cosine", "t_max": None, "eta_min": 0.0, "step_size": 1, "gamma": 0.5,
}  # fmt: skip


class _Calls(TorchFunctionMode):
    """Fails where a value is read."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert getattr(func, "__name__", "") not in READING, func
        return func(*args, **(kwargs or {}))


class _Kernels(TorchDispatchMode):
    """Fails where a kernel brings a value to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._schema.name not in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal"), func
        return func(*args, **(kwargs or {}))


def _unread(action: Callable[[], Any]) -> None:
    with _Calls(), _Kernels():
        action()


def _unread_by_python(action: Callable[[], Any]) -> None:
    """The same without modes, under which nothing is replayed."""
    read = []

    def watch(frame: Any, event: str, called: Any) -> None:
        owner = getattr(called, "__self__", None)
        if event == "c_call" and isinstance(owner, torch.Tensor) and called.__name__ in READING:
            read.append(called)

    sys.setprofile(watch)
    try:
        action()
    finally:
        sys.setprofile(None)
    assert not read


def _build() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Dropout(0.2), nn.Linear(36, 5))  # fmt: skip


def _right(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(-1) == target).float().mean()


def _step(optimizer: str) -> tuple[ArrayStep, Any, Any]:
    torch.manual_seed(0)
    array = hfta.fuse([_build() for _ in range(3)], [1, 2, 3])
    rows = [{**ROW, "optimizer": optimizer, "lr": lr} for lr in (1e-2, 2e-2, 5e-3)]
    metrics = {"right": Metric(_right, maximize=True)}
    step = ArrayStep(array, rows, nn.functional.cross_entropy, metrics, 10)
    return step, torch.randn(8, 1, 8, 8), torch.randint(0, 5, (8,))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_training(optimizer: str) -> None:
    step, x, y = _step(optimizer)
    for _ in range(5):
        step.train(x, y)
    _unread(lambda: step.train(x, y))
    step.end_epoch()
    step.train(x, y)
    _unread(lambda: step.train(x, y))
    assert "recorded" in set(step.array.explain()["how"])
    _unread_by_python(lambda: step.train(x, y))


def test_scaling_and_clipping() -> None:
    array = hfta.fuse([_build() for _ in range(3)], [1, 2, 3])
    optimizer = hfta.optim.AdamW(array, lr=[1e-2, 1e-3, 1e-3], fused=True)
    scaler = hfta.optim.GradScaler(array, growth_interval=2)
    schedule = hfta.optim.lr_scheduler.StepLR(optimizer, 2)
    x, y = torch.randn(8, 1, 8, 8), torch.randint(0, 5, (8,))

    def step() -> None:
        optimizer.zero_grad()
        array.backward(nn.functional.cross_entropy, x, y, scale=scaler.scales)
        scaler.unscale_(optimizer)
        hfta.optim.clip_grad_norm_(array, max_norm=[1.0, 0.1, 2.0])
        hfta.optim.clip_grad_value_(array, clip_value=[1.0, 0.1, 2.0])
        scaler.step(optimizer)
        scaler.update()

    for _ in range(5):
        step()
    _unread(step)
    _unread_by_python(step)
    _unread(schedule.step)
    step()
    _unread(step)
    assert scaler.get_scale() == [65536.0 * 2**4] * 3


def test_what_reads_is_found() -> None:
    with pytest.raises(AssertionError):
        _unread(lambda: torch.ones(1).item())
    with pytest.raises(AssertionError):
        _unread(lambda: bool(torch.ones(1)))
    with pytest.raises(AssertionError):
        _unread_by_python(lambda: torch.ones(1).tolist())
