"""Autocast, low and mixed precision, fast random numbers, embeddings: fused equals alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from tests.contract.serial import largest, loss_of, make, train_alone

SEEDS = [101, 102, 103]


@pytest.mark.parametrize("block", [3, 1])
@pytest.mark.parametrize("training", [True, False])
def test_autocast_gives_the_dtypes_of_the_plain_module(block: int, training: bool, device: torch.device) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
            self.layer, self.linear = nn.LayerNorm(16), nn.Linear(16, 8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            out = {"conv": self.conv(x)}
            out["norm"] = self.norm(out["conv"])
            out["pool"] = F.max_pool2d(out["norm"].relu(), 1).flatten(2)
            out["layer"] = self.layer(out["pool"])
            out["linear"] = self.linear(out["layer"])
            out["attention"] = self.attention(*[out["linear"]] * 3)[0]
            out["softmax"] = out["attention"].softmax(-1)
            with torch.autocast(x.device.type, enabled=False):
                out["off"] = out["softmax"].float() @ self.linear.weight
            return out

    def loss(output: dict[str, Tensor], _: Any = None) -> Tensor:
        return sum((v.float() ** 2).mean() for v in output.values())

    modules = [m.train(training) for m in make(Net, 3, torch.float32, device)]
    array = hfta.fuse(modules, SEEDS)
    array.block_size = block
    x = torch.randn(6, 2, 6, 6, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        losses = array.backward(loss, x)
        results = array(x)
    for i, module in enumerate(modules):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            alone = loss(module(x))
            expected = module(x)
        alone.backward()
        torch.testing.assert_close(losses[i], alone.detach(), atol=1e-2, rtol=1e-2)
        for key, value in expected.items():
            assert results[key].dtype == value.dtype, key
            torch.testing.assert_close(results[key][i], value, atol=5e-2, rtol=5e-2)
        for name, p in module.named_parameters():
            fused = dict(array.named_parameters())[name].grad[i]
            assert fused.dtype == p.grad.dtype
            torch.testing.assert_close(fused, p.grad, atol=5e-2, rtol=5e-2)


def test_half_precision_parameters(device: torch.device) -> None:
    build = lambda: nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))  # noqa: E731
    modules = make(build, 3, torch.bfloat16, device)
    x = torch.randn(6, 5, device=device, dtype=torch.bfloat16)
    out = hfta.fuse(modules)(x)
    assert out.dtype == torch.bfloat16
    for i, module in enumerate(modules):
        torch.testing.assert_close(out[i], module(x), atol=2e-2, rtol=2e-2)


def test_mixed_dtypes(device: torch.device) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high = nn.Linear(5, 4, dtype=torch.float32), nn.Linear(4, 3, dtype=torch.float64)
            self.register_buffer("steps", torch.zeros(2, dtype=torch.int32))

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            return self.high(self.low(x).tanh().double())

    torch.manual_seed(0)
    modules = [Mixed().to(device) for _ in range(3)]
    array = hfta.fuse(modules, SEEDS)
    x, y = torch.randn(6, 5, device=device), torch.randn(6, 3, dtype=torch.float64, device=device)
    optimizer = hfta.optim.AdamW(array, lr=1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        array.backward(loss_of, x, y)
        optimizer.step()
    for i, module in enumerate(modules):
        train_alone(module, SEEDS[i], 5, x, y, torch.optim.AdamW(module.parameters(), lr=1e-2))
    assert largest(array, modules) <= 1e-5
    assert {p.dtype for p in array.parameters()} == {torch.float32, torch.float64}


def test_drawing_for_all_at_once() -> None:
    build = lambda: nn.Sequential(nn.Linear(5, 400), nn.Dropout(0.25))  # noqa: E731
    modules = make(build, 3, torch.float64, torch.device("cpu"))
    x = torch.randn(6, 5, dtype=torch.float64)
    array = hfta.fuse(modules, SEEDS, rng="fast")
    before = torch.get_rng_state()
    first, again = array(x), hfta.fuse(modules, SEEDS, rng="fast")(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    kept = first != 0
    assert not torch.equal(kept[0], kept[1])
    assert 0.7 < kept.double().mean().item() < 0.8
    for i, module in enumerate(modules):
        torch.testing.assert_close(first[i][kept[i]], (module.eval()(x) / 0.75)[kept[i]])
    assert array.select([0, 1]).fast_rng


@pytest.mark.pairs
@pytest.mark.each("options")
@pytest.mark.parametrize("block", [3, 2, 1])
@pytest.mark.parametrize("own", [False, True], ids=["shared indices", "own indices"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding_idx": 0},
        {"padding_idx": -1},
        {"scale_grad_by_freq": True},
        {"max_norm": 1.0},
        {"bag": "mean", "padding_idx": 1},
    ],
    ids=str,
)
def test_embeddings(options: dict[str, Any], own: bool, block: int, device: torch.device) -> None:
    """`vmap`'s own rule lets the padding row learn in all members but the first."""
    options = dict(options)
    mode = options.pop("bag", None)

    def build() -> nn.Module:
        return nn.Embedding(5, 2, **options) if mode is None else nn.EmbeddingBag(5, 2, mode=mode, **options)

    def loss(output: Tensor, _: Any = None) -> Tensor:
        return (output * torch.arange(output.numel(), device=device).view_as(output)).sum()

    modules = make(build, 3, torch.float64, device)
    array = hfta.fuse(modules)
    array.block_size = block
    index = torch.tensor([[0, 1, 2], [4, 0, 1]], device=device)
    each = torch.stack([(index + i) % 5 if own else index for i in range(3)])
    losses = array.backward(loss, hfta.per_member(each) if own else index)
    for i, module in enumerate(modules):
        alone = loss(module(each[i]))
        alone.backward()
        assert losses[i].item() == pytest.approx(alone.item(), abs=1e-12)
        torch.testing.assert_close(array.weight.grad[i], module.weight.grad, atol=1e-12, rtol=0)
    assert largest(array, modules) == 0
    if device.type == "cuda":  # an assertion on the device would end all work of this process on the GPU
        return
    with pytest.raises(hfta.HftaError, match=r"IndexError: .*index .*out of range|RuntimeError: .*found idx to be 5"):
        array(torch.tensor([[5, 0]]))


def test_a_padding_row_counted_from_the_end() -> None:
    """Of the function: `nn.Embedding` counts from the start before it calls it."""

    class Looked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(5, 2, dtype=torch.float64))

        def forward(self, index: Tensor) -> Tensor:
            return nn.functional.embedding(index, self.table, padding_idx=-2)

    modules = [Looked() for _ in range(3)]
    array, index = hfta.fuse(modules), torch.tensor([0, 3, 4, 3])
    array.backward(lambda output, _: output.sum(), index)
    for i, module in enumerate(modules):
        module(index).sum().backward()
        assert torch.equal(array.table.grad[i], module.table.grad)
        assert not module.table.grad[3].any()
