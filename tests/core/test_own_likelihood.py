"""The package's own negative log likelihood: against float64, in steps that are replayed, and with wrong targets."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb import per_member
from hfta_nb.errors import MemberError
from hfta_nb.kernels.native import likelihood
from hfta_nb.kernels.native.binding import Binding
from tests.core.compiled import NEEDS_COMPILER, close, train_beside

pytestmark = [NEEDS_COMPILER, pytest.mark.usefixtures("own_libraries")]
OWN = [likelihood]
_aten = torch.ops.aten
_close = partial(close, within=2e-6, least=1.0)
_SIZES = [(1, 1, 2), (2, 3, 10), (3, 64, 16), (1, 5, 37), (4, 2, 300)]


def _noise(*size: int) -> Tensor:
    return 3 * torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


def _labels(size: tuple[int, ...], classes: int, ignored: int) -> Tensor:
    labels = torch.randint(0, classes, size, generator=torch.Generator().manual_seed(classes))
    labels[..., 0] = ignored
    return labels


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("ignored", [-100, 1])
@pytest.mark.parametrize(("members", "height", "classes"), _SIZES)
def test_losses_and_their_gradients(
    members: int, height: int, classes: int, ignored: int, mean: bool, own: bool
) -> None:
    x, by = _noise(members, height, classes), torch.arange(1.0, members + 1)
    target = _labels((members, height) if own else (height,), classes, ignored)
    exact, how = x.double().requires_grad_(), {"ignore_index": ignored, "reduction": "mean" if mean else "sum"}
    wanted = torch.stack([F.cross_entropy(row, target[i] if own else target, **how) for i, row in enumerate(exact)])
    logs = x.log_softmax(2)
    losses, counted = likelihood.forward(logs, target, ignored, mean)
    assert counted.tolist() == [int((target[i] if own else target).ne(ignored).sum()) for i in range(members)]
    torch.testing.assert_close(losses.double(), wanted, rtol=2e-6, atol=2e-6, equal_nan=True)
    (grad,) = torch.autograd.grad(wanted, exact, by.double())
    for given in (by, by[:1].expand(members)):
        found = likelihood.backward(given, logs, target, counted, ignored, mean, True)
        scale = (given / by).view(-1, 1, 1)
        assert _close(found, grad * scale)
    (by_logs,) = torch.autograd.grad(
        torch.stack([F.nll_loss(row, target[i] if own else target, **how) for i, row in enumerate(exact)]),
        exact,
        by.double(),
    )
    assert _close(likelihood.backward(by, logs, target, counted, ignored, mean, False), by_logs)


@pytest.mark.parametrize("reduction", [1, 2])
def test_in_place_of_torchs_kernels(reduction: int) -> None:
    logs, target = _noise(6, 8).log_softmax(1), _labels((6,), 8, 2)
    room, count = torch.empty(()), torch.empty(())
    Binding(likelihood.nll_loss)(logs, target, None, reduction, 2, output=room, total_weight=count)
    wanted = _aten.nll_loss_forward(logs, target, None, reduction, 2)
    torch.testing.assert_close((room, count), wanted)
    by, out = torch.tensor(0.5), torch.full_like(logs, torch.nan)
    Binding(likelihood.nll_loss_backward)(by, logs, target, None, reduction, 2, count, grad_input=out)
    torch.testing.assert_close(out, _aten.nll_loss_backward(by, logs, target, None, reduction, 2, count))


@pytest.mark.parametrize("wrong", [5, -1, 2**40])
def test_targets_that_are_no_class(wrong: int) -> None:
    logs = _noise(3, 4, 5).log_softmax(2)
    target = torch.tensor([0, 1, wrong, 2])
    with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds"):
        likelihood.forward(logs, target, -100, True)
    with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds"):
        likelihood.backward(torch.ones(3), logs, target, torch.ones(3), -100, True, True)


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 7))


@pytest.mark.usefixtures("own_kernels_preferred")
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("members", [1, 3])
def test_a_network_replayed_with_it_trains_as_its_members_do(members: int, split: bool) -> None:
    torch.manual_seed(1)
    batches = [(_noise(step + 9, 5)[:9], torch.arange(9) % 7) for step in range(8)]
    array = train_beside(_net, members, batches, split)
    if split:  # each member's loss is torch's then
        return
    (seen,) = array._steps._kinds
    assert seen.program is not None, seen.reason
    assert sum(isinstance(step, likelihood.Bound) for step in seen.program.steps) == 2


def test_the_plain_modules_kernels_where_they_are_asked_for() -> None:
    array = hfta.fuse([_net() for _ in range(3)])
    for strategy, count in (("measured", 2), ("fixed", 0), ("measured", 2)):
        array.strategy = strategy
        for _ in range(5):
            array.backward(F.cross_entropy, _noise(4, 5), torch.tensor([0, 1, 6, 2]))
        (kernels,) = array._steps.kernels()
        assert sum(name.startswith("hfta_nb::likelihood") for name in kernels) == count


def test_a_wrong_target_leaves_a_replayed_step_undone() -> None:
    array = hfta.fuse([_net() for _ in range(3)])
    x, y = _noise(4, 5), torch.tensor([0, 1, 6, 2])
    for _ in range(5):
        for p in array.parameters():
            p.grad = None
        array.backward(F.cross_entropy, x, y)
    before = [p.grad.clone() for p in array.parameters() if p.grad is not None]
    with pytest.raises((MemberError, IndexError), match="Target 7 is out of bounds"):
        array.backward(F.cross_entropy, x, y + 1)
    for p, grad in zip(array.parameters(), before, strict=True):
        assert torch.equal(p.grad, grad)  # type: ignore[arg-type]
    array.backward(F.cross_entropy, x, y)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_a_loss_of_members_and_the_gradient_of_its_gradient(name: str, own: bool) -> None:
    modules = [_net() for _ in range(3)]
    x = _noise(4, 5)
    target = _labels((3, 4) if own else (4,), 7, -100)

    class Penalised(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor, y: Tensor) -> Any:
            out = self.inner(x)
            loss = getattr(F, name)(out, y)
            (grad,) = torch.autograd.grad(loss, out, create_graph=True)
            return loss + (grad.exp() * out.square()).sum()

    array = hfta.fuse([Penalised(m) for m in modules])
    losses = array(x, per_member(target) if own else target)
    losses.sum().backward()
    for i, module in enumerate(modules):
        loss = Penalised(module)(x, target[i] if own else target)
        loss.backward()
        torch.testing.assert_close(losses[i], loss)
        for key, p in module.named_parameters():
            torch.testing.assert_close(array.get_parameter(f"inner.{key}").grad[i], p.grad)  # type: ignore[index]


def test_switched_off_while_it_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    logs, target = _noise(2, 4, 5).log_softmax(2), torch.tensor([0, 1, 2, 3])
    _, counted = likelihood.forward(logs, target, -100, True)
    monkeypatch.setattr(likelihood, "library", lambda name, wait=True: None)
    assert not likelihood.usable()
    with pytest.raises(RuntimeError, match="switched off"):
        likelihood.backward(torch.ones(2), logs, target, counted, -100, True, True)
