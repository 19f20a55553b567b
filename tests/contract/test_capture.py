"""Replayed steps: the same to the last bit as steps that are not, and never replayed where code could tell."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.array import FusedArray
from hfta_nb.array.strategy.pooling import ChannelsLast, max_pool2d
from hfta_nb.errors import FusionError, MemberError
from tests.contract.rows import MODULES, ModuleRow
from tests.contract.serial import loss_of, make, target_for

MEMBERS, SEEDS = 3, [1, 2, 3]
REPLAYED = "replayed from a recording"
NOT = {"control flow on values"}
"""Rows whose way depends on values."""


def _pair(build: Any, device: torch.device, dtype: torch.dtype = torch.float64) -> tuple[FusedArray, FusedArray]:
    """The same array twice, of which the first may replay."""
    arrays = [hfta.fuse(make(build, MEMBERS, dtype, device), SEEDS) for _ in range(2)]
    arrays[1].capture = False
    return arrays[0], arrays[1]


def _step(array: FusedArray, loss: Any, x: Any, y: Any, **more: Any) -> Any:
    for p in array.parameters():
        p.grad = None
    return array.backward(loss, x, y, **more)


def _same(a: FusedArray, b: FusedArray, exact: bool = True) -> None:
    close = {} if exact else {"atol": 1e-12, "rtol": 1e-12}
    for (name, p), (_, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None and q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, **(close or {"atol": 1e-15, "rtol": 1e-15}))
    for p, q in zip(a.buffers(), b.buffers(), strict=True):
        assert torch.equal(p, q)
    for s, t in zip(a.generators.states, b.generators.states, strict=True):
        assert all(torch.equal(s[k], t[k]) for k in s)


def _notes(array: FusedArray) -> str:
    table = array.explain()
    return "; ".join(table["how"][table["function"] == "backward"])


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)


@pytest.fixture
def y(device: torch.device) -> Tensor:
    return torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)


def _warm(array: FusedArray, other: FusedArray, loss: Any, x: Any, y: Any) -> None:
    for _ in range(4):
        _step(array, loss, x, y)
        _step(other, loss, x, y)
    assert _notes(array) == REPLAYED


@pytest.mark.parametrize("block", [3, 2, 1])
@pytest.mark.parametrize("row", MODULES, ids=lambda r: r.name)
def test_every_module_is_replayed_to_the_bit(row: ModuleRow, block: int, device: torch.device) -> None:
    array, other = _pair(row.build, device)
    array.block_size = other.block_size = block
    target = target_for(row.build().to(device, torch.float64), row.x().to(device))
    for step in range(6):
        x = row.x().to(device)
        y = target + step
        losses = _step(array, loss_of, x, y), _step(other, loss_of, x, y)
        torch.testing.assert_close(*losses, atol=1e-14, rtol=1e-14)
        _same(array, other)
    assert (_notes(array) == REPLAYED) == (row.name not in NOT)


def test_results_inputs_and_gradients_are_the_caller_s(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    _warm(array, other, loss_of, x, y)
    first = _step(array, loss_of, x, y)
    kept, before = first.clone(), x.clone()
    _step(array, loss_of, x + 1, y)
    assert torch.equal(first, kept)
    assert torch.equal(x, before)
    other.backward(loss_of, x, y)  # in step with the first again
    _step(other, loss_of, x + 1, y)
    _same(array, other)
    array.backward(loss_of, x, y)
    other.backward(loss_of, x, y)  # added to what is there
    _same(array, other)


def test_auxiliary_results_scales_and_inputs_per_member(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)

    def scored(output: Tensor, target: Tensor) -> Any:
        return loss_of(output, target), {"largest": output.max(), "n": 3, "nothing": None}

    for step in range(6):
        scale = torch.tensor([1.0, 2.0, 4.0 + step], dtype=torch.float64, device=device)
        inputs = hfta.per_member(torch.stack([x * (i + 1) + step for i in range(MEMBERS)]))
        told = [_step(a, scored, inputs, y, has_aux=True, scale=scale) for a in (array, other)]
        torch.testing.assert_close(told[0], told[1], atol=1e-14, rtol=1e-14)
        _same(array, other)
    assert _notes(array) == REPLAYED


def test_some_parameters_only(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    for only in (["0.weight"], ["4.weight", "4.bias"]):
        for _ in range(4):
            _step(array, loss_of, x, y, only=only)
            _step(other, loss_of, x, y, only=only)
            _same(array, other)
            assert [name for name, p in array.named_parameters() if p.grad is not None] == only
    assert _notes(array) == REPLAYED


def test_a_function_made_anew_at_each_call_is_known(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    weight = 2.0
    for _ in range(5):
        _step(array, lambda o, t: weight * loss_of(o, t), x, y)
        _step(other, lambda o, t: weight * loss_of(o, t), x, y)
        _same(array, other)
    assert _notes(array) == REPLAYED


# What changes after the recording is seen.

WEIGHT = 1.0


def _global_weight(output: Tensor, target: Tensor) -> Tensor:
    return WEIGHT * loss_of(output, target)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = 1.0
        self.parts = {"scale": [1.0]}

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self.weight * self.parts["scale"][0] * loss_of(output, target)


def _dropout(array: FusedArray) -> None:
    array.get_submodule("3").p = 0.7


def _momentum(array: FusedArray) -> None:
    array.get_submodule("1").momentum = 0.5


def _hook(array: FusedArray) -> None:
    array.get_submodule("0").register_forward_hook(lambda m, a, out: out * 2)


def _frozen(array: FusedArray) -> None:
    array.get_parameter("0.weight").requires_grad_(False)


def _other_forward(array: FusedArray) -> None:
    array.get_submodule("2").forward = torch.tanh


CHANGES: dict[str, Callable[[FusedArray], Any]] = {
    "a dropout rate": _dropout,
    "a momentum": _momentum,
    "a hook": _hook,
    "a frozen parameter": _frozen,
    "a forward of its own": _other_forward,
    "eval": lambda a: a.eval(),
    "part of it in eval": lambda a: a.get_submodule("1").eval(),
    "blocks": lambda a: setattr(a, "block_size", 2),
    "a copied member": lambda a: a.copy_member(0, 2),
    "values": lambda a: a.get_parameter("0.weight").data.mul_(2),
    "a loaded member": lambda a: a.load_member(1, a[0].state_dict()),
    "a replaced submodule": lambda a: a._skeleton.register_module("2", nn.Tanh()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_is_seen(change: str, x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    _warm(array, other, loss_of, x, y)
    CHANGES[change](array)
    CHANGES[change](other)
    for _ in range(4):
        losses = _step(array, loss_of, x, y), _step(other, loss_of, x, y)
        torch.testing.assert_close(*losses, atol=1e-14, rtol=1e-14)
        _same(array, other)


def test_a_change_of_the_loss_is_seen(x: Tensor, y: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    array, other = _pair(_mlp, x.device)
    module, state, held = Weighted(), SimpleNamespace(weight=1.0), [1.0]

    def by_state(output: Tensor, target: Tensor) -> Tensor:
        return state.weight * held[0] * loss_of(output, target)

    def change_global() -> None:
        monkeypatch.setitem(globals(), "WEIGHT", 3.0)

    pairs: list[tuple[Any, Callable[[], Any]]] = [
        (_global_weight, change_global),
        (module, lambda: setattr(module, "weight", 3.0)),
        (module, lambda: module.parts["scale"].__setitem__(0, 5.0)),
        (by_state, lambda: setattr(state, "weight", 2.0)),
        (by_state, lambda: held.__setitem__(0, 7.0)),
    ]
    for loss, change in pairs:
        _warm(array, other, loss, x, y)
        change()
        for _ in range(4):
            losses = _step(array, loss, x, y), _step(other, loss, x, y)
            torch.testing.assert_close(*losses, atol=1e-14, rtol=1e-14)
            _same(array, other)


def test_other_inputs_and_settings_of_torch_are_other_calls(x: Tensor, y: Tensor) -> None:
    array, other = _pair(_mlp, x.device)
    _warm(array, other, loss_of, x, y)
    for inputs in ((x[:4], y[:4]), (x.t().contiguous().t(), y), (x, y), (x[:4], y[:4])):
        for _ in range(4):
            losses = _step(array, loss_of, *inputs), _step(other, loss_of, *inputs)
            torch.testing.assert_close(*losses, atol=1e-14, rtol=1e-14)
            _same(array, other)
    array, other = _pair(_mlp, x.device, torch.float32)
    x, y = x.float(), y.float()
    _warm(array, other, loss_of, x, y)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        low = [_step(a, loss_of, x, y) for a in (array, other)]
    assert torch.equal(*low)
    leaf = x.clone().requires_grad_()
    _step(array, loss_of, leaf, y)
    assert leaf.grad is not None


def test_surgery_goes_on_from_a_replayed_step(x: Tensor, y: Tensor, device: torch.device) -> None:
    array, other = _pair(_mlp, device)
    _warm(array, other, loss_of, x, y)
    array, other = array.select([2, 0]), other.select([2, 0])
    other.capture = False
    for _ in range(5):
        _step(array, loss_of, x, y)
        _step(other, loss_of, x, y)
        _same(array, other)
    array.float()
    losses = [_step(array, loss_of, x.float(), y.float()) for _ in range(5)]
    assert losses[-1].dtype == torch.float32


# What can't be replayed is not.

LOG: list[Any] = []


class Effect(nn.Module):
    """Does something beside computing."""

    def __init__(self, effect: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.effect = nn.Linear(5, 3), effect

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x)
        factor = self.effect(out)
        return out if factor is None else out * factor


def _counted(x: Tensor) -> float:
    _counted.calls = getattr(_counted, "calls", 0) + 1  # type: ignore[attr-defined]
    return 1.0 / _counted.calls  # type: ignore[attr-defined]


EFFECTS: dict[str, Callable[[Tensor], Any]] = {
    "prints": lambda x: print("here"),
    "keeps a log": lambda x: LOG.append(1),
    "counts": _counted,
    "asks the clock": lambda x: 1.0 if time.time() > 0 else 2.0,
    "draws by Python": lambda x: random.random(),
    "draws by numpy": lambda x: float(np.random.rand()),
    "reads a value": lambda x: 2.0 if x.detach().sum().item() > 0 else None,
    "reads an array": lambda x: 2.0 if x.detach().numpy().sum() > 0 else None,
    "seeds": lambda x: torch.manual_seed(0) and None,
    "asks the date": lambda x: float(datetime.now().year),
    "imports": lambda x: __import__("time").time() * 0 + 1,
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_code_with_effects_is_not_replayed(effect: str, x: Tensor, y: Tensor, capsys: Any) -> None:
    modules = make(lambda: nn.Sequential(Effect(EFFECTS[effect]), nn.Tanh()), 2, torch.float64, x.device)
    array = hfta.fuse(modules, [1, 2])
    LOG.clear()
    for _ in range(5):
        _step(array, loss_of, x, y)
    assert REPLAYED not in _notes(array)
    if effect == "prints":
        assert capsys.readouterr().out.count("here") >= 5
    if effect == "keeps a log":
        assert len(LOG) >= 5


def test_a_loss_that_counts_is_not_replayed(x: Tensor, y: Tensor) -> None:
    calls = 0

    def counting(output: Tensor, target: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return loss_of(output, target)

    array, _ = _pair(_mlp, x.device)
    for _ in range(6):
        _step(array, counting, x, y)
    assert calls >= 6
    assert REPLAYED not in _notes(array)


def test_nobody_who_looks_on_misses_a_step(x: Tensor, y: Tensor) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    array, other = _pair(_mlp, x.device)
    _warm(array, other, loss_of, x, y)
    counts = []
    for a in (array, other):
        with FlopCounterMode(display=False) as counter:
            _step(a, loss_of, x, y)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_an_error_in_a_replayed_step_is_told_as_ever() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(7, 5), nn.BatchNorm1d(5)

        def forward(self, words: Tensor) -> Tensor:
            return self.norm(self.table(words).mean(1))

    words, y = torch.randint(0, 7, (6, 4)), torch.randn(6, 5, dtype=torch.float64)
    array, other = _pair(Words, torch.device("cpu"))
    _warm(array, other, loss_of, words, y)
    wrong = words.clone()
    wrong[0, 0] = 7
    before = {k: v.clone() for k, v in array.state_dict().items()}
    with pytest.raises(MemberError, match="index out of range"):
        _step(array, loss_of, wrong, y)
    assert all(torch.equal(v, before[k]) for k, v in array.state_dict().items())
    for _ in range(4):
        _step(array, loss_of, words, y)
        _step(other, loss_of, words, y)
        _same(array, other)


class Listed(list):
    """A list with an attribute."""

    factor = 1.0


def test_containers_of_a_class_of_their_own_are_watched(x: Tensor, y: Tensor) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.weights = nn.Linear(5, 3), Listed([1.0])

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * self.weights[0] * self.weights.factor

    array, other = _pair(Scaled, x.device)
    _warm(array, other, loss_of, x, y)
    for name, value in (("item", 2.0), ("factor", 3.0)):
        for a in (array, other):
            weights = a._skeleton.weights
            weights.__setitem__(0, value) if name == "item" else setattr(weights, name, value)
        _warm(array, other, loss_of, x, y)
        _same(array, other)


def test_attention_without_dropout_draws_nothing(device: torch.device) -> None:
    array, other = _pair(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), device)
    words = torch.randn(4, 3, 8, dtype=torch.float64, device=device)
    _warm(array, other, loss_of, words, words + 1)
    _same(array, other)


def test_all_random_numbers_at_once(x: Tensor, y: Tensor) -> None:
    modules = make(lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.3), nn.Linear(8, 3)), 3, x.dtype, x.device)
    array, other = (hfta.fuse(modules, SEEDS, rng="fast") for _ in range(2))
    other.capture = False
    for _ in range(6):
        assert torch.equal(_step(array, loss_of, x, y), _step(other, loss_of, x, y))
    assert _notes(array) == REPLAYED


def test_tuning_leaves_gradients_as_they_are(x: Tensor, y: Tensor) -> None:
    array, other = _pair(_mlp, x.device)
    _step(array, loss_of, x, y)
    _step(other, loss_of, x, y)
    assert array.tune(loss_of, x * 2, y, budget_s=0.01).keys() >= {1, MEMBERS}
    _same(array, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (2, 3, 7, 9), (3, 4, 5), (1, 1, 2, 2)], ids=str)
def test_max_pooling_in_other_ways_is_torch_s(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype).relu()
    special = torch.where(torch.rand(shape) < 0.2, float("inf"), torch.where(torch.rand(shape) < 0.2, -0.0, x))
    lost = torch.where(torch.rand(shape) < 0.3, float("nan"), x)
    for value in (x, special.to(dtype), lost.to(dtype)):
        for settings in (
            ([2, 2], [2, 2]),
            ([2, 2], []),
            ([3, 3], [2, 2], [1, 1]),
            ([2, 2], [2, 2], [0, 0], [1, 1], True),
        ):
            if min(shape[-2:]) < 3 and settings[0] == [3, 3]:
                continue
            out, indices = torch.ops.aten.max_pool2d_with_indices(value, *settings)
            rooms = torch.empty_like(out), torch.empty_like(indices)
            max_pool2d(value, *settings, out=rooms[0], indices=rooms[1])
            torch.testing.assert_close(rooms[0], out, atol=0, rtol=0, equal_nan=True)
            assert torch.equal(rooms[1], indices)
            if len(shape) == 4:
                rooms = torch.empty_like(out), torch.empty_like(indices)
                other = ChannelsLast(torch.ops.aten.max_pool2d_with_indices.out)
                other(value, *settings, out=rooms[0], indices=rooms[1])
                torch.testing.assert_close(rooms[0], out, atol=0, rtol=0, equal_nan=True)
                assert torch.equal(rooms[1], indices)


def test_on_or_off(x: Tensor, y: Tensor) -> None:
    array, other = _pair(_mlp, x.device)
    with pytest.raises(FusionError, match="neither on nor off"):
        array.capture = "sometimes"  # type: ignore[assignment]
    assert array.capture
    for _ in range(5):
        _step(other, loss_of, x, y)
    assert _notes(other) == ""


def test_training_by_replayed_steps_equals_training_alone() -> None:
    build = lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))  # noqa: E731
    modules = make(build, MEMBERS, torch.float64, torch.device("cpu"))
    xs, ys = torch.randn(20, 6, 5, dtype=torch.float64), torch.randint(0, 4, (20, 6))
    array = hfta.fuse(modules, SEEDS)
    optimizer = hfta.optim.AdamW(array, lr=[1e-2, 3e-2, 1e-3])
    for x, y in zip(xs, ys, strict=True):
        optimizer.zero_grad()
        array.backward(F.cross_entropy, x, y)
        optimizer.step()
    assert _notes(array) == REPLAYED
    for i, module in enumerate(modules):
        own = torch.optim.AdamW(module.parameters(), lr=[1e-2, 3e-2, 1e-3][i])
        torch.manual_seed(SEEDS[i])
        for x, y in zip(xs, ys, strict=True):
            own.zero_grad()
            F.cross_entropy(module(x), y).backward()
            own.step()
        for name, p in module.named_parameters():
            torch.testing.assert_close(array.get_parameter(name)[i], p, atol=1e-12, rtol=1e-12)
