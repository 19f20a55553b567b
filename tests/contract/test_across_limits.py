"""Members of different architectures: messages, refusals, and execution without padding."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning, FusionError, MemberError
from tests.contract.across_rows import Exp, cnn, mlp
from tests.contract.serial import loss_of


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def y() -> Tensor:
    return torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def _equal_alone(array: hfta.FusedArray, modules: list[nn.Module], x: Tensor, y: Tensor) -> None:
    losses = array.backward(loss_of, x, y)
    for i, module in enumerate(modules):
        loss = loss_of(module(x), y)
        loss.backward()
        torch.testing.assert_close(losses[i], loss.detach(), atol=1e-10, rtol=1e-10)


# What keeps two apart.


class Named(nn.Module):
    def __init__(self, mode: str = "a", extra: bool = False) -> None:
        super().__init__()
        self.mode, self.first = mode, nn.Linear(5, 5)
        if extra:
            self.second = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x)


@pytest.mark.parametrize(
    ("a", "b", "why", "remedy"),
    [
        (mlp((4,)), nn.Linear(5, 3), "module: Sequential and Linear", "one class"),
        (nn.Linear(5, 3), nn.Linear(5, 4), "out_features: 3 and 4", "one size"),
        (nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(5, 3)), "0.in_features: 4 and 5", "one size"),
        (Named("a"), Named("b"), "mode: 'a' and 'b'", "make it the same"),
        (Named(), Named(extra=True), "module: submodules", "nn.ModuleList"),
        (nn.Linear(5, 3), nn.Linear(5, 3, bias=False), "bias: only one of them has this tensor", "both"),
        (nn.Linear(5, 3), nn.Linear(5, 3).double(), "weight: torch.float32 and torch.float64", "convert"),
        (nn.Linear(5, 3), nn.Linear(5, 3).eval(), "training: True and False", "make it the same"),
    ],
)
def test_why_not_names_the_first_difference_and_what_to_change(
    a: nn.Module, b: nn.Module, why: str, remedy: str
) -> None:
    found = hfta.why_not(a, b)
    assert found is not None
    assert why in found
    assert remedy in found.remedy
    with pytest.raises(FusionError, match="member 1: differs from member 0"):
        hfta.fuse([a, b])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (mlp((4,)), mlp((8,))),
        (mlp((4,)), mlp((8, 2), nn.Tanh)),
        (cnn(2), cnn(5)),
        (nn.Dropout(0.1), nn.Dropout(0.2)),
        (nn.Linear(2, 2), nn.Linear(2, 2)),
    ],
)
def test_why_not_is_none_for_what_fuses(a: nn.Module, b: nn.Module) -> None:
    assert hfta.why_not(a, b) is None
    assert hfta.why_not(a.to("meta"), b.to("meta")) is None


def test_why_not_wants_modules() -> None:
    with pytest.raises(FusionError, match="why_not: not a module"):
        hfta.why_not(nn.ReLU(), F.relu)  # type: ignore[arg-type]


def test_tensors_of_one_name_that_can_not_be_one() -> None:
    a = nn.Sequential(nn.ModuleDict({"a": nn.Linear(5, 4)}), nn.Linear(4, 3))
    b = nn.Sequential(nn.ModuleDict({"a": nn.Conv1d(5, 4, 1)}), nn.Linear(4, 3))
    found = hfta.why_not(a, b)
    assert found is not None
    assert "tensors of one name that can't be one" in found
    assert "0.a.weight" in found


class Ragged(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.last = nn.Linear(5, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x)


def test_outputs_of_different_size_are_refused(x: Tensor) -> None:
    array = hfta.fuse([Ragged(3).double(), Ragged(4).double()])
    with pytest.raises(FusionError, match="outputs of different shapes"):
        array(x)


def test_an_error_of_the_model_names_the_member(x: Tensor) -> None:
    array = hfta.fuse([mlp((4,)).double(), mlp((8,)).double()])
    with pytest.raises(MemberError, match="member 0, `0`"):
        array(x[:, :3])


def test_members_of_different_architecture_are_not_copied_onto_each_other() -> None:
    array = hfta.fuse([mlp((4,)), mlp((8,)), mlp((4,))])
    with pytest.raises(FusionError, match="members of different architecture"):
        array.copy_member(0, 1)
    array.copy_member(0, 2)
    assert torch.equal(array[0][0].weight, array[2][0].weight)
    with pytest.raises(FusionError, match="another shape"):
        array.load_member(1, array[0].state_dict())


# What padding costs.


def test_waste_is_counted() -> None:
    narrow, wide = mlp((4,)), mlp((8,))
    array = hfta.fuse([narrow, wide])
    own = [sum(p.numel() for p in m.parameters()) for m in (narrow, wide)]
    assert array.waste() == pytest.approx(1 - sum(own) / (2 * own[1]))
    assert sum(int(v.sum()) for v in array.owned.values()) + 2 * 3 == sum(own)  # the last bias has no padding
    assert "2 architectures" in array.explain().to_string()
    assert hfta.fuse([wide, mlp((8,))]).waste() == 0


# The trap of a select: an activation that a member does not have must not spoil its gradient.


def test_another_member_s_exp_makes_no_nan() -> None:
    x = torch.full((6, 5), 1e4, dtype=torch.float64)
    y = torch.zeros(6, 3, dtype=torch.float64)
    modules = [mlp((4,), act).double() for act in (nn.ReLU, Exp)]
    with torch.no_grad():
        modules[0][0].weight.fill_(-1.0)
        modules[0][0].bias.fill_(-1.0)  # exp(-h) of this member would overflow
        modules[1][0].weight.fill_(1.0)
    array = hfta.fuse(modules)
    losses = array.backward(loss_of, x, y)
    assert losses.isfinite().all()
    assert all(p.grad.isfinite().all() for p in array.parameters())


# What can't run padded runs at true sizes, and says so.


class Careless(nn.Module):
    """Computes from its size by Python's own mathematics, which no rule sees."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.last = Scaled(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x).tanh())


class Scaled(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(5, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        return h / math.sqrt(h.shape[-1])


class Looping(nn.Module):
    """Walks over its features one by one, as many as there are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, width), nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(torch.stack([h[:, i].cos() for i in range(h.shape[1])]).sum(0)[:, None])


class Adding(nn.Module):
    """Blocks that can't simply be left out: the input is added outside of them."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(5, 5) for _ in range(depth))
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x).relu()
        return self.last(x)


class Branching(nn.Module):
    """Goes another way where it is wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.last = Fork(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x))


class Fork(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(5, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        return h.relu() if h.shape[-1] > 5 else h.tanh()


class Remembering(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.first(x).relu()
        return self.last(self.hidden)


@pytest.mark.parametrize(
    ("build", "knobs", "path", "warns"),
    [
        (Careless, (4, 7, 4), "inner", True),
        (Looping, (4, 7, 4), None, False),
        (Adding, (1, 3, 1), None, True),
        (Branching, (4, 7, 5), "inner", False),
        (Remembering, (4, 7, 4), None, False),
    ],
)
def test_what_padding_can_not_do_runs_by_architecture(
    build: Any, knobs: tuple[int, ...], path: str | None, warns: bool, x: Tensor, y: Tensor
) -> None:
    modules = [build(k).double() for k in knobs]
    array = hfta.fuse(modules)
    with pytest.warns(ArrayWarning, match="member 2 comes to another") if warns else nullcontext():
        _equal_alone(array, modules, x, y)
    assert array.block_size == 3
    assert list(array.settings.paths) == ([path] if path else [])
    assert bool(array.notes) == (path is None)
    assert "by itself" in array.explain().to_string() or "by themselves" in array.explain().to_string()
    _equal_alone(array, modules, x, y)


def test_per_member_inputs_and_float32(x: Tensor, y: Tensor) -> None:
    modules = [mlp((w,), act) for w, act in ((4, nn.ReLU), (9, nn.Tanh), (4, nn.Tanh))]
    array = hfta.fuse(modules)
    own = torch.stack([x.float() * (i + 1) for i in range(3)])
    losses = array.backward(loss_of, hfta.per_member(own), y.float())
    for i, module in enumerate(modules):
        torch.testing.assert_close(losses[i], loss_of(module(own[i]), y.float()).detach(), atol=1e-5, rtol=1e-5)
    array.double()
    assert array[1][0].weight.dtype == torch.float64
    torch.testing.assert_close(array(x)[1], modules[1].double()(x))


def test_freezing_and_modes_reach_every_member(x: Tensor) -> None:
    array = hfta.fuse([mlp((w,), p=0.5) for w in (4, 9)]).double()
    array.eval()
    torch.testing.assert_close(array(x), array(x))
    array.get_submodule("0").requires_grad_(False)
    assert not array[1][0].weight.requires_grad
    assert array[1][3].weight.requires_grad


def test_random_numbers_drawn_at_once(x: Tensor, y: Tensor) -> None:
    array = hfta.fuse([mlp((w,), p=p).double() for w, p in ((4, 0.5), (9, 0.1))], rng="fast")
    assert array.backward(loss_of, x, y).isfinite().all()
    assert not array.notes
    for name, own in array.owned.items():
        value = dict(array.named_parameters())[name]
        assert value.grad is None or not value.grad[~own].any()


_EVERY = (
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
)


@pytest.mark.parametrize("name", _EVERY)
def test_every_optimizer_leaves_padding_alone(name: str, x: Tensor, y: Tensor) -> None:
    modules = [mlp(w, act).double() for w, act in (((4, 6), nn.Tanh), ((8,), nn.Sigmoid), ((1, 5), nn.Tanh))]
    array = hfta.fuse(modules)
    optimizer = getattr(hfta.optim, name)(array, lr=0.01)
    alone = [getattr(torch.optim, name)(m.parameters(), lr=0.01) for m in modules]
    for _ in range(5):
        optimizer.zero_grad()
        array.backward(loss_of, x, y)
        optimizer.step()
        for module, own in zip(modules, alone, strict=True):
            own.zero_grad()
            loss_of(module(x), y).backward()
            own.step()
    for i, module in enumerate(modules):
        back = dict(array[i].named_parameters())
        home = getattr(torch.optim, name)(array[i].parameters(), lr=0.01)
        home.load_state_dict(optimizer.state_of(i))  # at the member's true sizes
        array.load_member(i, array[i].state_dict())
        optimizer.load_state_of(i, alone[i].state_dict())
        for key, p in module.named_parameters():
            torch.testing.assert_close(back[key], p, atol=1e-12, rtol=1e-12)
    for key, own in array.owned.items():
        assert not dict(array.named_parameters())[key].detach()[~own].any()
    optimizer.zero_grad()
    array.backward(loss_of, x, y)
    optimizer.step()
    for i, (module, own) in enumerate(zip(modules, alone, strict=True)):
        own.zero_grad()
        loss_of(module(x), y).backward()
        own.step()
        for key, p in module.named_parameters():
            torch.testing.assert_close(dict(array[i].named_parameters())[key], p, atol=1e-12, rtol=1e-12)
