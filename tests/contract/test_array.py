"""The array as a module: inputs and outputs of all shapes, accumulated gradients, moves, error messages."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import difference
from hfta_nb.errors import FusionError, MemberError
from tests.contract.serial import loss_of, make

MEMBERS = 3


def _build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, 2))


def _modules(build: Any = _build, dtype: torch.dtype = torch.float64) -> list[nn.Module]:
    return make(build, MEMBERS, dtype, torch.device("cpu"))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def y() -> Tensor:
    return torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Rich(nn.Module):
    """Several inputs, some by name, some None; outputs of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 2)

    def forward(self, a: Tensor, b: Tensor | None = None, *, scale: float = 1.0) -> dict[str, Any]:
        out = self.linear(a) * scale
        return {"out": out if b is None else out + b, "parts": (out, [None, "text", 3]), "mean": out.mean()}


def test_inputs_and_outputs_of_all_kinds(x: Tensor, y: Tensor) -> None:
    modules = _modules(Rich)
    array = hfta.fuse(modules)
    shared = array(x, b=None, scale=2.0)
    own = torch.stack([y + i for i in range(MEMBERS)])
    mixed = array(x, hfta.per_member(own))
    for i, module in enumerate(modules):
        expected, other = module(x, scale=2.0), module(x, own[i])
        torch.testing.assert_close(shared["out"][i], expected["out"])
        torch.testing.assert_close(shared["mean"][i], expected["mean"])
        torch.testing.assert_close(mixed["out"][i], other["out"])
    assert shared["parts"][1] == [None, "text", 3]
    assert shared["mean"].shape == (MEMBERS,)


@pytest.mark.parametrize("block", [MEMBERS, 2, 1])
def test_tuple_and_dict_inputs_of_backward(x: Tensor, y: Tensor, block: int) -> None:
    modules = _modules(Rich)
    array = hfta.fuse(modules)
    array.block_size = block
    ys = torch.stack([y * (i + 1) for i in range(MEMBERS)])

    def loss(output: dict[str, Any], target: Tensor) -> Tensor:
        return loss_of(output["out"], target)

    by_tuple = array.backward(loss, (x, y), hfta.per_member(ys))
    by_name = array.backward(loss, {"a": x, "b": y}, hfta.per_member(ys))
    torch.testing.assert_close(by_tuple, by_name)
    for i, module in enumerate(modules):
        torch.testing.assert_close(by_tuple[i], loss(module(x, y), ys[i]).detach())


@pytest.mark.parametrize("block", [MEMBERS, 2, 1])
def test_gradients_add_up_and_reach_the_input(x: Tensor, y: Tensor, block: int) -> None:
    modules = [m.eval() for m in _modules()]
    array = hfta.fuse(modules)
    array.block_size = block
    leaf = x.clone().requires_grad_()
    array.backward(loss_of, leaf * 2, y)
    array.backward(loss_of, leaf * 2, y)
    alone = x.clone().requires_grad_()
    for _ in range(2):
        for module in modules:
            loss_of(module(alone * 2), y).backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, alone.grad)
    for name, p in array.named_parameters():
        for i, module in enumerate(modules):
            torch.testing.assert_close(p.grad[i], dict(module.named_parameters())[name].grad)


def test_auxiliary_results(x: Tensor, y: Tensor) -> None:
    modules = [m.eval() for m in _modules()]
    array = hfta.fuse(modules)
    for block in (MEMBERS, 1):
        array.block_size = block
        losses, aux = array.backward(lambda o, t: (loss_of(o, t), {"out": o, "n": 7}), x, y, has_aux=True)
        assert aux["n"].tolist() == [7] * MEMBERS
        assert not aux["out"].requires_grad
        torch.testing.assert_close(losses[1], loss_of(aux["out"][1], y))


def test_names_flags_and_state_dict_are_the_plain_module_s(x: Tensor) -> None:
    modules = _modules()
    array = hfta.fuse(modules)
    plain = modules[0]
    assert [n for n, _ in array.named_parameters()] == [n for n, _ in plain.named_parameters()]
    assert [n for n, _ in array.named_buffers()] == [n for n, _ in plain.named_buffers()]
    assert list(array.state_dict()) == list(plain.state_dict())
    assert all(v.shape[0] == MEMBERS for v in array.state_dict().values())
    array.eval()
    assert not any(m.training for m in array.modules())
    assert not array[0].training
    array.requires_grad_(False)
    assert not any(p.requires_grad for p in array[1].parameters())
    other = hfta.fuse(_modules()[::-1])
    other.load_state_dict(array.state_dict())
    torch.testing.assert_close(other.eval()(x), array(x))


@pytest.mark.parametrize("block_size", [3, 2, 1])
def test_a_parameter_is_frozen_and_thawed_between_two_steps(block_size: int) -> None:
    modules = [nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(3)]
    array, x = hfta.fuse(modules), torch.randn(6, 5)
    array.block_size = block_size
    for learns in (True, False, True):
        for module in (array, *modules):
            module.get_parameter("0.weight").requires_grad_(learns)
            module.zero_grad()
        array.backward(lambda output, _: output.square().sum(), x)
        for i, module in enumerate(modules):
            module(x).square().sum().backward()
            for name, p in module.named_parameters():
                grad = array.get_parameter(name).grad
                assert (grad is None) == (p.grad is None), name
                if grad is not None:
                    torch.testing.assert_close(grad[i], p.grad)


def test_moving_to_another_dtype_keeps_all_together(x: Tensor, y: Tensor) -> None:
    modules = _modules()
    array = hfta.fuse(modules, [1, 2, 3]).float()
    optimizer = hfta.optim.Adam(array, lr=0.1)
    array.backward(loss_of, x.float(), y.float())
    optimizer.step()
    for i, module in enumerate(modules):
        module.float()
        torch.manual_seed(i + 1)
        own = torch.optim.Adam(module.parameters(), lr=0.1)
        loss_of(module(x.float()), y.float()).backward()
        own.step()
        for name, p in module.named_parameters():
            if name != "0.bias":  # before batch norm: its gradient is noise
                torch.testing.assert_close(dict(array.named_parameters())[name][i], p, atol=1e-4, rtol=1e-4)


def test_a_copy_is_its_own(x: Tensor, y: Tensor) -> None:
    array = hfta.fuse(_modules())
    twin = copy.deepcopy(array)
    before = {k: v.clone() for k, v in array.state_dict().items()}
    optimizer = hfta.optim.SGD(twin, lr=1.0)
    twin.backward(loss_of, x, y)
    optimizer.step()
    assert all(torch.equal(v, before[k]) for k, v in array.state_dict().items())
    assert not torch.equal(next(twin.parameters()), next(array.parameters()))


def test_the_modules_given_are_copied(x: Tensor, y: Tensor) -> None:
    modules = _modules()
    before = copy.deepcopy([m.state_dict() for m in modules])
    array = hfta.fuse(modules)
    optimizer = hfta.optim.SGD(array, lr=1.0)
    array.backward(loss_of, x, y)
    optimizer.step()
    for module, state in zip(modules, before, strict=True):
        assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())
        assert all(p.grad is None for p in module.parameters())


def test_tuning_changes_nothing_but_the_block_size(x: Tensor, y: Tensor) -> None:
    array = hfta.fuse(_modules(), [1, 2, 3])
    before = {k: v.clone() for k, v in array.state_dict().items()}
    states = [s["cpu"].clone() for s in array.generators.states]
    times = array.tune(loss_of, x, y, budget_s=0.02)
    assert set(times) == {1, MEMBERS}
    assert array.block_size == min(times, key=lambda k: times[k])
    assert all(torch.equal(v, before[k]) for k, v in array.state_dict().items())
    assert all(torch.equal(s["cpu"], t) for s, t in zip(array.generators.states, states, strict=True))
    assert all(p.grad is None for p in array.parameters())


def test_evaluate_is_per_member_without_gradients(x: Tensor, y: Tensor) -> None:
    array = hfta.fuse(_modules()).eval()
    for block in (MEMBERS, 1):
        array.block_size = block
        found = array.evaluate(lambda o, t: {"loss": loss_of(o, t)}, x, y)["loss"]
        assert not found.requires_grad
        torch.testing.assert_close(found, torch.stack([loss_of(array[i](x), y) for i in range(MEMBERS)]).detach())


def test_class_statements_run_twice_are_one_class(x: Tensor) -> None:
    def build(tail: float = 1.0) -> nn.Module:
        class Local(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(5, 2)

            def forward(self, x: Tensor) -> Tensor:
                return self.linear(x) * tail

        return Local()

    assert hfta.fuse(_modules(build))(x).shape == (MEMBERS, 6, 2)
    found = difference(build(), build(2.0))
    assert found == "module: Local and Local"  # the same words, another value within


@pytest.mark.parametrize(
    ("a", "b", "where"),
    [
        (nn.Linear(2, 3), nn.Linear(2, 4), "out_features: 3 and 4"),
        (nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Linear(2, 4)), "0.out_features: 3 and 4"),
        (nn.Linear(3, 2), nn.Linear(4, 2), "in_features: 3 and 4"),
        (nn.ReLU(), nn.GELU(), "module: ReLU and GELU"),
        (nn.ModuleDict({"a": nn.ReLU()}), nn.ModuleDict({"b": nn.ReLU()}), "module: submodules"),
        (nn.Linear(2, 2), nn.Linear(2, 2).double(), "weight: torch.float32 and torch.float64"),
        (nn.Linear(2, 2), nn.Linear(2, 2, bias=False), "bias: only one of them has this tensor"),
        (nn.Linear(2, 2), nn.Linear(2, 2).eval(), "training: True and False"),
        (nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False), "weight: requires_grad in one of them only"),
    ],
)
def test_what_keeps_two_apart_is_named(a: nn.Module, b: nn.Module, where: str) -> None:
    with pytest.raises(FusionError, match=f"member 1: differs from member 0: .*{where}"):
        hfta.fuse([a, b])
    assert difference(a, copy.deepcopy(a)) is None


def test_plain_attributes_and_hooks_count() -> None:
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    a.note, b.note = {"k": [1, 2]}, {"k": [1, 3]}  # type: ignore[assignment]
    assert difference(a, b) is not None
    b.note = {"k": [1, 2]}  # type: ignore[assignment]
    assert difference(a, b) is None
    b.register_forward_hook(lambda *_: None)
    assert "forward_hooks" in str(difference(a, b))


class _Learnt(nn.Module):
    """A model without inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.drop = nn.Parameter(torch.randn(3, dtype=torch.float64)), nn.Dropout()

    def forward(self, rows: int = 4) -> Tensor:
        return self.drop(self.weight * torch.ones(rows, 1, dtype=torch.float64))


def test_a_model_without_inputs_is_called_and_trained() -> None:
    modules, seeds = [_Learnt() for _ in range(3)], [1, 2, 3]
    array = hfta.fuse(modules, seeds)
    streams = []
    for module, seed in zip(modules, seeds, strict=True):
        torch.manual_seed(seed)
        outs = [module() for _ in range(4)] + [module(rows=2)]
        losses = [module().square().mean() for _ in range(4)]
        sum(losses).backward()  # type: ignore[union-attr]
        streams.append((outs, losses))
    for step in range(4):
        assert torch.equal(array(), torch.stack([outs[step] for outs, _ in streams]))
    assert torch.equal(array(rows=2), torch.stack([outs[4] for outs, _ in streams]))
    for step in range(4):
        losses = array.backward(lambda out, _: out.square().mean(), ())
        assert torch.allclose(losses, torch.stack([found[step].detach() for _, found in streams]), rtol=0, atol=1e-12)
    grads = torch.stack([module.weight.grad for module in modules])  # type: ignore[misc]
    assert torch.allclose(array.get_parameter("weight").grad, grads, rtol=0, atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: hfta.fuse([]), "no modules"),
        (lambda: hfta.fuse([nn.Linear(1, 1), "x"]), "member 1: not a module"),  # type: ignore[list-item]
        (lambda: hfta.fuse(nn.Linear(1, 1)), "not a list of modules"),  # type: ignore[arg-type]
        (lambda: hfta.fuse([nn.Linear(1, 1), _array()]), "member 1: an array, not a plain module"),
        (lambda: _array()["x"], "not the number of a member"),  # type: ignore[call-overload]
        (lambda: _array()[None], "not the number of a member"),  # type: ignore[call-overload]
        (lambda: hfta.fuse([_ONE, nn.Linear(1, 1), _ONE]), "member 2: the same module as member 0"),
        (lambda: hfta.fuse([nn.Linear(1, 1)], seeds=[1, 2]), "not one seed per member"),
        (lambda: hfta.fuse([nn.Linear(1, 1), nn.Linear(1, 1, device="meta")]), "modules on different devices"),
        (lambda: hfta.per_member(torch.zeros(())), "no member axis"),
        (lambda: hfta.per_member(3), "neither a tensor nor a list"),
        (lambda: _array()(hfta.per_member(torch.zeros(2, 6, 5))), "a first axis of 3"),
        (lambda: _array().backward(lambda o, y: o, torch.zeros(6, 5)), "must be a scalar"),
        (
            lambda: _array().requires_grad_(False).backward(lambda o, y: o.sum(), torch.zeros(6, 5)),
            "depends on nothing",
        ),
        (lambda: _array().select([0, 3]), "not members of this array"),
        (lambda: _array().select([]), "not members of this array"),
    ],
)
def test_wrong_use_is_told(call: Any, words: str) -> None:
    with pytest.raises(FusionError, match=words):
        call()


_ONE = nn.Linear(1, 1)


def _array() -> hfta.FusedArray:
    return hfta.fuse(_modules(dtype=torch.float32))


def test_a_member_that_is_not_there() -> None:
    array = _array()
    with pytest.raises(IndexError, match="member 3 of an array of 3"):
        array[3]
    assert torch.equal(array[-1][0].weight, array[2][0].weight)


def test_an_error_in_the_model_names_member_and_submodule() -> None:
    array = hfta.fuse(_modules(lambda: nn.Sequential(nn.Sequential(nn.Conv1d(2, 3, 1)))))
    with pytest.raises(MemberError, match=r"^member 0, `0.0`: RuntimeError: .*expected input.* to have 2 channels"):
        array(torch.zeros(6, 7, 4, dtype=torch.float64))
    assert array.notes == []
    assert array.block_size == 3
    assert array(torch.zeros(6, 2, 4, dtype=torch.float64)).shape == (3, 6, 3, 4)


def test_loss_functions_of_torch(x: Tensor) -> None:
    modules = [m.eval() for m in _modules()]
    array = hfta.fuse(modules)
    target = torch.tensor([0, 1, 0, 1, 1, 0])
    losses = array.backward(F.cross_entropy, x, target)
    for i, module in enumerate(modules):
        torch.testing.assert_close(losses[i], F.cross_entropy(module(x), target).detach())
