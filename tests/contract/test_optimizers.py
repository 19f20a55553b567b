"""Every optimizer and lr scheduler of the table equals torch's own for each member."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import OptimError
from tests.contract.optim_rows import CHAOTIC, OPTIMIZERS, OptimizerRow, optim_db_rows, torch_optimizers
from tests.contract.optim_serial import (
    Twins,
    make_optimizer,
    setup,
    through_file,
    train_array,
    train_member,
)
from tests.contract.serial import largest, loss_of, make, train_alone

MEMBERS, SEEDS = 3, [1, 2, 3]
optimizers = pytest.mark.parametrize("row", OPTIMIZERS, ids=str)


def _build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


@pytest.mark.only(dtype=torch.float64)
@optimizers
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, None)], ids=str)
def test_twenty_steps(row: OptimizerRow, dtype: torch.dtype, tolerance: float | None, device: torch.device) -> None:
    _twenty_steps(row, dtype, tolerance or row.float32, device)


FUSED = [
    OptimizerRow("Adam", {"lr": [0.1, 0.01, 0.01], "weight_decay": 0.1, "maximize": [False, True, True]}),
    OptimizerRow("Adam", {"lr": 0.01, "betas": [(0.9, 0.99), (0.8, 0.9), (0.8, 0.9)], "amsgrad": [True, False, True]}),
    OptimizerRow("AdamW", {"lr": [0.1, 0.01, 1e-3], "eps": 1e-4}),
    OptimizerRow("SGD", {"lr": [0.1, 0.05, 0.05], "weight_decay": [0.0, 0.1, 0.1], "maximize": [True, False, False]}),
    OptimizerRow("SGD", {"lr": 0.05, "momentum": [0.0, 0.9, 0.5], "nesterov": [False, True, False]}),
    OptimizerRow("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": [0.0, 0.3, 0.5]}),
]


@pytest.mark.each("row")
@pytest.mark.parametrize("row", FUSED, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=str)
def test_twenty_steps_by_torch_s_fused_kernel(
    row: OptimizerRow, dtype: torch.dtype, tolerance: float, device: torch.device
) -> None:
    fused = OptimizerRow(row.name, {**row.settings, "fused": True})
    _twenty_steps(fused, dtype, tolerance, device)


@pytest.mark.parametrize(("name", "settings"), [("Adam", {}), ("SGD", {"momentum": 0.9}), ("SGD", {})], ids=str)
def test_the_fused_kernel_gives_the_bits_of_torch_s_and_goes_on_after_surgery(name: str, settings: dict) -> None:
    modules, x, y = setup(build=_build)
    array = hfta.fuse([m.eval() for m in modules], SEEDS)
    lrs = [1e-2, 3e-2, 1e-2]
    settings = {**settings, "fused": True}
    optimizer = getattr(hfta.optim, name)(array, lr=lrs, **settings)
    kind = getattr(torch.optim, name)
    alone = [kind(m.parameters(), lr=lr, **settings) for m, lr in zip(modules, lrs, strict=True)]
    indices = list(range(MEMBERS))
    for step in range(12):
        if step == 6:
            indices = [2, 0]
            array, before = array.select(indices), optimizer
            optimizer = before.select(indices, array)
            assert optimizer.fused
            assert optimizer.state_of(0)["param_groups"][0]["fused"] is True
        optimizer.zero_grad()
        array.backward(loss_of, x, y)
        for i, module in enumerate(modules):  # the same gradients: this is about the optimizer
            for name, p in module.named_parameters():
                row = indices.index(i) if i in indices else None
                p.grad = None if row is None else array.get_parameter(name).grad[row].clone()
            alone[i].step()
        optimizer.step(skip=[0] if step == 3 else ())
        if step == 3:
            first = array.get_parameter("0.weight")[0]
            assert not torch.equal(first, modules[0][0].weight)
            array.load_member(0, modules[0].state_dict())
            optimizer.load_state_of(0, alone[0].state_dict())
    for row, i in enumerate(indices):
        for name, p in modules[i].named_parameters():
            assert torch.equal(array.get_parameter(name)[row], p)


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_fused_and_foreach_exclude_each_other(name: str) -> None:
    with pytest.raises(OptimError, match="exclude each other"):
        getattr(hfta.optim, name)(hfta.fuse([nn.Linear(2, 1)]), fused=True, foreach=True)


@pytest.mark.long
@pytest.mark.parametrize("row", optim_db_rows(), ids=str)
def test_every_sample_that_torch_has(row: OptimizerRow) -> None:
    _twenty_steps(row, torch.float64, 1e-10, torch.device("cpu"))


def test_there_is_every_optimizer_that_torch_has() -> None:
    assert {"AdamW", "SGD"} <= set(torch_optimizers())
    for name in torch_optimizers():
        kind = getattr(hfta.optim, name)
        assert kind.how
        assert kind.torch_class is getattr(torch.optim, name)
        assert name in {r.name for r in OPTIMIZERS}
        # The same arguments in the same order.
        assert list(inspect.signature(kind).parameters) == list(
            inspect.signature(getattr(torch.optim, name)).parameters
        )
        for key, own in inspect.signature(kind).parameters.items():
            theirs = inspect.signature(getattr(torch.optim, name)).parameters[key]
            assert own.default == theirs.default
            assert own.kind == theirs.kind


def _twenty_steps(row: OptimizerRow, dtype: torch.dtype, tolerance: float, device: torch.device) -> None:
    modules, x, y = setup(device, dtype, _build)
    twins = Twins(row, modules, SEEDS)
    array = twins.array
    if row.name == "Muon" and device.type != "cpu":
        tolerance = 0.1  # batched products in bfloat16
    if device.type == "cuda":  # its powers and sums round differently for tensors of another size
        tolerance = max(tolerance, 1e-7)
    if row.name in CHAOTIC:
        twins.steps(20)
    else:
        train_array(array, twins.optimizer, x, y, 20)
        for module, seed, own in zip(modules, SEEDS, twins.alone, strict=True):
            train_member(module, seed, own, x, y, 20)
    grown = max(float(p.detach().abs().max()) for p in array.parameters())  # a member that ascends runs away
    twins.equal(tolerance * max(1.0, grown))


by_torch = pytest.mark.parametrize("row", [r for r in OPTIMIZERS if r.name in ("Adafactor", "Rprop")], ids=str)


@by_torch
def test_where_torch_s_own_class_runs_every_bit_is_that_of_training_alone(row: OptimizerRow) -> None:
    twins = Twins(row, setup(dtype=torch.float32)[0])
    twins.steps(5)
    twins.same_bits()


@by_torch
def test_a_padded_member_has_the_state_of_the_plain_module(row: OptimizerRow) -> None:
    twins = Twins(row, [nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2)) for width in (4, 6, 5)])
    twins.wave(torch.cos)
    for i, own in enumerate(twins.alone):
        found, wanted = twins.optimizer.state_of(i)["state"], own.state_dict()["state"]
        assert found.keys() == wanted.keys()
        for number, state in wanted.items():
            assert found[number].keys() == state.keys()
            for name, value in state.items():
                assert torch.equal(found[number][name], value)


@pytest.mark.each("row", every=2)
@optimizers
def test_state_goes_out_and_in(row: OptimizerRow) -> None:
    """Ten steps, everything saved and loaded elsewhere, ten more: as twenty in one go."""
    modules, x, y = setup(build=_build)

    def steps(array, optimizer, scheduler, count):
        train_array(array, optimizer, x, y, count, scheduler)

    def fresh():
        array = hfta.fuse(modules, SEEDS)
        optimizer = make_optimizer(row, array)
        return array, optimizer, hfta.optim.lr_scheduler.StepLR(optimizer, step_size=[3, 4, 5])

    through = fresh()
    steps(*through, 20)
    half, rest = fresh(), fresh()
    steps(*half, 10)
    rest[0].load_state_dict(half[0].state_dict())
    rest[0].generators.load_state_dict(half[0].generators.state_dict())
    rest[1].load_state_dict(through_file(half[1].state_dict()))
    rest[2].load_state_dict(through_file(half[2].state_dict()))
    steps(*rest, 10)
    for (name, p), (_, q) in zip(through[0].state_dict().items(), rest[0].state_dict().items(), strict=True):
        assert torch.equal(p, q), name


@pytest.mark.each("row", every=2, begin=1)
@optimizers
def test_members_that_stay_go_on_as_before(row: OptimizerRow) -> None:
    modules, x, y = setup(build=_build)
    whole = hfta.fuse(modules, SEEDS)
    optimizer = make_optimizer(row, whole)
    scheduler = hfta.optim.lr_scheduler.StepLR(optimizer, step_size=[3, 4, 5])
    part = None
    for step in range(12):
        if step == 6:
            part = whole.select([2, 0])
            few = optimizer.select([2, 0], part)
            fewer = scheduler.select([2, 0], few)
        for a, o, s in [(whole, optimizer, scheduler)] + ([(part, few, fewer)] if part is not None else []):
            train_array(a, o, x, y, 1, s)
    assert part is not None
    for (name, p), (_, q) in zip(whole.state_dict().items(), part.state_dict().items(), strict=True):
        torch.testing.assert_close(p[[2, 0]], q, atol=1e-12, rtol=1e-12, msg=name)
    lrs = optimizer.param_groups[0]["lr"]
    assert few.param_groups[0]["lr"] == [lrs[2], lrs[0]]


def test_a_parameter_without_gradient_keeps_value_and_state() -> None:
    """As in torch: skipped with its step count, so that its bias correction starts when it does."""
    modules = make(
        lambda: nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}), 2, torch.float64, torch.device("cpu")
    )
    array = hfta.fuse(modules, [1, 2])
    optimizer = hfta.optim.Adam(array, lr=[0.1, 0.01], weight_decay=0.1)
    alone = [
        torch.optim.Adam(m.parameters(), lr=lr, weight_decay=0.1) for m, lr in zip(modules, [0.1, 0.01], strict=True)
    ]
    for step in range(6):
        used = ["a"] if step < 3 else ["a", "b"]
        optimizer.zero_grad()
        parameters = dict(array.named_parameters())
        for name, p in parameters.items():
            p.grad = torch.ones_like(p) if name[0] in used else None
        optimizer.step()
        for module, own in zip(modules, alone, strict=True):
            for name, p in module.named_parameters():
                p.grad = torch.ones_like(p) if name[0] in used else None
            own.step()
    assert largest(array, modules) <= 1e-12


def test_a_gradient_that_some_members_lack() -> None:
    """One member's loss does not depend on a parameter: that row keeps value and state, the others' move."""

    class Maybe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.switch, self.extra = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.switch + (self.extra if self.switch.item() > 0 else 0)

    modules = make(Maybe, 2, torch.float64, torch.device("cpu"))
    with torch.no_grad():
        modules[1].switch.fill_(-1.0)
    array = hfta.fuse(modules, [1, 2])
    x, y = torch.ones(3, 2, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    optimizer = hfta.optim.AdamW(array, lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        array.backward(loss_of, x, y)
        optimizer.step()
    for i, module in enumerate(modules):
        train_alone(module, i, 4, x, y, torch.optim.AdamW(module.parameters(), lr=0.1))
    assert largest(array, modules) <= 1e-12
    assert array.missing_grads == {"extra": [1]}
    array.backward(loss_of, x, y)  # added to what is there
    assert array.missing_grads == {"extra": [1]}
    with torch.no_grad():
        array.switch[1] = 1.0
    array.backward(loss_of, x, y)
    assert array.missing_grads == {}
    back = array[1]
    loss_of(back(x), y).backward()
    torch.testing.assert_close(array.extra.grad[1], back.extra.grad)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("SGD", {"lr": [0.1, 0.2]}, "not one value per member"),
        ("SGD", {"lr": -1.0}, "lr: out of bounds"),
        ("SGD", {"lr": "fast"}, "not a number"),
        ("SGD", {"lr": float("inf")}, "lr: out of bounds; got inf; accepted: a finite number, at least 0"),
        ("Adam", {"lr": [0.1, float("inf"), 0.1]}, "lr, member 1: out of bounds; got inf"),
        ("SGD", {"lr": 0.1, "nesterov": [False, True, False]}, "member 1: nesterov needs a momentum"),
        ("Adam", {"betas": 0.9}, "betas.*: not a pair"),
        ("Adam", {"betas": [(0.9, 1.0)] * 3}, "betas, member 0, value 1: out of bounds"),
        ("AdamW", {"weight_decay": [0, 0, -1]}, "weight_decay, member 2: out of bounds"),
    ],
)
def test_wrong_values_are_named(name: str, settings: dict, words: str) -> None:
    array = hfta.fuse(make(_build, MEMBERS, torch.float32, torch.device("cpu")))
    with pytest.raises(OptimError, match=words):
        getattr(hfta.optim, name)(array, **settings)


def test_an_optimizer_wants_an_array() -> None:
    with pytest.raises(OptimError, match="not a FusedArray"):
        hfta.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="other libraries may sum batched products otherwise")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("block", [MEMBERS, 1])
def test_bits_of_a_multilayer_perceptron(dtype: torch.dtype, block: int) -> None:
    """On a CPU every bit of every parameter is that of training alone: chaos makes much of one bit."""
    modules = make(
        lambda: nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4)), MEMBERS, dtype, torch.device("cpu")
    )
    x, y = torch.randn(32, 16, dtype=dtype), torch.randint(4, (32,))
    array = hfta.fuse(modules)
    array.strategy, array.block_size = "fixed", block  # measured kernels may sum in another order
    lrs = [3e-2, 1e-2, 1e-3]
    optimizer = hfta.optim.Adam(array, lr=lrs)
    alone = [torch.optim.Adam(m.parameters(), lr=lr) for m, lr in zip(modules, lrs, strict=True)]
    for _ in range(30):
        optimizer.zero_grad()
        array.backward(nn.functional.cross_entropy, x, y)
        optimizer.step()
        for module, own in zip(modules, alone, strict=True):
            own.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            own.step()
    for i, module in enumerate(modules):
        for p, q in zip(module.parameters(), array.parameters(), strict=True):
            assert torch.equal(p, q[i])
