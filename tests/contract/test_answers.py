"""Messages about torch idioms that work differently on an array than on one module."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning, FusionError, OptimError

MEMBERS = 3


def _array(members: int = MEMBERS) -> Any:
    return hfta.fuse([nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 2)) for _ in range(members)])


def _backward(array: Any) -> None:
    array.backward(nn.functional.mse_loss, torch.ones(6, 4), torch.zeros(6, 2))


def test_clipping_by_torch_warns_and_names_the_counterpart() -> None:
    array = _array()
    _backward(array)
    with pytest.warns(ArrayWarning, match=r"hfta_nb.optim.clip_grad_norm_\(array, max_norm\)") as told:
        torch.nn.utils.clip_grad_norm_(array.parameters(), 1.0)
    assert told[0].filename == __file__


def test_clipping_of_a_member_is_nobody_s_business() -> None:
    module = _array()[0]
    module(torch.ones(6, 4)).sum().backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop"])
def test_an_optimizer_of_torch_names_its_counterpart(name: str) -> None:
    array = _array()
    with pytest.raises(OptimError, match=rf"use hfta_nb.optim.{name}\(array"):
        getattr(torch.optim, name)(array, lr=0.1)
    with pytest.warns(ArrayWarning, match=rf"hfta_nb.optim.{name}\(array, ...\)") as told:
        getattr(torch.optim, name)(array.parameters(), lr=0.1)
    assert told[0].filename == __file__


@pytest.mark.parametrize(
    ("name", "settings"),
    [("StepLR", {"step_size": 2}), ("LambdaLR", {"lr_lambda": float}), ("OneCycleLR", {"max_lr": 1, "total_steps": 9}),
     ("CyclicLR", {"base_lr": 0.1, "max_lr": 1}), ("ReduceLROnPlateau", {}), ("CosineAnnealingLR", {"T_max": 3})],
)  # fmt: skip
def test_a_scheduler_of_torch_names_its_counterpart(name: str, settings: dict[str, Any]) -> None:
    optimizer = hfta.optim.SGD(_array(), lr=[0.1, 0.2, 0.3])
    with pytest.raises(OptimError, match=f"use hfta_nb.optim.lr_scheduler.{name}"):
        getattr(torch.optim.lr_scheduler, name)(optimizer, **settings)


def test_a_scheduler_of_one_s_own_is_told_of_by_member() -> None:
    class Mine(torch.optim.lr_scheduler.LRScheduler):
        def get_lr(self) -> list[float]:
            return [0.1]

    with pytest.raises(OptimError, match="ByMember"):
        Mine(hfta.optim.SGD(_array(), lr=0.1))


def test_the_class_of_an_optimizer_is_its_class() -> None:
    optimizer = hfta.optim.SGD(_array(), lr=0.1)
    assert optimizer.__class__ is hfta.optim.SGD
    assert isinstance(optimizer, hfta.optim.ArrayOptimizer)
    assert not isinstance(optimizer, torch.optim.Optimizer)


# Parameters by their plain shapes.


def test_groups_by_name_and_plain_shape() -> None:
    array, seen = _array(), {}

    def choose(name: str, p: torch.Tensor) -> dict[str, Any] | None:
        seen[name] = tuple(p.shape)
        return None if name == "2.bias" else {} if p.dim() >= 2 else {"weight_decay": 0.0}

    groups = hfta.optim.param_groups(array, choose)
    assert seen == {name: tuple(p.shape) for name, p in array[0].named_parameters()}
    optimizer = hfta.optim.AdamW(groups, lr=[0.1, 0.2, 0.3], weight_decay=0.5)
    assert optimizer._names == [["0.weight", "2.weight"], ["0.bias", "1.weight", "1.bias"]]
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.5, 0.0]
    plain = hfta.optim.param_groups(array[0], choose)
    assert [len(g["params"]) for g in plain] == [2, 3]
    torch.optim.AdamW(plain, lr=0.1)


def test_no_decay_on_norms_and_biases() -> None:
    parts = {"conv": nn.Conv1d(2, 3, 3), "norm": nn.LayerNorm([3, 4]), "rnn": nn.LSTM(4, 2), "out": nn.Embedding(3, 2)}
    for module in (nn.ModuleDict(parts), hfta.fuse([nn.ModuleDict(parts), *[nn.ModuleDict(parts)][:0]])):
        groups = hfta.optim.param_groups(module, hfta.optim.no_decay_on_norms_and_biases(module))
        names = {id(p): name for name, p in module.named_parameters()}
        decayed = [names[id(p)] for p in groups[0]["params"]]
        assert decayed == ["conv.weight", "rnn.weight_ih_l0", "rnn.weight_hh_l0", "out.weight"]
        assert groups[1]["weight_decay"] == 0.0


def test_what_choose_may_return() -> None:
    with pytest.raises(OptimError, match=r"param_groups, 0.weight: not the values of a group; got True"):
        hfta.optim.param_groups(_array(), lambda name, p: True)  # type: ignore[arg-type,return-value]


def test_errors_say_that_shapes_begin_with_the_member_axis() -> None:
    array = _array()
    many = [p for p in array.parameters() if p.dim() >= 2]
    few = [p for p in array.parameters() if p.dim() < 2]
    assert not few  # the trap: biases have two axes
    with pytest.raises(OptimError, match="begin with the member axis"):
        hfta.optim.AdamW([{"params": many}, {"params": few, "weight_decay": 0.0}], lr=0.1)
    with pytest.raises(OptimError, match="param_groups"):
        hfta.optim.Muon(many, lr=0.1)


@pytest.mark.parametrize("given", [list, lambda p: [{"params": list(p)}], lambda p: [next(iter(p))]])
def test_muon_of_torch_tells_what_to_use(given: Any) -> None:
    parameters = list(_array().parameters())
    with pytest.raises(OptimError, match=r"torch\.optim\.Muon: takes matrices.*hfta_nb\.optim\.Muon\(array"):
        torch.optim.Muon(given(parameters))
    with pytest.raises(ValueError, match="only supports 2D"):
        torch.optim.Muon([nn.Parameter(torch.zeros(3))])
    torch.optim.Muon([nn.Parameter(torch.zeros(3, 3))])


# Members.


def test_a_slice_selects() -> None:
    array = _array(5)
    x = torch.ones(2, 4)
    for index, members in ((slice(1, 3), [1, 2]), (slice(None, None, -2), [4, 2, 0]), ([0, -1], [0, 4])):
        part = array[index]
        assert isinstance(part, hfta.FusedArray)
        assert torch.equal(part(x), array(x)[members])
    assert isinstance(array[-1], nn.Sequential)
    assert [type(m) for m in array] == [nn.Sequential] * 5
    with pytest.raises(FusionError, match="not members"):
        array[5:]
    with pytest.raises(IndexError):
        array[5]


# Inputs with a member axis that is not marked.


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Linear(4, 2), (MEMBERS, 6, 4)), (nn.Embedding(9, 2), (MEMBERS, 2, 4))],
    ids=["Linear", "Embedding"],
)
def test_an_input_per_member_that_is_not_marked_is_warned_of_once(layer: nn.Module, shape: tuple[int, ...]) -> None:
    array = hfta.fuse([nn.Sequential(copy.deepcopy(layer)) for _ in range(MEMBERS)])
    x = torch.ones(shape) if isinstance(layer, nn.Linear) else torch.ones(shape, dtype=torch.long)
    with pytest.warns(ArrayWarning, match=r"call array\(hfta_nb.per_member\(x\)\)") as told:
        out = array(x)
    assert out.shape[:2] == (MEMBERS, MEMBERS)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array(x)
        array.select([0, 1, 2])(x)


@pytest.mark.parametrize("shape", [(6, 4), (2, 6, 4), (MEMBERS, 4)])
def test_other_inputs_are_not_warned_of(shape: tuple[int, ...]) -> None:
    array = hfta.fuse([nn.Linear(4, 2) for _ in range(MEMBERS)])
    array(torch.ones(shape))
    array(hfta.per_member(torch.ones(MEMBERS, 6, 4)))
    hfta.fuse([nn.Linear(4, 2)])(torch.ones(1, 6, 4))
    array.backward(nn.functional.mse_loss, hfta.per_member(torch.ones(MEMBERS, 6, 4)), torch.ones(6, 2))


@pytest.mark.parametrize(
    "call",
    [
        lambda array, x, y: array.backward(x, y),
        lambda array, x, y: array.evaluate(x, y),
        lambda array, x, y: array.losses(array(x), y),
        lambda array, x, y: array.tune(x, y),
        lambda array, x, y: array.backward(nn.MSELoss, x, y),
    ],
    ids=["backward", "evaluate", "losses", "tune", "class"],
)
def test_a_loss_is_a_function(call: Any) -> None:
    array = _array()
    x, y = torch.ones(6, 4), torch.zeros(6, 2)
    with pytest.raises(FusionError, match=r"not a function of one member's output.*got '(Tensor|MSELoss)'"):
        call(array, x, y)
    assert array.backward(nn.functional.mse_loss, x, y).shape == (MEMBERS,)
    assert array.backward(nn.MSELoss(), x, y).shape == (MEMBERS,)


def test_the_layers_of_one_model_are_no_members() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with pytest.raises(FusionError, match=r"not a list of modules; got 'Sequential'.*build\(\) for _ in range"):
        hfta.fuse(model)  # type: ignore[arg-type]
    assert len(hfta.fuse(nn.ModuleList(model))) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: nn.utils.parameters_to_vector(a.parameters()), r"torch.stack\(\[parameters_to_vector\(member"),
        (lambda a: torch.optim.Muon(a.parameters()), r"use hfta_nb.optim.Muon\(array"),
        (lambda a: a.load_state_dict(a[0].state_dict()), r"array.load_member\(i, state_dict\)"),
        (lambda a: a.backward(lambda o, y: o.mean(), torch.ones(6, 4), nested()), "a nested tensor; accepted: .*mask"),
        (lambda a: a.losses(lambda o, y: o.mean(1), a(torch.ones(6, 4)), nested()), "a nested tensor"),
    ],
    ids=["vector", "Muon", "state of one module", "nested", "nested, losses"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_is_of_one_module_names_the_way_of_an_array(call: Any, message: str) -> None:
    array = _array()
    with pytest.raises((FusionError, OptimError), match=message):
        call(array)
    member = array[0]
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(member.parameters()), member.parameters())


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
