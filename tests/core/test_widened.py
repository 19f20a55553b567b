"""Kernels of 16-bit numbers computed in float32: as exact as torch's own, with the same layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.kernels.strategy import autotune
from hfta_nb.engine.kernels.strategy.kernel_variants import PLAIN, Operand, variants_of
from hfta_nb.engine.kernels.strategy.times import Kept, Times
from hfta_nb.engine.kernels.strategy.widened import HALVES, Widened

CPU = torch.device("cpu")
aten = torch.ops.aten


def _attention(dtype: torch.dtype) -> tuple[Any, tuple[Any, ...]]:
    q, k, v = (torch.randn(2, 7, 3, 8).to(dtype).transpose(1, 2) for _ in range(3))
    out, log_sum = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False)
    grad = torch.randn(2, 7, 3, 8).to(dtype).transpose(1, 2)
    return aten._scaled_dot_product_flash_attention_for_cpu_backward.default, (grad, q, k, v, out, log_sum, 0.0, False)


def _convolution(dtype: torch.dtype) -> tuple[Any, tuple[Any, ...]]:
    x, weight, grad = torch.randn(4, 3, 6, 6), torch.randn(5, 3, 3, 3), torch.randn(4, 5, 6, 6)
    given = grad.to(dtype), x.to(dtype), weight.to(dtype)
    how = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    return aten.convolution_backward.default, (*given, [5], *how, [True, True, True])


def _double(tree: Any) -> Any:
    return tree.double() if isinstance(tree, Tensor) else tree


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("make", [_attention, _convolution])
def test_what_makes_new_tensors(make: Callable[[torch.dtype], Any], dtype: torch.dtype) -> None:
    function, args = make(dtype)
    call = Widened(function)
    for _ in range(2):  # again, with other values in the same memory
        found, own, exact = call(*args), function(*args), function(*map(_double, args))
        for one, two, true in zip(found, own, exact, strict=True):
            assert (one.dtype, one.shape, one.stride()) == (two.dtype, two.shape, two.stride())
            least = torch.finfo(dtype).eps * true.abs().max()
            assert (one - true).abs().max() <= torch.maximum((two - true).abs().max(), least)
        args[0].mul_(2)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_what_has_room(dtype: torch.dtype) -> None:
    torch.manual_seed(0)  # a sum in the middle between two halves may be rounded either way
    bias, x, weight = (torch.randn(*s).to(dtype) for s in [(3, 1, 4), (3, 6, 5), (3, 4, 5)])
    room = torch.empty(3, 4, 6, dtype=dtype).transpose(1, 2)
    call = Widened(aten.baddbmm.out)
    for _ in range(2):
        call(bias, x, weight.transpose(1, 2), out=room)
        exact = bias.double() + x.double() @ weight.double().transpose(1, 2)
        assert torch.equal(room, exact.float().to(dtype))
        x.mul_(2)


def test_only_halves_on_a_cpu_have_this_way() -> None:
    def ways(dtype: torch.dtype, device: torch.device = CPU) -> list[str]:
        product = Operand((2, 3, 3), (9, 3, 1), dtype)
        return [f.name for f in variants_of(aten.bmm.default, [product, product], device)]

    assert ways(torch.bfloat16) == ways(torch.float16) == ["in float32"]
    assert "in float32" not in ways(torch.float32) + ways(torch.float64)
    assert ways(torch.bfloat16, torch.device("cuda")) == []


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_max_pooling_in_half_precision(dtype: torch.dtype) -> None:
    x = torch.randint(-3, 3, (2, 3, 7, 9)).to(dtype)  # with ties
    x[0, 0, 0, 0], x[1, 2, 3, 4] = torch.inf, -torch.inf
    geometry = Operand(tuple(x.shape), x.stride(), dtype)
    (way,) = variants_of(aten.max_pool2d_with_indices.default, [geometry, [2, 2]], CPU)
    values, places = torch.empty(2, 3, 3, 4, dtype=dtype), torch.empty(2, 3, 3, 4, dtype=torch.long)
    way.make(aten.max_pool2d_with_indices.out)(x, [2, 2], out=values, indices=places)
    for one, two in zip((values, places), F.max_pool2d(x, 2, return_indices=True), strict=True):
        assert torch.equal(one, two)


class Net(nn.Module):
    """A convolution, attention and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(2, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(torch.tanh(self.conv(x)), 2).flatten(2).transpose(1, 2).unsqueeze(1).contiguous()
        return self.out(F.scaled_dot_product_attention(x, x, x).mean((1, 2)))


@pytest.mark.each
@pytest.mark.parametrize("block", [3, 1])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_replayed_step_in_float32(dtype: torch.dtype, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever there is another way, it is taken."""

    def measured(ways: Mapping[str, Any], *rest: Any) -> Times:
        return {name: 2.0 if name == PLAIN else 1.0 for name in ways}

    fresh = Kept(None, {})
    monkeypatch.setattr(autotune, "kept", lambda device: fresh)
    monkeypatch.setattr(autotune, "_measured", measured)
    modules = [Net() for _ in range(3)]
    array = hfta.fuse(modules)
    array.block_size = block
    x, y = torch.randn(6, 2, 8, 8), torch.randint(0, 4, (6,))
    for _ in range(5):
        for p in array.parameters():
            p.grad = None
        with torch.autocast("cpu", dtype):
            losses = array.backward(F.cross_entropy, x, y)
    assert "recorded" in array._calls.steps.notes()
    used = {k.partition(" ")[0] for k, v in fresh._times.items() if "in float32" in v}
    assert "aten._scaled_dot_product_flash_attention_for_cpu_backward.default" in used
    assert len(used) >= 4
    for i, module in enumerate(modules):
        with torch.autocast("cpu", dtype):
            loss = F.cross_entropy(module(x), y)
        loss.backward()
        torch.testing.assert_close(losses[i], loss.detach(), rtol=1e-2, atol=1e-2)
        for p, q in zip(array.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(p.grad[i], q.grad, rtol=0, atol=0.03 * float(q.grad.abs().max()))


def _strided(channels: int) -> list[Any]:
    """The operands of the backward pass of a 1 x 1 convolution of stride 2, with channels last, in bfloat16."""
    grad = Operand((2, 8, 4, 4), (128, 1, 32, 8), torch.bfloat16)
    x = Operand((2, channels, 8, 8), (64 * channels, 1, 8 * channels, channels), torch.bfloat16)
    weight = Operand((8, channels, 1, 1), (channels, 1, 1, 1), torch.bfloat16)
    return [grad, x, weight, None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]]


@pytest.mark.parametrize("survives", [True, False])
def test_what_may_end_the_process_in_float32_is_tried_in_a_child_first(
    survives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def child(calls: Any, device: torch.device) -> bool:
        asked.extend(a.dtype for call in calls for a in call.args if isinstance(a, Operand))
        return survives

    monkeypatch.setattr(autotune, "survives", child)
    monkeypatch.setattr(autotune, "_measured", lambda ways, *_: dict.fromkeys(ways, 1.0))
    function = aten.convolution_backward.default
    choice = autotune.choose(function, function, _strided(4), {}, CPU)
    assert asked == [torch.float32] * 3
    assert (choice is not None) == survives
    assert choice is None or set(choice.seconds) == {PLAIN, "in float32"}
