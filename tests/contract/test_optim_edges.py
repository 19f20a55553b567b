"""What an optimizer of an array must not change: padded entries, other members, parameters without gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import OptimError
from tests.contract.optim_rows import OPTIMIZERS, OptimizerRow
from tests.contract.optim_serial import CPU, Twins, make_optimizer, torch_optimizer, train_array
from tests.contract.serial import make, plain
from tests.contract.zoo.internal import thawed

with thawed():
    from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

optimizers = pytest.mark.parametrize("row", OPTIMIZERS, ids=str)
flat = pytest.mark.parametrize("row", [r for r in OPTIMIZERS if r.name not in ("LBFGS", "SparseAdam")], ids=str)


def _modules(dtype: torch.dtype = torch.float64) -> list[nn.Module]:
    return make(plain, 3, dtype, CPU)


@pytest.mark.long
@optimizers
def test_one_member(row: OptimizerRow) -> None:
    one = Twins(OptimizerRow(row.name, row.alone(1), row.lists), _modules()[1:2])
    one.steps(5)
    one.equal()


@optimizers
def test_poison_stays_in_its_member(row: OptimizerRow) -> None:
    """NaN in the values and gradients of one member from the third step on: the others keep every bit."""
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    runs = []
    for poisoned in (False, True):
        array = hfta.fuse(_modules(), [1, 2, 3])
        optimizer = make_optimizer(row, array)
        for step in range(6):
            if poisoned and step == 3:
                with torch.no_grad():
                    for k, p in enumerate(array.parameters()):
                        p[1].view(-1)[:2] = float("nan") if k % 2 else float("inf")
            train_array(array, optimizer, x, y, 1)
        runs.append([p.detach().clone() for p in array.parameters()])
    for before, after in zip(*runs, strict=True):
        assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not all(p[1].isfinite().all() for p in runs[1])


@optimizers
def test_a_member_that_is_skipped_keeps_everything(row: OptimizerRow) -> None:
    """As if it had had one step fewer; the others' bits are those of a run without a skip."""
    if row.name == "LBFGS":
        pytest.skip("its step evaluates by itself")
    runs = []
    for skip in ((), (1,)):
        modules = _modules()
        array = hfta.fuse(modules)
        optimizer = make_optimizer(row, array)
        for step in range(7):
            for p in array.parameters():
                p.grad = torch.sin(3 * p.detach())
            optimizer.step(skip=skip if step in (0, 4) else ())
        runs.append([p.detach().clone() for p in array.parameters()])
        if skip:
            alone = torch_optimizer(row, modules[1], 1)
            for _ in range(5):
                for p in modules[1].parameters():
                    g = torch.sin(3 * p.detach())
                    p.grad = g.to_sparse(1) if row.name == "SparseAdam" else g
                alone.step()
            for p, q in zip(modules[1].parameters(), array.parameters(), strict=True):
                torch.testing.assert_close(q[1], p, atol=1e-12, rtol=0)
    for before, after in zip(*runs, strict=True):
        assert torch.equal(before[[0, 2]], after[[0, 2]])


def test_momentum_that_is_switched_on_later_begins_with_a_whole_gradient() -> None:
    row = OptimizerRow("SGD", {"lr": 0.1, "momentum": [0.0, 0.9, 0.0], "dampening": 0.5})
    twins = Twins(row)
    for momenta in ([0.0, 0.9, 0.0], [0.8, 0.9, 0.0], [0.8, 0.9, 0.7]):
        for own, momentum in zip((twins.optimizer, *twins.alone), (momenta, *momenta), strict=True):
            own.param_groups[0]["momentum"] = momentum
        twins.steps(2)
    twins.equal(1e-12)


@pytest.mark.long
@optimizers
def test_gradients_that_come_and_go(row: OptimizerRow) -> None:
    """A parameter without gradient skips update, state and step count; per member, too."""
    if row.name == "LBFGS":
        pytest.skip("takes a missing gradient as zero, as torch does")
    twins = Twins(row)
    array = twins.array
    for step in range(8):
        lacking = {"0.weight": [], "0.bias": [1], "2.weight": [0, 2] if step % 2 else [], "2.bias": [0, 1, 2]}
        if step == 5:
            lacking["2.bias"] = []
        for name, p in array.named_parameters():
            p.grad = None if len(lacking[name]) == 3 else torch.cos(5 * p.detach())
        array.missing_grads = {k: v for k, v in lacking.items() if 0 < len(v) < 3}
        twins.optimizer.step()
        for i, (module, own) in enumerate(zip(twins.modules, twins.alone, strict=True)):
            for name, p in module.named_parameters():
                g = torch.cos(5 * p.detach())
                g = g.to_sparse(1) if row.name == "SparseAdam" else g
                p.grad = None if i in lacking[name] else g
            own.step()
    twins.equal()


@pytest.mark.each("row")
@flat
@pytest.mark.parametrize("eps", [None, 0.0])
def test_nothing_stays_nothing(row: OptimizerRow, eps: float | None) -> None:
    """Padding has value and gradient zero: it stays exactly zero, and the member is as it is without padding."""
    if eps is not None and ("eps" not in row.settings or row.name in ("Adafactor", "Muon", "RowwiseAdagrad")):
        pytest.skip("no eps that could be zero")
    settings = row.settings if eps is None else {**row.settings, "eps": eps}
    row = OptimizerRow(row.name, settings)
    widths = [8, 5, 3]
    narrow = [
        make(lambda w=w: nn.Sequential(nn.Linear(5, w), nn.Linear(w, 3)), 1, torch.float64, CPU)[0] for w in widths
    ]
    wide = make(lambda: nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3)), 3, torch.float64, CPU)
    array = hfta.fuse(wide)
    owned: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for name, p in array.named_parameters():
            p.zero_()
            owned[name] = torch.zeros_like(p, dtype=torch.bool)
            for i, module in enumerate(narrow):
                own = dict(module.named_parameters())[name]
                box = (i, *(slice(0, n) for n in own.shape))
                p[box], owned[name][box] = own, True
    array._state.owned = owned
    optimizer = make_optimizer(row, array)
    alone = [torch_optimizer(row, m, i) for i, m in enumerate(narrow)]
    for _ in range(6):
        for name, p in array.named_parameters():
            p.grad = torch.where(owned[name], torch.cos(5 * p.detach()), 0.0)
        optimizer.step()
        for module, opt in zip(narrow, alone, strict=True):
            for p in module.parameters():
                p.grad = torch.cos(5 * p.detach())
            opt.step()
    for name, p in array.named_parameters():
        assert (p[~owned[name]] == 0).all()
        for i, module in enumerate(narrow):
            own = dict(module.named_parameters())[name]
            torch.testing.assert_close(p[i][owned[name][i]], own.flatten(), atol=1e-10, rtol=0)
    for arena in array.arenas:
        inside = torch.zeros(arena.data.shape[1], dtype=torch.bool)
        for span in arena.spans:
            inside[span.start : span.stop] = True
        assert (arena.data[:, ~inside] == 0).all()


REAL_NUMBERS = "Muon", "Adafactor", "SparseAdam", "RowwiseAdagrad"
"""Optimizers that refuse complex parameters."""


@pytest.mark.each
@pytest.mark.parametrize("row", [r for r in OPTIMIZERS if r.name not in REAL_NUMBERS], ids=str)
def test_complex_parameters(row: OptimizerRow) -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.randn(3, 2, dtype=torch.complex128))
            self.b = nn.Parameter(torch.randn(4, dtype=torch.float64))

    modules = []
    for i in range(3):
        torch.manual_seed(i)
        modules.append(Complex())
    twins = Twins(row, modules)
    array = twins.array

    def gradients(module: nn.Module) -> torch.Tensor:
        for p in module.parameters():
            p.grad = 2 * p.detach() - 0.1
        return sum((p.detach().abs() ** 2).flatten(1 if module is array else 0).sum(-1) for p in module.parameters())

    for _ in range(10):
        for module, opt in twins.all():
            if row.name == "LBFGS":
                opt.step(lambda module=module: gradients(module))
            else:
                gradients(module)
                opt.step()
    for i, module in enumerate(modules):
        for p, q in zip(array.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(p[i], q, atol=1e-10, rtol=0)


@pytest.mark.each("row")
@flat
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(row: OptimizerRow, dtype: torch.dtype) -> None:
    twins = Twins(row, _modules(dtype))
    twins.wave(torch.cos, 3)
    for i, module in enumerate(twins.modules):
        for p, q in zip(twins.array.parameters(), module.parameters(), strict=True):
            # eps vanishes in half precision (1e-8 is 0), so that some updates are what a last bit makes them.
            torch.testing.assert_close(p[i].float(), q.float(), atol=0.05, rtol=0.05)


@pytest.mark.each("row")
@flat
@pytest.mark.parametrize("piece", [50, 200], ids=["parts of rows", "whole rows"])
def test_in_pieces(row: OptimizerRow, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CPU's cache makes of a large array: the same, to the last digits."""
    many = OptimizerRow(row.name, {k: v * 3 if isinstance(v, list) else v for k, v in row.settings.items()})
    modules = make(plain, 9, torch.float64, CPU)
    results = []
    for size in (10**9, piece):
        monkeypatch.setattr("hfta_nb.optim.flat.PIECE", size)
        array = hfta.fuse(modules)
        optimizer = make_optimizer(many, array)
        for _ in range(8):
            for p in array.parameters():
                p.grad = torch.cos(5 * p.detach())
            optimizer.step()
        results.append([p.detach().clone() for p in array.parameters()])
    for p, q in zip(*results, strict=True):
        torch.testing.assert_close(p, q, atol=1e-13, rtol=1e-13)


def _wrong_arguments() -> list:
    found = []
    for info in optim_db:
        for case in info.optim_error_inputs_func(device="cpu", dtype=torch.float64):
            given = case.optimizer_error_input
            # Tensors are taken as the numbers in them, whatever else is given.
            forms = "Tensor" in given.desc and "1-element" not in given.desc
            if case.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR and given.params is None and not forms:
                found.append(pytest.param(info.name, given.kwargs, id=f"{info.name} {given.desc}"))
    return found


@pytest.mark.parametrize(("name", "settings"), _wrong_arguments())
def test_what_torch_refuses_is_refused(name: str, settings: dict) -> None:
    array = hfta.fuse(_modules())
    params = [p for p in array.parameters() if p.ndim == 3] if name == "Muon" else array
    with pytest.raises(OptimError):
        getattr(hfta.optim, name)(params, **settings)


def test_muon_wants_matrices() -> None:
    with pytest.raises(OptimError, match=r"0.bias: not a matrix"):
        hfta.optim.Muon(hfta.fuse(_modules()))


def test_no_optimizer_is_differentiable() -> None:
    with pytest.raises(OptimError, match="can't be differentiated"):
        hfta.optim.Adam(hfta.fuse(_modules()), differentiable=True)


def test_an_array_that_moves_to_another_dtype_keeps_its_state() -> None:
    array = hfta.fuse(_modules())
    optimizer = hfta.optim.Adam(array, lr=[0.1, 0.01, 0.2])
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    train_array(array, optimizer, x, y, 3)
    before = optimizer.state_dict()["state"]["0.weight"]
    array.float()
    train_array(array, optimizer, x.float(), y.float(), 1)
    after = optimizer.state_dict()["state"]["0.weight"]
    assert after["steps"] == [4, 4, 4]
    assert after["tensors"]["exp_avg"].dtype == torch.float32
    torch.testing.assert_close(
        after["tensors"]["exp_avg_sq"], before["tensors"]["exp_avg_sq"].float(), atol=1e-2, rtol=1
    )
