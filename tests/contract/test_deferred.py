"""`array(x)`, `losses`, `sum` and `backward`, put off until the last of them: the same as if they were not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.array import FusedArray
from hfta_nb.errors import FusionError
from hfta_nb.replay.deferred import Deferred
from tests.contract.replay import MEMBERS, forget, mlp, notes, pair, same
from tests.contract.serial import plain

TOGETHER = "array(x), losses, sum, backward"
CLOSE = {"atol": 1e-13, "rtol": 1e-13}


def dropping() -> nn.Module:
    """Layers that draw random numbers."""
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))


@pytest.fixture
def y(device: torch.device) -> Tensor:
    return torch.tensor([0, 1, 2, 0, 1, 2]).to(device)


def _step(array: FusedArray, x: Tensor, y: Tensor, loss_fn: Any = F.cross_entropy) -> tuple[Tensor, Tensor, Tensor]:
    forget(array)
    out = array(x)
    losses = array.losses(loss_fn, out, y)
    total = losses.sum()
    total.backward()
    return out, losses, total


def _warm(array: FusedArray, other: FusedArray, x: Tensor, y: Tensor) -> None:
    """Until the first puts off."""
    for _ in range(14):
        for a in (array, other):
            _step(a, x, y)
        same(array, other)
    assert notes(array, TOGETHER)


def _begun(array: FusedArray, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Output and losses, before their backward."""
    forget(array)
    out = array(x)
    losses = array.losses(F.cross_entropy, out, y)
    return out, losses


@pytest.mark.each("kind", "block")
@pytest.mark.parametrize("threads", ["kernels", "one", "blocks"])
@pytest.mark.parametrize("block", [3, 2, 1])
@pytest.mark.parametrize("kind", [plain, dropping, mlp])
def test_values_and_gradients(
    kind: Callable[[], nn.Module], block: int, threads: str, x: Tensor, y: Tensor, device: torch.device
) -> None:
    if kind is not plain and device.type != "cpu":
        pytest.skip("a GPU's random streams are not put off")
    array, other = pair(kind, device)
    array.block_size, array.threads = block, threads
    for step in range(20):
        found, wanted = ([v.detach() for v in _step(a, x + step, y)] for a in (array, other))
        torch.testing.assert_close(found, wanted, **CLOSE)
        same(array, other, exact=block > 1)  # a forward alone takes all members at once: other last bits of variances
    assert notes(array, TOGETHER)
    assert not notes(other, TOGETHER)
    assert type(array(x)) is Deferred


def test_where_float32_has_settings_of_its_own_as_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, x: Tensor, y: Tensor, device: torch.device
) -> None:
    monkeypatch.setattr("hfta_nb.kernels.strategy.precision.float32", lambda device: ("ieee", "ieee", "ieee"))
    array, other = pair(plain, device)
    _warm(array, other, x, y)
    assert notes(array, TOGETHER)
    found, wanted = ([v.detach() for v in _step(a, x, y)] for a in (array, other))
    torch.testing.assert_close(found, wanted, **CLOSE)


def test_who_looks_at_a_buffer_sees_what_the_forward_has_written(x: Tensor, y: Tensor, device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("a GPU's random streams are not put off")
    array, other = pair(mlp, device)
    _warm(array, other, x, y)
    layers = [next(m for m in a.modules() if isinstance(m, nn.BatchNorm1d)) for a in (array, other)]
    looks: list[Callable[[FusedArray, nn.BatchNorm1d], Any]] = [
        lambda a, layer: layer.running_mean + 0,
        lambda a, layer: layer.num_batches_tracked.sum(),
        lambda a, layer: {k: v.clone() for k, v in a.state_dict().items()},
        lambda a, layer: a[1].state_dict(),
        lambda a, layer: layer.reset_running_stats(),
    ]
    for look in looks:
        told = []
        for a, layer in zip((array, other), layers, strict=True):
            losses = _begun(a, x + 1, y)[1]
            assert (type(layer.running_mean) is Deferred) == (a is array)
            told.append(look(a, layer))
            losses.sum().backward()
        torch.testing.assert_close(*told, **CLOSE)
        same(array, other)
        _warm(array, other, x, y)
    a, layer = array, layers[0]
    _begun(a, x, y)  # dropped
    assert type(layer.running_mean) is Tensor


def _stacked(out: Tensor, losses: Tensor) -> Tensor:
    return torch.stack([losses, losses * 2]).sum() + torch.cat([out, out]).mean()


READS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "its shape": lambda out, losses: (out.shape, losses.dtype, len(losses)),
    "its entries": lambda out, losses: (out[1, 2, 0].item(), losses.tolist()),
    "within lists": lambda out, losses: _stacked(out, losses).item(),
    "numpy": lambda out, losses: (out.detach().numpy(force=True).sum(), losses.detach().cpu().numpy().sum()),
    "text": lambda out, losses: (f"{losses.detach()}", repr(out).partition("dtype")[0]),
    "without gradients": lambda out, losses: torch.no_grad()(lambda: (out * 2).sum().item())(),
    "in inference mode": lambda out, losses: torch.inference_mode()(lambda: (losses * 2).sum().item())(),
    "that it has a gradient": lambda out, losses: (out.requires_grad, losses.is_leaf, out.grad_fn is None),
}


@pytest.mark.parametrize("read", READS)
def test_who_looks_sees_what_is_there(read: str, x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(dropping if device.type == "cpu" else plain, device)
    _warm(array, other, x, y)
    for when in ("before the backward", "after it"):
        for shift in range(9):  # beyond the number of times that it goes on trying
            told = []
            for a in (array, other):
                out, losses = _begun(a, x + shift, y)
                if when == "before the backward":
                    told.append(READS[read](out, losses))
                losses.sum().backward()
                if when != "before the backward" and "gradient" not in read:
                    told.append(READS[read](out, losses))
            for found, wanted in zip(told[::2], told[1::2], strict=True):
                assert found == wanted or torch.testing.assert_close(found, wanted, **CLOSE) is None
            same(array, other)
        if when == "before the backward":
            assert not notes(array, TOGETHER)  # it has learned that
            array, other = pair(dropping if device.type == "cpu" else plain, device)
            _warm(array, other, x, y)
    assert notes(array, TOGETHER)


def _sum_of_function(losses: Tensor) -> None:
    torch.sum(losses).backward()


def _by_autograd(losses: Tensor) -> None:
    torch.autograd.backward(losses.sum())


def _with_gradient(losses: Tensor) -> None:
    losses.backward(torch.ones_like(losses))


def _along_an_axis(losses: Tensor) -> None:
    losses.sum(0).backward()


@pytest.mark.parametrize("way", [_sum_of_function, _by_autograd, _with_gradient, _along_an_axis])
def test_other_ways_to_the_same(way: Callable[[Tensor], None], x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    _warm(array, other, x, y)
    for shift in range(4):
        for a in (array, other):
            way(_begun(a, x + shift, y)[1])
        same(array, other)


def test_inputs_that_are_written_to_before_somebody_looks(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    _warm(array, other, x, y)
    told = []
    for a in (array, other):
        given, target = x.clone(), y.clone()
        out, losses = _begun(a, given, target)
        given.zero_()
        target.zero_()
        told.append((out.detach(), losses.detach()))
    torch.testing.assert_close(*told, **CLOSE)
    _warm(array, other, x, y)
    given = x.clone()
    losses = _begun(array, given, y)[1]
    given.zero_()
    losses.sum().backward()  # autograd would refuse, as it has not kept the input
    _step(other, x, y)
    same(array, other)


def test_what_nobody_looks_at_has_drawn_its_random_numbers(x: Tensor, y: Tensor) -> None:
    array, other = pair(dropping, x.device)
    _warm(array, other, x, y)
    for a in (array, other):
        a(x)  # dropped at once
        _begun(a, x, y)
    same(array, other)
    for a in (array, other):
        kept = _begun(a, x, y)
        a.select([0, 1])  # members with their random streams
        _step(a, x + 1, y)
        del kept
    same(array, other)


def test_parameters_that_have_changed_since(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    _warm(array, other, x, y)
    out, losses = _begun(array, x, y)
    with torch.no_grad():
        array.get_parameter("0.weight").mul_(2)
    with pytest.raises(FusionError, match="the model has changed"):
        out.mean()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        losses.sum().backward()


def test_what_is_done_to_the_array_comes_after(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(dropping if device.type == "cpu" else plain, device)
    optimizers = [hfta.optim.SGD(a, lr=[0.1, 0.01, 0.03]) for a in (array, other)]
    changes: list[Callable[[FusedArray], Any]] = [
        lambda a: a.eval(),
        lambda a: a.train(),
        lambda a: a.load_member(1, a[0].state_dict()),
        lambda a: a.copy_member(0, 2),
        lambda a: a.to(torch.float64),
        lambda a: optimizers[a is other].step(),
        lambda a: a.evaluate(F.cross_entropy, x, y),
    ]
    for change in changes:
        _warm(array, other, x, y)
        told = []
        for a in (array, other):
            forget(a)
            _step(a, x, y)
            out, losses = a(x + 1), None
            losses = a.losses(F.cross_entropy, out, y)
            change(a)
            told.append((out.detach(), losses.detach()))
            a.train()
        torch.testing.assert_close(*told, **CLOSE)


def test_an_error_leaves_all_to_be_done_again(
    x: Tensor, y: Tensor, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, other = pair(plain, device)
    _warm(array, other, x, y)
    out, losses = _begun(array, x, y)
    total = losses.sum()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(array._steps, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            total.backward()
        m.setattr(array._forwards, "replay", interrupted)
        with pytest.raises(KeyboardInterrupt):
            out.mean()
    assert all(p.grad is None for p in array.parameters())
    total.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        total.backward()
    wanted = _step(other, x, y)
    torch.testing.assert_close((out, losses, total), tuple(v.detach() for v in wanted), **CLOSE)
    same(array, other)


def test_a_loss_that_changes_and_targets_of_other_shapes(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    criteria = [nn.CrossEntropyLoss(label_smoothing=0.1) for _ in range(2)]
    for step in range(40):
        size = 4 if step in (20, 30) else 6
        for criterion in criteria:
            criterion.label_smoothing = 0.3 if step >= 25 else 0.1
        told = [
            [v.detach() for v in _step(a, x[:size], y[:size], c)] for a, c in zip((array, other), criteria, strict=True)
        ]
        torch.testing.assert_close(*told, **CLOSE)
        same(array, other)
    assert notes(array, TOGETHER)


def test_one_array_s_output_is_another_s_input(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    heads = [hfta.fuse([nn.Linear(3, 3, dtype=torch.float64, device=device) for _ in range(MEMBERS)]) for _ in "ab"]
    for p, q in zip(*(h.parameters() for h in heads), strict=True):
        q.data.copy_(p.data)
    _warm(array, other, x, y)
    for step in range(8):
        for a, head in zip((array, other), heads, strict=True):
            forget(a)
            head(a(x + step)[0]).square().mean().backward()
        same(array, other)


def test_parameters_with_hooks(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    _warm(array, other, x, y)
    for a in (array, other):
        next(a.parameters()).register_hook(lambda g: g * 2)  # type: ignore[no-untyped-call]
    for step in range(4):
        for a in (array, other):
            _step(a, x + step, y)
        same(array, other)


def test_mixed_precision(x: Tensor, y: Tensor) -> None:
    array, _ = pair(plain, x.device, torch.float32)
    for _ in range(14):
        forget(array)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            out = array(x.float())
            losses = array.losses(F.cross_entropy, out, y)
        losses.sum().backward()
        assert out.dtype == torch.bfloat16
        assert losses.dtype == torch.float32
    assert notes(array, TOGETHER)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        out = array(x.float())
    assert (out.float() * 1).dtype == torch.float32
    assert out.dtype == torch.bfloat16


class _Doubled(torch.autograd.Function):
    """Takes its input past `__torch_function__`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


def test_another_backward_through_a_function_of_the_caller_s_own(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = pair(plain, device)
    for step in range(14):
        for a in (array, other):
            forget(a)
            out = a(x + step)
            beside = _Doubled.apply(out)  # type: ignore[no-untyped-call]
            losses = a.losses(F.cross_entropy, out, y)
            beside.mean().backward(retain_graph=True)
            losses.sum().backward()
        same(array, other)
