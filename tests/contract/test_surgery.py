"""Members are loaded, taken out, copied and joined, while the others stay unchanged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array.saving import tensors_of
from hfta_nb.errors import FusionError, OptimError
from tests.contract.serial import largest, loss_of, make

CPU = torch.device("cpu")


def _build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))


@pytest.fixture
def modules() -> list[nn.Module]:
    return make(_build, 3, torch.float64, CPU)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def _trained(array: hfta.FusedArray, x: Tensor, steps: int = 2) -> hfta.FusedArray:
    for _ in range(steps):
        array.zero_grad()
        array.backward(lambda out, _: out.square().mean(), x)
        with torch.no_grad():
            for p in array.parameters():
                p -= 0.1 * p.grad
    return array


def _addresses(array: hfta.FusedArray) -> list[int]:
    return [t.data_ptr() for t in [*array.parameters(), *array.buffers()]]


def test_a_state_is_loaded_in_place(modules: list[nn.Module], x: Tensor) -> None:
    array = _trained(hfta.fuse(modules, [1, 2, 3]), x)
    before, others = _addresses(array), {k: v.clone() for k, v in array.state_dict().items()}
    fresh = make(_build, 4, torch.float64, CPU)[3]
    fresh[1].running_mean += 0.5
    array.load_member(1, fresh.state_dict())
    assert _addresses(array) == before
    assert list(fresh.state_dict()) == list(array.state_dict())
    for key, value in tensors_of(array).items():
        assert torch.equal(value[1], fresh.state_dict()[key])
        assert torch.equal(value[[0, 2]], others[key][[0, 2]])
    torch.testing.assert_close(array.eval()(x)[1], fresh.eval()(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda s: s.pop("0.weight"), "other keys than the member's; got .*missing.*0.weight"),
        (lambda s: s.update({"9.weight": torch.zeros(1)}), "other keys than the member's; got .*9.weight"),
        (lambda s: s.update({"3.weight": torch.zeros(3, 9)}), r"member 1, 3.weight: another shape; got \[3, 9\]"),
        (lambda s: s.update({"3.bias": 7}), "member 1, 3.bias: another shape; got 7"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(modules: list[nn.Module], spoil: Any, words: str) -> None:
    array = hfta.fuse(modules)
    before = {k: v.clone() for k, v in array.state_dict().items()}
    state = {k: v + 1 for k, v in array[0].state_dict().items()}
    spoil(state)
    with pytest.raises(FusionError, match=words):
        array.load_member(1, state)
    assert all(torch.equal(v, before[k]) for k, v in array.state_dict().items())


def test_part_of_a_state(modules: list[nn.Module]) -> None:
    array = hfta.fuse(modules)
    array.load_member(2, {"3.bias": torch.ones(3), "unknown": torch.ones(3)}, strict=False)
    assert torch.equal(array[2][3].bias, torch.ones(3, dtype=torch.float64))
    assert torch.equal(array[2][0].weight, modules[2][0].weight)


def test_a_copied_member_goes_on_as_the_original(modules: list[nn.Module], x: Tensor) -> None:
    array = _trained(hfta.fuse(modules, [1, 2, 3]), x)
    before, third = _addresses(array), array[2].state_dict()
    array.copy_member(0, 1)
    assert _addresses(array) == before
    assert all(torch.equal(v, array[2].state_dict()[k]) for k, v in third.items())
    _trained(array, x)
    for p in [*array.parameters(), *array.buffers()]:
        assert torch.equal(p[0], p[1])  # the same random numbers as well


def test_joined_members_are_what_they_were(modules: list[nn.Module], x: Tensor) -> None:
    whole = _trained(hfta.fuse(modules, [1, 2, 3]), x, 4)
    left, right = _trained(hfta.fuse(modules[:1], [1]), x), _trained(hfta.fuse(modules[1:], [2, 3]), x)
    joined = hfta.join(left, right)
    assert len(joined) == joined.block_size == 3
    _trained(joined, x)
    for (name, p), q in zip(whole.state_dict().items(), joined.state_dict().values(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-12, rtol=0, msg=name)
    assert len(left) == 1


def test_chosen_members_are_what_they_were(modules: list[nn.Module], x: Tensor) -> None:
    array = _trained(hfta.fuse(modules, [1, 2, 3]), x)
    chosen = _trained(array.select([2, 0]), x)
    _trained(array, x)
    for p, q in zip(array.state_dict().values(), chosen.state_dict().values(), strict=True):
        torch.testing.assert_close(p[[2, 0]], q, atol=1e-12, rtol=0)


def test_a_member_of_another_dtype_or_device_is_converted(modules: list[nn.Module], x: Tensor) -> None:
    array = hfta.fuse(modules)
    array.load_member(0, {k: v.float() for k, v in modules[2].state_dict().items()})
    assert largest(array.select([0]), modules[2:]) < 1e-7


def _lazy() -> hfta.FusedArray:
    return hfta.fuse([nn.LazyLinear(3) for _ in range(2)])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda a: a.copy_member(0, 3), IndexError, "member 3 of an array of 3"),
        (lambda a: a.load_member(-4, {}), IndexError, "member -4 of an array of 3"),
        (lambda a: hfta.join(a, nn.Linear(2, 2)), FusionError, "join: not an array"),
        (lambda a: hfta.join(a, hfta.fuse([nn.Linear(2, 2)])), FusionError, "the arrays' members differ: module"),
        (lambda a: hfta.fuse([nn.Linear(2, 2)], ["a"]), FusionError, "fuse, member 0: not a seed; got 'a'"),
        (lambda a: setattr(a, "block_size", 0), FusionError, "block_size: not a number of members; got 0"),
        (
            lambda a: a.backward(lambda o, _: o.mean(), torch.zeros(6, 5, dtype=torch.float64), scale=torch.ones(2)),
            FusionError,
            r"scale: not one factor per member; got \[2\]; accepted: \[3\]",
        ),
        (lambda a: _lazy().load_member(0, {}), FusionError, "load_member: the array has lazy modules"),
        (lambda a: _lazy().copy_member(0, 1), FusionError, "copy_member: the array has lazy modules"),
        (lambda a: hfta.join(_lazy(), _lazy()), FusionError, "join: the array has lazy modules"),
        (lambda a: hfta.optim.SGD(_lazy(), lr=0.1), OptimError, "SGD: the array has lazy modules"),
        (lambda a: hfta.fuse([nn.Linear(2, 2)], rng="slow"), FusionError, 'accepted: "exact" or "fast"'),
    ],
)
def test_what_is_refused(modules: list[nn.Module], call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(hfta.fuse(modules))


def test_lazy_members_wait_for_their_first_input(x: Tensor) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Dropout(0.3), nn.Linear(8, 3))

    modules = [build() for _ in range(3)]
    array = hfta.fuse(modules, [1, 2, 3]).double()
    lone = array.select([2])
    losses = array.backward(loss_of, x, torch.zeros(6, 3, dtype=torch.float64))
    for i, module in enumerate(modules):
        torch.manual_seed(i + 1)
        alone = loss_of(module.double()(x), torch.zeros(6, 3, dtype=torch.float64))
        assert losses[i].item() == pytest.approx(alone.item(), abs=1e-12)
    assert largest(array, modules) <= 1e-12
    assert [type(m) for m in array[1]] == [type(m) for m in modules[1]]
    lone.backward(loss_of, x, torch.zeros(6, 3, dtype=torch.float64))
    assert largest(lone, modules[2:]) <= 1e-12
