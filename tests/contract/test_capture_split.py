"""Replayed `array(x)` with a loss of the caller's own: the same as autograd's, in whatever way it is used."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.array import FusedArray
from hfta_nb.array.capture.node import Replayed
from hfta_nb.errors import FusionError
from tests.contract.rows import MODULES, ModuleRow
from tests.contract.serial import loss_of, make, target_for

MEMBERS, SEEDS = 3, [1, 2, 3]
REPLAYED = "replayed from a recording"
TIGHT = {"atol": 1e-14, "rtol": 1e-14}


def _pair(build: Any, device: torch.device, dtype: torch.dtype = torch.float64) -> tuple[FusedArray, FusedArray]:
    """The same array twice, of which the first may replay."""
    arrays = [hfta.fuse(make(build, MEMBERS, dtype, device), SEEDS) for _ in range(2)]
    arrays[1].capture = False
    return arrays[0], arrays[1]


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)


def _notes(array: FusedArray, what: str = "array(x)") -> str:
    table = array.explain()
    return "; ".join(table["how"][table["function"] == what])


def _forget(array: FusedArray) -> None:
    for p in array.parameters():
        p.grad = None


def _loss(outputs: Any) -> Tensor:
    tensors = outputs if isinstance(outputs, tuple | list) else [outputs]
    return sum((t.square().mean() + t.sin().sum() for t in tensors), torch.zeros(()))


def _step(array: FusedArray, x: Any, keep: bool = False) -> Tensor:
    if not keep:
        _forget(array)
    out = array(x)
    _loss(out).backward()
    return out  # type: ignore[no-any-return]


def _same(a: FusedArray, b: FusedArray) -> None:
    for (name, p), (_, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, atol=1e-13, rtol=1e-13)
    for p, q in zip(a.buffers(), b.buffers(), strict=True):
        assert torch.equal(p, q)
    for s, t in zip(a.generators.states, b.generators.states, strict=True):
        assert all(torch.equal(s[k], t[k]) for k in s)


def _warm(array: FusedArray, other: FusedArray, x: Any) -> None:
    for _ in range(4):
        torch.testing.assert_close(_step(array, x), _step(other, x), **TIGHT)
        _same(array, other)
    assert _notes(array) == REPLAYED


def _replayed(out: Tensor) -> bool:
    return type(out.grad_fn).__name__ == f"{Replayed.__name__}Backward"


NOT = {"control flow on values"}
"""Rows whose way depends on values."""


@pytest.mark.parametrize("block", [3, 2, 1])
@pytest.mark.parametrize("row", MODULES, ids=lambda r: r.name)
def test_every_module_is_replayed(row: ModuleRow, block: int, device: torch.device) -> None:
    array, other = _pair(row.build, device)
    array.block_size = other.block_size = block
    target = target_for(row.build().to(device, torch.float64), row.x().to(device))
    for step in range(6):
        x = row.x().to(device)
        for a in (array, other):
            _forget(a)
        losses = [torch.func.vmap(loss_of, (0, None))(a(x), target + step) for a in (array, other)]
        for loss in losses:
            loss.sum().backward()
        torch.testing.assert_close(losses[0], losses[1], **TIGHT)
        _same(array, other)
    assert (_notes(array) == REPLAYED) == (row.name not in NOT), _notes(array)


def test_outputs_and_gradients_are_the_caller_s(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    _warm(array, other, x)
    first = _step(array, x)
    kept, before = first.detach().clone(), x.clone()
    _step(array, x + 1)
    assert torch.equal(first, kept)
    assert torch.equal(x, before)
    first.detach().add_(1)  # what was returned can be written to
    for shift in (0, 1):
        _step(other, x + shift)
    _step(array, x)
    _step(other, x)
    _same(array, other)


def test_adding_to_gradients(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    _warm(array, other, x)
    for i in range(3):
        _step(array, x + i, keep=True)
        _step(other, x + i, keep=True)
        _same(array, other)
    for a in (array, other):
        for p in a.parameters():
            p.grad = torch.ones_like(p)  # not in the arena
        _step(a, x, keep=True)
    _same(array, other)


def test_steps_by_an_optimizer(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    optimizers = [hfta.optim.Adam(a, lr=[0.1, 0.01, 0.03]) for a in (array, other)]
    for _ in range(12):
        for a, optimizer in zip((array, other), optimizers, strict=True):
            optimizer.zero_grad()
            _loss(a(x)).backward()
            optimizer.step()
    for p, q in zip(array.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-11, rtol=1e-11)
    assert _notes(array) == REPLAYED


def test_two_forwards_before_a_backward(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    _warm(array, other, x)
    for a in (array, other):
        _forget(a)
        one, two = a(x), a(x + 1)
        assert _replayed(one) == (a is array)
        assert not _replayed(two)
        (_loss(one) + 2 * _loss(two)).backward()
    _same(array, other)
    for a in (array, other):
        one = a(x)
        two = a((x + 1)[:4])
        _loss(two).backward()
        _loss(one).backward()
    _same(array, other)


def test_a_forward_whose_outputs_are_gone_is_not_waited_for(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_plain, device)
    _warm(array, other, x)
    for _ in range(3):
        out = array(x)
        assert _replayed(out)
        watch = weakref.ref(out.grad_fn)
        del out
        gc.collect()
        assert watch() is None


def test_the_same_graph_twice(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    _warm(array, other, x)
    for a in (array, other):
        _forget(a)
        loss = _loss(a(x))
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    _same(array, other)
    for a in (array, other):  # with another step in between
        out = a(x)
        _loss(out).backward(retain_graph=True)
        _step(a, x * 2, keep=True)
        (_loss(out) * 3).backward()
    _same(array, other)


def test_gradients_of_gradients(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_plain, device)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    for _ in range(6):
        for a, leaf in zip((array, other), leaves, strict=True):
            _forget(a)
            leaf.grad = None
            (slope,) = torch.autograd.grad(_loss(a(leaf)), leaf, create_graph=True)
            slope.square().sum().backward()
        assert leaves[0].grad is not None
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad, **TIGHT)
        _same(array, other)


def test_gradients_of_inputs(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    factor = torch.ones((), dtype=x.dtype, device=device, requires_grad=True)
    for step in range(6):
        grads = []
        for a in (array, other):
            _forget(a)
            leaf, own = x.clone().requires_grad_(), torch.stack([x, x + 1, x + 2]).requires_grad_()
            factor.grad = None
            _loss(a(leaf * factor * (step + 1))).backward()
            _loss(a(hfta.per_member(own))).backward()
            grads.append((leaf.grad, own.grad, factor.grad))
        torch.testing.assert_close(grads[0], grads[1], **TIGHT)
        _same(array, other)
    assert _notes(array) == REPLAYED


def test_gradients_by_autograd_grad_are_the_caller_s(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    _warm(array, other, x)
    found = []
    for a in (array, other):
        _forget(a)
        _loss(a(x)).backward()
        one = torch.autograd.grad(_loss(a(x)), list(a.parameters()))
        two = torch.autograd.grad(_loss(a(x + 1)), list(a.parameters())[:2])
        found.append((one, two))
        _loss(a(x)).backward(inputs=list(a.parameters())[2:])
    torch.testing.assert_close(found[0], found[1], **TIGHT)
    _same(array, other)


def test_adding_to_gradients_in_the_arena_warns_of_nothing() -> None:
    code = (
        "import torch; from hfta_nb import fuse; a = fuse([torch.nn.Linear(2, 2) for _ in range(3)]); "
        "x = torch.ones(4, 2); a.backward(lambda o, y: o.sum(), x); a(x).sum().backward()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


class Two(nn.Module):
    """Gives two outputs, each from a layer of its own, and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(5, 4), nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = self.body(x).tanh()
        left = self.left(hidden)
        return {"left": left, "right": self.right(hidden), "mask": left > 0, "count": 2}


def test_some_outputs_only(x: Tensor, device: torch.device) -> None:
    array, other = _pair(Two, device)
    for used in (["left"], ["left", "right"], ["right"], ["left"], ["right"]):
        for _ in range(5):
            told = []
            for a in (array, other):
                _forget(a)
                out = a(x)
                assert out["count"] == 2
                assert not out["mask"].requires_grad
                _loss([out[k] for k in used]).backward()
                told.append(out)
            torch.testing.assert_close(told[0], told[1], **TIGHT)
            _same(array, other)


def test_hooks_on_parameters(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    _warm(array, other, x)
    seen: list[list[Any]] = [[], []]
    for a, log in zip((array, other), seen, strict=True):
        p = a.get_parameter("0.weight")
        p.register_hook(lambda g, log=log: log.append(g.clone()) or g * 2)
        a.get_parameter("4.weight").register_post_accumulate_grad_hook(lambda p, log=log: log.append(p.grad.clone()))
    for step in range(5):
        _step(array, x + step)
        _step(other, x + step)
        _same(array, other)
    assert len(seen[0]) == 10
    torch.testing.assert_close(sorted(seen[0], key=len), sorted(seen[1], key=len))


def test_hooks_when_gradients_are_there(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_plain, device)
    _warm(array, other, x)
    kept: list[list[Tensor]] = [[], []]
    for a, log in zip((array, other), kept, strict=True):
        a.get_parameter("2.weight").register_post_accumulate_grad_hook(lambda p, log=log: log.append(p.grad))
        for _ in range(3):
            _step(a, x)
    torch.testing.assert_close(kept[0], kept[1], **TIGHT)
    assert _notes(array) == REPLAYED


def test_a_penalty_on_the_parameters_beside(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    for _ in range(6):
        for a in (array, other):
            _forget(a)
            (_loss(a(x)) + sum(p.square().sum() for p in a.parameters())).backward()
        _same(array, other)
    assert _notes(array) == REPLAYED


def _frozen(array: FusedArray) -> None:
    array.get_parameter("0.weight").requires_grad_(False)


CHANGES: dict[str, Callable[[FusedArray], Any]] = {
    "a dropout rate": lambda a: setattr(a.get_submodule("3"), "p", 0.7),
    "a hook": lambda a: a.get_submodule("0").register_forward_hook(lambda m, args, out: out * 2),
    "a frozen parameter": _frozen,
    "all frozen": lambda a: a.requires_grad_(False) and a.get_parameter("4.bias").requires_grad_(True),
    "eval": lambda a: a.eval(),
    "part of it in eval": lambda a: a.get_submodule("1").eval(),
    "blocks": lambda a: setattr(a, "block_size", 2),
    "a copied member": lambda a: a.copy_member(0, 2),
    "values": lambda a: a.get_parameter("0.weight").data.mul_(2),
    "a loaded member": lambda a: a.load_member(1, a[0].state_dict()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_is_seen(change: str, x: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    _warm(array, other, x)
    for a in (array, other):
        CHANGES[change](a)
    for _ in range(5):
        torch.testing.assert_close(_step(array, x), _step(other, x), **TIGHT)
        _same(array, other)


def test_a_change_between_forward_and_backward(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_plain, device)
    _warm(array, other, x)
    for a in (array, other):
        given = x.clone()
        loss = _loss(a(given))
        given.add_(1)
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
            loss.backward()
        loss = _loss(a(x))
        with torch.no_grad():
            a.get_parameter("2.weight").add_(1)
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation|has been modified inplace"):
            loss.backward()


def test_a_backward_that_must_compute_again_and_can_t_says_so(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    _warm(array, other, x)
    loss = _loss(array(x))
    loss.backward(retain_graph=True)
    array.get_submodule("3").p = 0.5
    with pytest.raises(FusionError, match="since then an input or the model has changed"):
        loss.backward()


def test_a_change_of_the_model_before_the_backward(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    _warm(array, other, x)
    for a in (array, other):
        _forget(a)
        loss = _loss(a(x))
        a.eval()
        a.get_submodule("3").p = 0.9
        a(x)
        loss.backward()
    _same(array, other)


def test_a_loss_that_is_kept_keeps_no_inputs(device: torch.device) -> None:
    array, other = _pair(_plain, device)
    given = torch.ones(6, 5, dtype=torch.float64, device=device)
    _warm(array, other, given)
    own = given.clone()
    watch = weakref.ref(own)
    loss = _loss(array(own))
    loss.backward()
    del own
    gc.collect()
    assert watch() is None
    assert loss.grad_fn is not None


def test_backward_and_split_form_beside_each_other(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    y = torch.ones(6, 3, dtype=x.dtype, device=device)
    for step in range(7):
        for a in (array, other):
            _forget(a)
            out = a(x + step)
            a.backward(loss_of, x, y)
            _loss(out).backward()
            a.backward(loss_of, x, y)
        _same(array, other)
    assert _notes(array) == _notes(array, "backward") == REPLAYED


def test_without_gradients(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    y = torch.ones(6, 3, dtype=x.dtype, device=device)
    for mode in (True, False):
        for step in range(6):
            told = []
            for a in (array, other):
                a.train(mode)
                with torch.no_grad():
                    one = a(x + step)
                with torch.inference_mode():
                    two = a(x + step)
                told.append((one, two.clone(), a.evaluate(loss_of, x + step, y)))
                assert not one.requires_grad
            torch.testing.assert_close(told[0], told[1], **TIGHT)
            _same(array, other)
    assert _notes(array, "without gradients") == REPLAYED


def test_results_without_gradients_are_the_caller_s(x: Tensor, device: torch.device) -> None:
    array, _ = _pair(_plain, device)
    array.eval()
    with torch.no_grad():
        wanted = array(x).clone()
        for _ in range(6):
            told = array(x)
            assert torch.equal(told, wanted)
            told.add_(1)


def test_somebody_s_transforms(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_plain, device)
    _warm(array, other, x)
    rows = [
        torch.autograd.functional.jacobian(lambda v, a=a: a(v).sum((0, 1)), x, vectorize=vectorize)
        for a in (array, other)
        for vectorize in (False, True)
    ]
    for row in rows[1:]:
        torch.testing.assert_close(rows[0], row, **TIGHT)
    for a in (array, other):
        _forget(a)
        with torch.autograd.graph.save_on_cpu():
            out = a(x)
        assert not _replayed(out)
        _loss(out).backward()
    _same(array, other)


def test_mixed_precision(x: Tensor) -> None:
    array, other = _pair(_plain, x.device, torch.float32)
    for _ in range(6):
        told = []
        for a in (array, other):
            _forget(a)
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                out = a(x.float())
            assert out.dtype == torch.bfloat16
            _loss(out.float()).backward()
            told.append(out)
        assert torch.equal(*told)
        for p, q in zip(array.parameters(), other.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad)
    assert _notes(array) == REPLAYED


WAYS: dict[str, Callable[[FusedArray, Tensor], Tensor]] = {
    "backward": lambda a, x: a.backward(loss_of, x, x[:, :3]),
    "evaluate": lambda a, x: a.evaluate(loss_of, x, x[:, :3]),
    "array(x)": lambda a, x: a(x).float().square().mean((1, 2)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block", [1, MEMBERS])
def test_weights_that_autocast_keeps_are_not_kept_by_a_recording(way: str, block: int, x: Tensor) -> None:
    array, other = _pair(_plain, x.device, torch.float32)
    array.block_size = other.block_size = block
    for _ in range(3):
        told = []
        for a in (array, other):
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                for _ in range(4):
                    _forget(a)
                    result = WAYS[way](a, x.float()).detach()
            with torch.no_grad():
                for p in a.parameters():
                    p.sub_(0.05)
            told.append(result)
        torch.testing.assert_close(*told, atol=1e-3, rtol=1e-2)


class Picks(nn.Module):
    """Picks entries by their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.order = nn.Linear(5, 4), [2, 0]

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[:, self.order].sin()


def test_entries_picked_by_their_numbers(x: Tensor, device: torch.device) -> None:
    array, other = _pair(Picks, device)
    for step in range(10):
        if step == 6:
            for a in (array, other):
                a._skeleton.order[1] = 3  # type: ignore[union-attr, index, operator]
        for a in (array, other):
            _step(a, x)
        told = [a.evaluate(lambda o, t: o[[1, 0]], x) for a in (array, other)]
        torch.testing.assert_close(*told, **TIGHT)
        _same(array, other)
        assert step != 5 or _notes(array) == _notes(array, "without gradients") == REPLAYED


class MakesTensors(Picks):
    """Makes a tensor of the value of another."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * torch.tensor([x.detach().sum(), 2.0]).to(x).sum()


@pytest.mark.filterwarnings("ignore:Converting a tensor:UserWarning")
def test_a_tensor_made_of_values_is_no_constant(x: Tensor, device: torch.device) -> None:
    array, other = _pair(MakesTensors, device)
    for factor in (1, 1, 1, 1, 1, 2, 3):  # the same at first, as if it were one
        told = [(_step(a, x * factor), a.backward(loss_of, x * factor, x[:, :4])) for a in (array, other)]
        torch.testing.assert_close(*told, **TIGHT)
        _same(array, other)
    assert (
        _notes(array)
        == _notes(array, "backward")
        == "not replayed: a tensor is made of numbers that may be values of others"
    )


class Aliased(nn.Module):
    """Gives the same memory twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.inner(x)
        return out, out[:, :2]


class Returns(Aliased):
    """Gives its input back."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(x), x


class Hooked(Aliased):
    """A submodule has a backward hook."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 4)
        self.last.register_full_backward_hook(lambda module, gave, took: None)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.last(self.inner(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [Aliased, Returns, Hooked])
def test_what_is_not_replayed_is_said(kind: type[nn.Module], x: Tensor, device: torch.device) -> None:
    array, other = _pair(kind, device)
    for _ in range(5):
        torch.testing.assert_close(_step(array, x), _step(other, x), **TIGHT)
        _same(array, other)
    assert _notes(array).startswith("not replayed: ")


class Doubling(torch.autograd.Function):
    """Its backward writes into what the forward has kept."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (kept,) = ctx.saved_tensors
        kept.data.mul_(0.5)
        return grad * kept


class Scribbling(nn.Module):
    """Uses it, one member at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return Doubling.apply(self.inner(x)).sin()  # type: ignore[no-any-return, no-untyped-call]


def test_a_backward_that_writes_into_the_forward_s_memory(x: Tensor, device: torch.device) -> None:
    array, other = _pair(Scribbling, device)
    array.block_size = other.block_size = 1
    for _ in range(5):
        torch.testing.assert_close(_step(array, x), _step(other, x), **TIGHT)
        _same(array, other)
    assert "writes into what the forward has made" in _notes(array)


def test_the_loss_that_a_person_writes(x: Tensor, device: torch.device) -> None:
    array, other = _pair(_plain, device)
    y = torch.tensor([0, 1, 2, 0, 1, 2], device=device)
    for _ in range(5):
        for a in (array, other):
            _forget(a)
            out = a(x)
            F.cross_entropy(out.flatten(0, 1), y.repeat(MEMBERS)).mul(MEMBERS).backward()
        _same(array, other)
    assert _notes(array) == REPLAYED
