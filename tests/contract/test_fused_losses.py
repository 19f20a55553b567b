"""Cross entropy and maxima as on a GPU: kernels of Triton in place of torch's calls, equal to each member alone.

The tests use CPU tensors; Triton interprets its kernels if it is installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.kernels.strategy import autotune
from hfta_nb.engine.kernels.strategy.kernel_variants import COMPILED
from hfta_nb.engine.replay import fuse_losses, fused_kernel

MEMBERS, CLASSES, WORDS = 3, 40, 11

pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # Triton's interpreter, of NaN

NEEDS_TRITON = pytest.mark.skipif(
    not importlib.util.find_spec("triton") or torch.cuda.is_available(),
    reason="Triton is not installed (it comes with torch's CUDA builds), or compiles for a GPU",
)


@pytest.fixture(autouse=True)
def preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all ways to compute something, the package's own, if its numbers are right."""
    cost = autotune.cost
    monkeypatch.setattr(autotune, "cost", lambda name, times: cost(name, times) / (1e9 if name == COMPILED else 1))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # read when the kernels are first imported
    for module in (fuse_losses, fused_kernel):
        monkeypatch.setattr(module, "DEVICES", {"cpu"})
    monkeypatch.setattr(fuse_losses, "_LEAST_CLASSES", CLASSES)
    monkeypatch.setattr("hfta_nb.engine.replay.fuse_maxima.DEVICES", {"cpu"})
    fused_kernel.triton_kernels.cache_clear()
    yield
    fused_kernel.triton_kernels.cache_clear()


class Words(nn.Module):
    """Tokens to logits of as many classes."""

    def __init__(self, bias: bool = True, classes: int = CLASSES) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(WORDS, 8), nn.Linear(8, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.table(x).tanh())  # type: ignore[no-any-return]


def _trained(modules: list[nn.Module], loss: Any, x: Tensor, y: Tensor, dtype: torch.dtype | None = None) -> Any:
    """An array after five backward passes, the last of them replayed, and their losses."""
    array = hfta.fuse(modules)
    array.block_size = len(modules)
    for _ in range(5):
        array.zero_grad()
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            losses = array.backward(loss, x, y)
    return array, losses


def _equal(array: Any, losses: Tensor, modules: list[nn.Module], loss: Any, x: Tensor, y: Tensor, off: float) -> None:
    """Losses and gradients are those of each module alone, up to a part of the largest value."""
    for i, module in enumerate(modules):
        alone = loss(module(x), y)
        alone.backward()
        torch.testing.assert_close(losses[i], alone.detach(), rtol=off, atol=off)
        for name, p in module.named_parameters():
            assert p.grad is not None
            most = float(p.grad.abs().max())
            torch.testing.assert_close(array.get_parameter(name).grad[i], p.grad, rtol=0, atol=off * most)


LOSSES: dict[str, tuple[bool, dict[str, Any]]] = {
    "mean": (True, {}),
    "sum": (True, {"reduction": "sum"}),
    "no bias": (False, {}),
    "ignored": (True, {"ignore_index": 7}),
    "weights": (True, {"weight": torch.linspace(0.1, 2, CLASSES)}),
    "smoothed": (True, {"label_smoothing": 0.2}),
    "smoothed, without bias": (False, {"label_smoothing": 0.1, "reduction": "sum"}),
    "smoothed weights": (True, {"weight": torch.linspace(0.1, 2, CLASSES), "label_smoothing": 0.1}),
}


@NEEDS_TRITON
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_cross_entropy(kind: str, dtype: torch.dtype | None) -> None:
    bias, settings = LOSSES[kind]
    torch.manual_seed(0)
    modules: list[nn.Module] = [Words(bias) for _ in range(MEMBERS)]
    x, y = torch.randint(0, WORDS, (2, 2)), torch.randint(0, CLASSES, (2, 2))
    y[0, 0] = settings.get("ignore_index", -100)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out.flatten(0, -2), y.flatten(), **settings)

    array, losses = _trained(modules, loss, x, y, dtype)
    _equal(array, losses, modules, loss, x, y, 1e-5 if dtype is None else 2e-2)
    # A weight for each class and each label's share of all is left to torch.
    assert any(what.startswith("cross_entropy_backward") for what in _own(array)) == (kind != "smoothed weights")


@NEEDS_TRITON
@pytest.mark.usefixtures("as_on_a_gpu")
def test_logits_are_read_where_they_are_and_overwritten() -> None:
    """The bias is added by the loss; nothing as large as the logits is made but the logits."""
    modules: list[nn.Module] = [Words() for _ in range(MEMBERS)]
    x, y = torch.randint(0, WORDS, (4, 3)), torch.randint(0, CLASSES, (4, 3))
    array, _ = _trained(modules, _rows, x, y)
    assert any(what.startswith("cross_entropy_backward with bias") for what in _own(array))
    [step] = array._calls.steps
    large = [slot for slot in step.program.slots if slot.numel() >= MEMBERS * y.numel() * CLASSES * 4]
    assert len(large) == 1


@NEEDS_TRITON
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_rows_that_are_not_aligned_are_padded(bias: bool, dtype: torch.dtype | None) -> None:
    """43 classes take the memory of 64, for logits and gradients together; nothing else changes."""
    classes = CLASSES + 3
    torch.manual_seed(0)
    modules: list[nn.Module] = [Words(bias, classes) for _ in range(MEMBERS)]
    x, y = torch.randint(0, WORDS, (4, 3)), torch.randint(0, classes, (4, 3))
    array, losses = _trained(modules, _rows, x, y, dtype)
    _equal(array, losses, modules, _rows, x, y, 1e-5 if dtype is None else 2e-2)
    assert any(what.startswith("cross_entropy_backward") for what in _own(array))
    [step] = array._calls.steps
    itemsize, rows = (4 if dtype is None else 2), MEMBERS * y.numel()
    sizes = [slot.numel() for slot in step.program.slots]
    assert sizes.count(((rows - 1) * 64 + classes) * itemsize) == 1
    assert rows * classes * itemsize not in sizes
    assert {name: p.shape[1:] for name, p in array.named_parameters()} == {
        name: p.shape for name, p in modules[0].named_parameters()
    }


@NEEDS_TRITON
@pytest.mark.usefixtures("as_on_a_gpu")
def test_logits_that_the_loss_reads_otherwise_as_well_are_not_padded() -> None:
    classes = CLASSES + 3
    modules: list[nn.Module] = [Words(False, classes) for _ in range(MEMBERS)]
    x, y = torch.randint(0, WORDS, (4, 3)), torch.randint(0, classes, (4, 3))

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return _rows(out, y) + 1e-3 * out.square().mean()

    array, losses = _trained(modules, loss, x, y)
    _equal(array, losses, modules, loss, x, y, 1e-5)
    [step] = array._calls.steps
    sizes = {slot.numel() for slot in step.program.slots}
    assert ((MEMBERS * y.numel() - 1) * 64 + classes) * 4 not in sizes


@NEEDS_TRITON
@pytest.mark.usefixtures("as_on_a_gpu")
def test_logits_that_are_wanted_keep_their_bias() -> None:
    modules: list[nn.Module] = [Words() for _ in range(MEMBERS)]
    x, y = torch.randint(0, WORDS, (2, 3)), torch.randint(0, CLASSES, (2, 3))
    array = hfta.fuse(modules)
    array.block_size = MEMBERS
    for _ in range(5):
        array.zero_grad()
        out = array(x)
        torch.stack([_rows(o, y) for o in out]).sum().backward()
    for i, module in enumerate(modules):
        torch.testing.assert_close(out[i], module(x))


@NEEDS_TRITON
@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_wrong_label_is_an_error() -> None:
    modules: list[nn.Module] = [Words() for _ in range(MEMBERS)]
    x, y = torch.randint(0, WORDS, (2, 3)), torch.randint(0, CLASSES, (2, 3))
    array, losses = _trained(modules, _rows, x, y)
    with pytest.raises((hfta.HftaError, IndexError, RuntimeError), match="out of bounds"):
        array.backward(_rows, x, y + CLASSES)
    torch.testing.assert_close(array.backward(_rows, x, y), losses)


class _Faulty:
    """A module of kernels whose gradient is wrong, or that fails."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def cross_entropy(self, x: Tensor, target: Tensor, *more: Any, loss: Tensor, logs: Tensor, total: Any) -> None:
        if self.fault == "no compiler":
            raise ValueError("no compiler")
        torch.logsumexp(x.float(), 2, out=logs.view(x.shape[:2]))
        loss.copy_(logs - x.reshape(len(target), -1).gather(1, target[:, None])[:, 0])

    def cross_entropy_backward(self, x: Tensor, target: Tensor, logs: Tensor, *more: Any, out: Tensor) -> None:
        torch.exp(x - logs.view(*x.shape[:2], 1), out=out)


@pytest.mark.parametrize("fault", ["wrong", "no compiler"])
def test_kernels_that_fail_or_give_other_numbers_are_not_used(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse_losses, "DEVICES", {"cpu"})
    monkeypatch.setattr(fuse_losses, "_LEAST_CLASSES", CLASSES)
    monkeypatch.setattr(fuse_losses, "triton_kernels", lambda: _Faulty(fault))
    modules: list[nn.Module] = [Words(bias=False) for _ in range(MEMBERS)]
    x, y = torch.randint(0, WORDS, (4, 2)), torch.randint(0, CLASSES, (4, 2))
    array, losses = _trained(modules, _rows, x, y)
    _equal(array, losses, modules, _rows, x, y, 1e-5)
    assert not any(what.startswith("cross_entropy") for what in _own(array))
    assert "recorded" in set(array.explain()["how"])


def _rows(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, -2), y.flatten())


def _own(array: Any) -> list[str]:
    """What the package's own kernels compute."""
    return [c.what for c in array._calls.steps.choices() if c.chosen.name == COMPILED]


# Maxima.


class Points(nn.Module):
    """Points ``[N, 3, P]`` to the largest of features of all points."""

    def __init__(self, between: Callable[[Tensor], Tensor], dims: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.each, self.between, self.dims = nn.Conv1d(3, 4, 1, dtype=dtype), between, dims

    def forward(self, x: Tensor) -> Tensor:
        found = self.between(self.each(x))
        return found.amax(self.dims).sum(0) * torch.arange(1, 5) if self.dims == 2 else found.amax(self.dims)


def _poisoned(x: Tensor) -> Tensor:
    """NaN in one row, minus infinity in another one."""
    return torch.where(x > 2.5, float("nan"), torch.where(x < -2.5, float("-inf"), x))


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "as they are": lambda x: x + 0,
    "many ties": lambda x: x.relu(),
    "some ties": lambda x: x.clamp(-1, 0.5) * 1,
    "not finite": _poisoned,
}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("dims", [2, (0, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_maxima(between: str, dims: Any, dtype: torch.dtype) -> None:
    _maxima(between, dims, dtype)


@NEEDS_TRITON
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("between", BETWEEN)
def test_maxima_with_places(between: str) -> None:
    assert "amax_backward" in _maxima(between, 2, torch.float32)


def _maxima(between: str, dims: Any, dtype: torch.dtype) -> str:
    torch.manual_seed(0)
    modules: list[nn.Module] = [Points(BETWEEN[between], dims, dtype) for _ in range(MEMBERS)]
    for module in modules:
        module.get_parameter("each.bias").data[1] = -9.0  # a feature that a ReLU makes zero at all points
    x, scale = torch.randn(5, 3, 9, dtype=dtype), torch.linspace(-1, 1, 4, dtype=dtype)

    def loss(out: Tensor, _: Any = None) -> Tensor:
        return (out * scale).sum()

    array, losses = _trained(modules, loss, x, x)
    for i, module in enumerate(modules):
        alone = loss(module(x))
        alone.backward()
        torch.testing.assert_close(losses[i], alone.detach(), equal_nan=True)
        for name, p in module.named_parameters():
            tolerance = 1e-12 if dtype == torch.float64 else 1e-5
            torch.testing.assert_close(
                array.get_parameter(name).grad[i], p.grad, rtol=tolerance, atol=tolerance, equal_nan=True
            )
    found = [what for what in _own(array) if what.startswith("amax_backward")]
    assert len(found) == 1
    return found[0]


@NEEDS_TRITON
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("columns", [5, 125, 1100])
def test_the_gradient_of_rows_is_that_of_torch(columns: int, relu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit: ties, NaN and infinities among entries and gradients, and any strides."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    from hfta_nb.engine.kernels import triton_kernels

    generator = torch.Generator().manual_seed(columns)
    x = torch.randint(-3, 4, (3, 2, 4, columns), generator=generator).float().transpose(0, 1)
    x = x.relu() if relu else x
    x[0, 0, 0], x[1, 1, 1, 2], x[0, 1, 0] = 0, float("nan"), 0 if relu else float("-inf")
    grad = torch.randn(2, 3, 4, generator=generator)
    grad[0, 0, 1], grad[0, 1, 2] = float("inf"), float("nan")
    leaf = x.clone().requires_grad_()
    top = leaf.amax(3)
    (wanted,) = torch.autograd.grad(top, leaf, grad)
    wanted = torch.ops.aten.threshold_backward(wanted, x, 0) if relu else wanted
    found, places, ties = (torch.empty(2, 3, 4, dtype=d) for d in (torch.float32, torch.int32, torch.int32))
    triton_kernels.largest(x, out=found, places=places, ties=ties)
    out = torch.empty_like(x)
    triton_kernels.largest_backward(grad, found, x, places, ties, relu, out=out)
    for one, other in ((found, top.detach()), (out, wanted)):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@NEEDS_TRITON
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("gap", [0, 3])
def test_rows_of_any_stride(dtype: torch.dtype, gap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place; what lies between rows, and a member's NaN, stay where they are."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    from hfta_nb.engine.kernels import triton_kernels

    generator = torch.Generator().manual_seed(0)
    members, rows, classes = 2, 3, 5000
    room = (torch.randn(members, rows, classes + gap, generator=generator) * 3).to(dtype)
    target = torch.randint(0, classes, (members * rows,), generator=generator)
    target[1], room[0, 0, 7], room[1, 1, 9] = -100, float("-inf"), float("nan")
    x, between = room[..., :classes], room[..., classes:].clone()
    weight, grad = torch.rand(classes, generator=generator), torch.rand(members * rows, generator=generator)
    leaf = x.float().requires_grad_()
    wanted = F.nll_loss(leaf.log_softmax(2).view(-1, classes), target, weight, reduction="none")
    wanted.backward(grad)
    loss, logs = torch.empty(members * rows), torch.empty(members * rows)
    triton_kernels.cross_entropy(x, target, weight, None, -100, loss=loss, logs=logs)
    triton_kernels.cross_entropy_backward(x, target, logs, grad, weight, None, None, -100, out=x)
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-5, atol=1e-5, equal_nan=True)
    assert leaf.grad is not None
    off = 1e-6 if dtype == torch.float32 else 8e-3
    torch.testing.assert_close(x.float(), leaf.grad, rtol=0, atol=off * 2, equal_nan=True)
    assert torch.equal(room[..., classes:], between)
