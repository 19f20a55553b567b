"""Parameters that are frozen and equal in all members are held once, and computed with once where it can be."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import FusionError
from tests.contract.frozen_bases import (
    HELD,
    ONE,
    SEEDS,
    SOURCES,
    WIDTH,
    Alone,
    Codes,
    Lora,
    Train,
    X,
    adam,
    backward,
    held,
    members,
    one_by_one,
    split,
    tuned,
)


@pytest.mark.each("source", "train")
@pytest.mark.parametrize("train", [backward, split, one_by_one])
@pytest.mark.parametrize("source", SOURCES)
def test_members_train_as_alone(source: str, train: Train) -> None:
    modules = members(source)
    array, alone = hfta.fuse(modules, SEEDS), Alone(modules)
    assert held(array) == ([] if source == "unlike" else HELD)
    train(array, adam(array), 20)
    alone.train(20).equals(array)
    assert held(array) == ([] if source == "unlike" else HELD)


def test_the_callers_base_stays_as_it_is_and_the_array_keeps_its_own() -> None:
    base = copy.deepcopy(ONE)
    array = hfta.fuse([tuned(base, i) for i in range(3)], SEEDS)
    before = array.eval()(X)
    with torch.no_grad():
        base.get_parameter("0.weight").zero_()
    assert torch.equal(array(X), before)


@pytest.mark.parametrize("train", [backward, split, one_by_one])
def test_what_is_unfrozen_later_trains_in_each_member(train: Train) -> None:
    modules = members()
    array, alone = hfta.fuse(modules, SEEDS), Alone(modules)
    optimizer = adam(array)
    train(array, optimizer, 4)
    alone.train(4)
    for module in [array, *alone.modules]:
        module.get_parameter("2.base.weight").requires_grad_(True)
    train(array, optimizer, 4)
    alone.train(4).equals(array)
    assert held(array) == [name for name in HELD if name != "2.base.weight"]
    array.get_parameter("2.base.weight").requires_grad_(False)
    alone.modules[0].get_parameter("2.base.weight").requires_grad_(False)
    train(array, optimizer, 2)
    assert held(array) == [name for name in HELD if name != "2.base.weight"]


def test_a_saved_array_goes_on_and_its_file_has_the_base_once() -> None:
    modules = members()
    array, alone = hfta.fuse(modules, SEEDS), Alone(modules)
    optimizer = adam(array)
    backward(array, optimizer, 5)
    file = io.BytesIO()
    torch.save({"array": array.state_dict(), "optimizer": optimizer.state_dict()}, file)
    arena = sum(a.data.nbytes for a in array.arenas)
    assert file.getbuffer().nbytes < 4 * arena + 1.5 * sum(p.nbytes for p in ONE.parameters()) + 65536
    file.seek(0)
    saved = torch.load(file)
    other = hfta.fuse(members(), SEEDS)
    again = adam(other)
    other.load_state_dict(saved["array"])
    again.load_state_dict(saved["optimizer"])
    backward(other, again, 5)
    alone.train(10).equals(other)
    assert held(other) == HELD


@pytest.mark.parametrize("rows", ["equal", "unlike"])
def test_other_values_are_loaded(rows: str) -> None:
    array, given = hfta.fuse(members(), SEEDS), hfta.fuse(members("unlike"), SEEDS).state_dict()
    if rows == "equal":
        given |= {name: given[name][1].expand(3, *given[name].shape[1:]) for name in HELD}
    array.load_state_dict(given)
    assert held(array) == (HELD if rows == "equal" else [])
    assert all(torch.equal(value, given[name]) for name, value in array.state_dict().items())
    backward(array, adam(array), 2)
    assert torch.equal(array.state_dict()["3.weight"], given["3.weight"])


def test_a_member_gets_another_base() -> None:
    array = hfta.fuse(members(), SEEDS)
    fresh = tuned(copy.deepcopy(ONE), 9)
    array.load_member(1, fresh.state_dict())
    assert held(array) == HELD
    fresh.get_parameter("3.weight").mul_(2)
    optimizer = adam(array)
    backward(array, optimizer, 2)
    array.load_member(1, fresh.state_dict())
    assert held(array) == [name for name in HELD if name != "3.weight"]
    weight = ONE.get_parameter("3.weight")
    expected = [weight, 2 * weight, weight]
    assert torch.equal(array.get_parameter("3.weight"), torch.stack(expected))
    backward(array, optimizer, 2)


def test_surgery_keeps_what_is_held_once() -> None:
    modules = members()
    array = hfta.fuse(modules, SEEDS)
    chosen, copied = array.select([2, 0]), copy.deepcopy(array)
    assert held(chosen) == held(copied) == HELD
    addresses = {a.get_parameter("0.weight").data_ptr() for a in (array, chosen, copied)}
    assert len(addresses) == 3
    assert held(hfta.join(array, chosen)) == HELD
    assert torch.equal(hfta.join(array, chosen).eval()(X)[3], array.eval()(X)[2])
    array.copy_member(0, 2)
    assert torch.equal(array(X)[2], array(X)[0])
    one = array[1]
    with torch.no_grad():
        one.get_parameter("0.weight").zero_()
    assert torch.equal(array.get_parameter("0.weight")[0], ONE.get_parameter("0.weight"))
    array.apply(lambda m: nn.init.zeros_(m.down) if isinstance(m, Lora) else None)
    assert held(array) == HELD
    array.apply(lambda m: nn.init.ones_(m.weight) if isinstance(m, nn.Linear) else None)
    assert held(array) == [name for name in HELD if name.endswith("bias")]
    assert bool((array.get_parameter("0.weight") == 1).all())


def test_conversions_keep_what_is_held_once() -> None:
    array = hfta.fuse(members(), SEEDS).float()
    assert held(array) == HELD
    assert array.get_parameter("0.weight").dtype == torch.float32
    array.eval()(X.float())


def test_a_call_that_replaces_a_tensor_is_followed() -> None:
    array = hfta.fuse(members(), SEEDS)
    p = array.get_parameter("3.weight")
    p.data = p.data.clone()
    with torch.no_grad():
        p[1] = 0
    array.eval()(X)
    assert held(array) == [name for name in HELD if name != "3.weight"]
    assert torch.equal(p[0], ONE.get_parameter("3.weight"))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("how", ["data", "in place"])
@pytest.mark.parametrize("train", [backward, one_by_one])
def test_what_a_call_writes_is_each_members_own(train: Train, how: str, late: bool) -> None:
    modules = []
    for i in range(3):
        torch.manual_seed(i)
        modules.append(nn.Sequential(nn.Linear(WIDTH, WIDTH), Codes(how, late), nn.Linear(WIDTH, 3)).double())
    array, alone = hfta.fuse(modules, SEEDS), Alone(modules)
    assert held(array) == ["1.codes"]
    train(array, adam(array), 8)
    alone.train(8).equals(array)
    assert held(array) == []


def test_a_first_write_after_many_calls_is_refused() -> None:
    """As it can't be undone: these calls hold no copy of what they are not to change."""
    torch.manual_seed(0)
    layers = nn.Linear(WIDTH, WIDTH), Codes("data", late=5), nn.Linear(WIDTH, 3)  # type: ignore[arg-type]
    array = hfta.fuse([copy.deepcopy(nn.Sequential(*layers).double()) for _ in range(3)], SEEDS)
    optimizer = adam(array)
    one_by_one(array, optimizer, 15)
    with pytest.raises(FusionError, match=r"1\.codes: a frozen parameter, which members hold once, was changed"):
        one_by_one(array, optimizer, 1)


def test_a_frozen_copy_of_what_is_trained_is_each_members_own() -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        online = nn.Linear(WIDTH, WIDTH)
        return nn.ModuleDict({"online": online, "target": copy.deepcopy(online).requires_grad_(False)})

    array = hfta.fuse([build() for _ in range(3)])
    with torch.no_grad():
        array.get_parameter("target.weight").lerp_(array.get_parameter("online.weight"), 0.1)
    assert held(array) == []


def test_frozen_zeros_are_no_copy_of_trained_zeros() -> None:
    def build() -> nn.Module:
        layers = copy.deepcopy(ONE)
        nn.init.zeros_(layers.get_parameter("0.bias"))
        last = nn.Linear(WIDTH, WIDTH).double()
        nn.init.zeros_(last.bias)
        return nn.Sequential(*layers, last)

    assert held(hfta.fuse([build() for _ in range(3)])) == [name for name, _ in ONE.named_parameters()]
