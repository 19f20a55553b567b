"""Cross entropy and negative log likelihood of all members in one kernel: equal to each member alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb import per_member
from hfta_nb.errors import MemberError

MEMBERS, CLASSES = 3, 5


def _run(loss: Any, shape: tuple[int, ...], own: bool, device: torch.device) -> tuple[Any, Any]:
    """Losses and gradients of an array, and of its members alone."""
    torch.manual_seed(0)
    modules = [nn.Conv2d(2, CLASSES, 1).to(device, torch.float64) for _ in range(MEMBERS)]
    array = hfta.fuse(modules)
    x = torch.randn(4, 2, 3, 2, dtype=torch.float64, device=device)
    labels = torch.randint(0, CLASSES, (MEMBERS, *shape), device=device)
    labels[0].view(-1)[0] = labels[-1].view(-1)[0] = -100 if shape else 1
    losses = array.backward(loss, x, per_member(labels) if own else labels[0])
    grads = [array.get_parameter("weight").grad, array.get_parameter("bias").grad]
    alone = []
    for i, module in enumerate(modules):
        one = loss(module(x), labels[i] if own else labels[0])
        one.backward()
        alone.append((one.detach(), module.weight.grad, module.bias.grad))
    assert "one kernel over the rows of all members" in set(array.explain()["how"])
    return (losses, *grads), tuple(torch.stack(parts) for parts in zip(*alone, strict=True))


FORMS: dict[str, tuple[tuple[int, ...], Any]] = {
    "pixels": ((4, 3, 2), lambda out: out),
    "sequence": ((4, 6), lambda out: out.flatten(2)),
    "rows": ((4,), lambda out: out.mean((2, 3))),
    "one row": ((), lambda out: out.mean((0, 2, 3))),
}


@pytest.mark.pairs
@pytest.mark.each("form", "own")
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("form", FORMS)
def test_equals_serial(form: str, name: str, reduction: str, own: bool, device: torch.device) -> None:
    shape, formed = FORMS[form]

    def loss(out: Tensor, y: Tensor) -> Tensor:
        found: Tensor = getattr(F, name)(formed(out), y, reduction=reduction)
        return found.square().sum() if reduction == "none" else found

    for fused, alone in zip(*_run(loss, shape, own, device), strict=True):
        torch.testing.assert_close(fused, alone, rtol=1e-10, atol=1e-12)


_WEIGHT = torch.linspace(0.1, 0.9, CLASSES).double()


@pytest.mark.each("more")
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "more",
    [{"weight": _WEIGHT}, {"label_smoothing": 0.1}, {"weight": _WEIGHT, "label_smoothing": 0.3, "ignore_index": 2}],
    ids=["weight", "label_smoothing", "all"],
)
def test_weights_and_smoothing(
    more: dict[str, Any], form: str, reduction: str, own: bool, device: torch.device
) -> None:
    shape, formed = FORMS[form]
    more = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in more.items()}

    def loss(out: Tensor, y: Tensor) -> Tensor:
        y = y.masked_fill(y == -100, 2) if "ignore_index" in more else y
        found = F.cross_entropy(formed(out), y, reduction=reduction, **more)
        return found.square().sum() if reduction == "none" else found

    for fused, alone in zip(*_run(loss, shape, own, device), strict=True):
        torch.testing.assert_close(fused, alone, rtol=1e-10, atol=1e-12, equal_nan=True)


def test_probabilities_as_targets() -> None:
    modules = [nn.Linear(3, CLASSES).double() for _ in range(MEMBERS)]
    x, y = torch.randn(4, 3).double(), torch.rand(4, CLASSES).double().softmax(1)
    losses = hfta.fuse(modules).backward(F.cross_entropy, x, y)
    torch.testing.assert_close(losses, torch.stack([F.cross_entropy(m(x), y).detach() for m in modules]))


def test_gradients_of_gradients() -> None:
    modules = [nn.Linear(3, CLASSES).double() for _ in range(MEMBERS)]
    x, y = torch.randn(4, 3).double(), torch.tensor([0, 1, 2, 4])

    class Penalised(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            out = self.inner(x)
            (grad,) = torch.autograd.grad(F.cross_entropy(out, y), out, create_graph=True)
            return grad.square().sum()

    array = hfta.fuse([Penalised(m) for m in modules])
    array(x).sum().backward()
    for i, module in enumerate(modules):
        Penalised(module)(x).backward()
        torch.testing.assert_close(array.get_parameter("inner.weight").grad[i], module.weight.grad)  # type: ignore[index]


def test_a_label_that_is_none() -> None:
    array = hfta.fuse([nn.Linear(3, CLASSES) for _ in range(MEMBERS)])
    with pytest.raises((MemberError, IndexError), match="out of bounds"):
        array.backward(F.cross_entropy, torch.randn(2, 3), torch.tensor([0, CLASSES]))


def test_a_wrong_label_leaves_a_replayed_step_undone() -> None:
    array = hfta.fuse([nn.Linear(3, CLASSES) for _ in range(MEMBERS)])
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 4, 2])
    for _ in range(5):
        for p in array.parameters():
            p.grad = None
        array.backward(F.cross_entropy, x, y)
    before = [p.grad.clone() for p in array.parameters() if p.grad is not None]
    with pytest.raises((MemberError, IndexError), match="Target 5 is out of bounds"):
        array.backward(F.cross_entropy, x, y + 1)
    for p, grad in zip(array.parameters(), before, strict=True):
        assert torch.equal(p.grad, grad)  # type: ignore[arg-type]
    array.backward(F.cross_entropy, x, y)
