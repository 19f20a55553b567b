"""What arrays do differently on a GPU, as far as a CPU can show it: with stand-ins for tensors there, or by switching
the way on.
"""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array.schedule_trial import Trial
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.engine.members import flattening
from hfta_nb.engine.replay.dynamic_call import DynamicCall
from hfta_nb.engine.replay.record import Recorder
from hfta_nb.engine.rules import convolution, recurrent
from hfta_nb.engine.rules.member_by_member import gaps_of_others
from hfta_nb.engine.rules.rule_mode import without_gaps
from tests.contract.replay import REPLAYED, SEEDS, notes
from tests.contract.serial import loss_of

CPU = torch.device("cpu")


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True  # type: ignore[assignment]


def _there(tensor: Tensor) -> Any:
    return tensor.as_subclass(OnGpu)  # type: ignore[type-var]


# Convolutions.


class Convolving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3), nn.ConvTranspose2d(4, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh()).mean((2, 3))


def _trained(array: Any, steps: int = 5) -> Tensor:
    x, y = torch.randn(4, 2, 6, 6, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    return torch.stack([array.backward(loss_of, x, y) for _ in range(steps)])


def test_a_limit_of_elements_leaves_steps_recordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of a result is found on the device "meta", which a recorder must not see."""
    monkeypatch.setattr(convolution, "_most", lambda device: 2**31 - 1)
    array = hfta.fuse([Convolving().double() for _ in SEEDS], SEEDS)
    _trained(array)
    assert notes(array, "backward") == REPLAYED


def test_members_whose_numbers_would_mix_are_convolved_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "_crosses_groups", lambda *_: True)
    monkeypatch.setattr(convolution, "_most", lambda device: 2**31 - 1)
    modules = [Convolving().double() for _ in SEEDS]
    array = hfta.fuse(copy.deepcopy(modules), SEEDS)
    torch.manual_seed(3)
    losses = _trained(array, 1)[0]
    told = dict(array.explain().itertuples(index=False))
    assert told["conv2d"] == told["conv_transpose2d"] == "one convolution per member"
    torch.manual_seed(3)
    x, y = torch.randn(4, 2, 6, 6, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    for i, module in enumerate(modules):
        loss = loss_of(module(x), y)
        loss.backward()
        torch.testing.assert_close(losses[i], loss.detach())
        for name, p in module.named_parameters():
            torch.testing.assert_close(array.get_parameter(name).grad[i], p.grad)


@pytest.mark.parametrize(
    ("dtype", "weight", "groups", "crosses"),
    [
        (torch.bfloat16, (8, 8, 3, 3), 1, True),
        (torch.bfloat16, (8, 2, 3, 3), 1, True),
        (torch.float16, (32, 3, 3, 3), 1, True),
        (torch.bfloat16, (32, 16, 3, 3), 1, False),
        (torch.bfloat16, (32, 16, 3, 3), 4, True),
        (torch.bfloat16, (24, 1, 3, 3), 24, False),  # depthwise
        (torch.float32, (8, 8, 3, 3), 1, True),  # TF32
        (torch.float64, (8, 8, 3, 3), 1, False),
    ],
)
def test_groups_that_may_mix(dtype: Any, weight: Any, groups: int, crosses: bool, monkeypatch: Any) -> None:
    gpu = torch.device("cuda", 0)  # named, not used
    monkeypatch.setattr(convolution.matmul_precision, "float32", lambda device: ("ieee", "tf32", "ieee"))
    given = {"input": SimpleNamespace(device=gpu, dtype=dtype), "weight": SimpleNamespace(shape=weight)}
    assert convolution._crosses_groups(F.conv2d, {**given, "groups": groups}) == crosses
    there = {**given, "input": SimpleNamespace(device=CPU, dtype=dtype), "groups": groups}
    assert not convolution._crosses_groups(F.conv2d, there)


def test_float32_stays_in_groups_where_it_is_not_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution.matmul_precision, "float32", lambda device: ("ieee", "ieee", "ieee"))
    x = SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.float32)
    assert not convolution._crosses_groups(F.conv2d, {"input": x, "weight": SimpleNamespace(shape=(8, 8, 3, 3))})


def test_transposed_convolutions_to_one_channel_are_not_depthwise() -> None:
    given = {"input": SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.bfloat16)}
    given["weight"] = SimpleNamespace(shape=(8, 1, 3, 3))
    assert convolution._crosses_groups(F.conv_transpose2d, given)
    assert not convolution._crosses_groups(F.conv2d, given)


# Random numbers.


def test_gaps() -> None:
    x = torch.zeros(2, 3, 4)
    assert all(map(without_gaps, (x, x.transpose(0, 2), x[1], x[:, :1, :1].new_zeros(1, 3, 1), torch.zeros(()))))
    assert not any(map(without_gaps, (x[:, 1], x[..., :2], x[:, :1].expand(2, 5, 4))))


def test_gaps_that_are_other_members_parts() -> None:
    """Alone the tensor has no gaps; where it has them alone too, which nothing else can tell, it keeps them."""
    grouped = _there(torch.zeros(4, 3, 5)).transpose(0, 1)  # [M, N, C] of a grouped convolution
    assert gaps_of_others(grouped.select(0, 1), grouped)
    halves = _there(torch.zeros(3, 4, 10))[..., :5]
    assert not gaps_of_others(halves.select(0, 1), halves)
    assert not gaps_of_others(torch.zeros(4, 3, 5)[:, 1], torch.zeros(4, 3, 5))


# Recurrent layers.


class Reading(nn.Module):
    def __init__(self, kind: Any = nn.LSTM) -> None:
        super().__init__()
        self.inner, self.out = kind(4, 3, batch_first=True, bias=False), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.inner.flatten_parameters()  # as many models do
        return self.out(self.inner(x)[0][:, -1])


@pytest.mark.parametrize("block", [3, 1])
def test_no_weights_of_an_array_are_moved(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's block of weights belongs to plain modules: to members that are taken out, and to those compared with."""
    shapes: list[int] = []

    def moved(self: nn.RNNBase) -> None:
        if len(self._flat_weights) == len(self._flat_weights_names):
            assert not any(torch._C._functorch.is_functorch_wrapped_tensor(w) for w in self._flat_weights)
            assert all(isinstance(w, nn.Parameter) for w in self._flat_weights)
            shapes.extend(w.dim() for w in self._flat_weights)

    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", moved)
    array = hfta.fuse([Reading() for _ in SEEDS], SEEDS)
    array.block_size = block
    x, y = torch.randn(5, 6, 4), torch.randn(5, 2)
    for _ in range(4):
        array.backward(loss_of, x, y)
        (array(x) ** 2).sum().backward()
    taken, twin = array[1], copy.deepcopy(array)
    twin.double()
    twin(x.double())
    assert shapes
    assert max(shapes) == 2
    assert flattening.NAME not in vars(taken.inner)
    assert type(taken.inner) is nn.LSTM
    assert taken.inner._flat_weights[0] is taken.inner.weight_ih_l0


@pytest.mark.parametrize("biased", [True, False])
def test_weights_that_cudnn_could_take_for_a_block_are_copied(biased: bool) -> None:
    weights = [_there(w) for w in torch.randn(2, 12, 3)]
    x, state = _there(torch.randn(2, 5, 3)), _there(torch.zeros(1, 2, 3))
    for front in ([x, [state, state]], [x, state], [x, torch.ones(5), [state, state]]):
        args = [*front, weights, biased, 1, 0.0, True, False]
        own = recurrent.weights_apart(args)[len(front)]
        apart = all(a.data_ptr() != b.data_ptr() for a, b in zip(own, weights, strict=True))
        assert apart == (not biased)
        assert all(map(torch.equal, own, weights))
    gaps = [w[:, :2] for w in weights]
    assert all(w.is_contiguous() for w in recurrent.weights_apart([x, state, gaps, biased])[2])
    plain = [torch.randn(12, 3) for _ in range(2)]
    assert recurrent.weights_apart([x, state, plain, False])[2] is plain


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_member_that_runs_alone_passes_them_apart(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(recurrent, "weights_apart", lambda args: seen.append(args) or args)
    monkeypatch.setattr(recurrent, "alone", lambda *_: None)
    array = hfta.fuse([Reading(kind) for _ in SEEDS], SEEDS)
    array.block_size = 1
    array.backward(loss_of, torch.randn(5, 6, 4), torch.randn(5, 2))
    assert len(seen) >= len(SEEDS)


def test_a_kernel_that_returns_a_list_within_a_tuple() -> None:
    """As the backward of cuDNN's recurrent layers does."""
    made: list[Any] = [None] * 4
    one, several = torch.zeros(1), [torch.ones(2), torch.ones(3)]
    DynamicCall(lambda: (one, None, several), (), {}, made, [(0, 3), (2, 0), (3, 1)])()
    assert made[3] is one
    assert made[:2] == several


# Tuning.


@pytest.mark.parametrize("replays", [True, False])
def test_the_first_call_of_each_block_size_is_not_timed(replays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries plan the kernels of new shapes in it, for seconds; and no eager time rules out a replay."""
    monkeypatch.setattr(Trial, "_on_gpu", True)
    array = hfta.fuse([nn.Linear(5, 3) for _ in range(4)], [1, 2, 3, 4])
    array.capture = replays
    x, y = torch.randn(6, 5), torch.randn(6, 3)
    sizes: list[int] = []
    took = Trial.took

    def slow_first(self: Trial, seconds: float) -> None:
        size = self.way.block_size
        sizes.append(size)
        took(self, 9.0 * size if sizes.count(size) == 1 else 1e-3 * size)

    monkeypatch.setattr(Trial, "took", slow_first)
    array.tune(loss_of, x, y)
    assert set(sizes) == {1, 4}
    assert not replays or all(sizes.count(size) > 3 for size in (1, 4))  # both were replayed
    assert array.block_size == 1


def test_a_new_tensor_over_existing_memory_is_a_view() -> None:
    """CuDNN's recurrent layers look so at their weights; a model's own tensor that gets other memory is none."""
    weight, own = torch.arange(4.0), torch.empty(0)
    with Recorder(CPU) as recorder:
        seen = torch.empty(0).set_(weight.untyped_storage(), 1, (3,), (1,))
        seen + 1
        own.set_(weight.untyped_storage(), 0, (4,), (1,))
    *_, added, moved = recorder.trace.calls
    assert added.reads() == {recorder.known(weight)}
    assert [call.function for call in recorder.trace.calls].count(moved.function) == 1
    assert moved.function is torch.ops.aten.set_.source_Storage_storage_offset


@pytest.mark.parametrize("factors", ["float32", "tf32"])
def test_factors_of_fewer_bits_are_no_other_numbers(
    factors: str, verified: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where factors are rounded to TF32, a member may differ from its plain module by that much."""
    if factors == "tf32":
        monkeypatch.setattr(matmul_precision, "rounding", lambda tensor: matmul_precision.TF32)
    linear = nn.functional.linear

    def rounded(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        fused = torch._C._functorch.is_functorch_wrapped_tensor(weight)
        return linear(x, weight * (1 + 3 * matmul_precision.TF32) if fused else weight, bias)

    class Rounded(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return rounded(x, self.weight, self.bias)

    torch.manual_seed(0)
    array = hfta.fuse([Rounded(8, 4) for _ in SEEDS], SEEDS)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        array.backward(loss_of, torch.randn(16, 8), torch.randn(16, 4))
    assert bool(found) == (factors == "float32"), [str(w.message) for w in found]
