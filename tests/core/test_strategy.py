"""Kernels chosen by time: results and user settings are unchanged, and any content of the file on disk is tolerated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import schedule_trial
from hfta_nb.engine.comparison import compare
from hfta_nb.engine.kernels.strategy import autotune, matmul_precision
from hfta_nb.engine.kernels.strategy.autotune import choose
from hfta_nb.engine.kernels.strategy.kernel_variants import PLAIN, KernelVariant, Operand, variants_of
from hfta_nb.engine.kernels.strategy.products import Copied
from hfta_nb.engine.kernels.strategy.times import Kept
from hfta_nb.errors import FusionError

CPU = torch.device("cpu")
aten = torch.ops.aten


def operand(tensor: Tensor) -> Operand:
    return Operand(tuple(tensor.shape), tensor.stride(), tensor.dtype)


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """Nothing was measured before."""
    fresh = Kept(None, {})
    monkeypatch.setattr(autotune, "kept", lambda device: fresh)
    return fresh


# Numbers.


def _columns(members: int, *shape: int) -> Tensor:
    """As parameters lie in an array."""
    count = torch.Size(shape).numel()
    return torch.randn(members, count + 48)[:, :count].view(members, *shape)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_copied_products_are_the_batched_product(shared: bool, turned: bool, bias: bool) -> None:
    x = torch.randn(6, 5).expand(3, 6, 5) if shared else _columns(3, 6, 5)
    weight = _columns(3, 4, 5).transpose(1, 2) if turned else _columns(3, 5, 4)
    shift = (_columns(3, 1, 4),) if bias else ()
    call = Copied(aten.baddbmm.out if bias else aten.bmm.out)
    out = _columns(3, 6, 4)
    for _ in range(2):  # again, with other values in the same memory, and in other memory
        call(*shift, x, weight, out=out)
        torch.testing.assert_close(out, x @ weight + (shift[0] if bias else 0))
        weight.mul_(2)
    other, room = torch.randn(3, 6, 5), torch.empty(3, 6, 4)
    call(*shift, other, weight, out=room)
    torch.testing.assert_close(room, other @ weight + (shift[0] if bias else 0))


@pytest.mark.parametrize("shape", [(8, 64, 10), (7, 3), (2, 3, 4, 1)], ids=str)
@pytest.mark.parametrize("name", ["_log_softmax", "_softmax"])
def test_softmax_over_short_rows(name: str, shape: tuple[int, ...]) -> None:
    x, grad = torch.randn(shape), torch.randn(shape)
    last, out = len(shape) - 1, torch.empty(shape)
    forward, backward = getattr(aten, name).default, getattr(aten, f"{name}_backward_data").default
    (way,) = variants_of(forward, [operand(x), last, False], CPU)
    true = forward(x, last, False)
    way.make(getattr(aten, name).out)(x, last, False, out=out)
    torch.testing.assert_close(out, true)
    way = next(  # the other one is compiled, where the library is there
        w
        for w in variants_of(backward, [operand(grad), operand(true), last, torch.float32], CPU)
        if "tensors" in w.name
    )
    room = "out" if name == "_log_softmax" else "grad_input"
    way.make(None)(grad, true, last, torch.float32, **{room: out})  # type: ignore[arg-type]
    torch.testing.assert_close(out, backward(grad, true, last, torch.float32))


def test_float64_and_other_axes_are_torch_s() -> None:
    x, y = (torch.randn(2, 3, 4, dtype=torch.float64) for _ in range(2))
    assert variants_of(aten.bmm.default, [operand(x), operand(y)], CPU) == []
    assert variants_of(aten._log_softmax.default, [operand(x.float()), 1, False], CPU) == []
    assert variants_of(aten._log_softmax.default, [operand(x.float().transpose(0, 1)), 2, False], CPU) == []
    assert variants_of(aten.bmm.default, [operand(x.float()), operand(y.float())], torch.device("cuda")) == []


# Choosing.


def test_the_fastest_is_chosen_and_kept(no_memory: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(8, 16)
    ways = [KernelVariant("slow", lambda f: lambda *a, **k: torch.stack([f(*a, **k) for _ in range(50)]))]
    monkeypatch.setattr(autotune, "variants_of", lambda *_: ways)
    given: Any = aten.neg.default, aten.neg.out, [operand(x)], {"out": operand(x)}, CPU
    choice = choose(*given)
    assert choice is not None
    assert choice.chosen.name == PLAIN
    assert choice.seconds["slow"] > choice.seconds[PLAIN]  # type: ignore[operator]
    assert "torch" in str(choice)
    assert "slow" in str(choice)
    (key,) = no_memory._times
    no_memory._times[key] = {PLAIN: 1.0, "slow": 0.1}  # as another process may have measured
    again = choose(*given)
    assert again is not None
    assert again.chosen.name == "slow"
    monkeypatch.setattr(autotune, "variants_of", lambda *_: [*ways, KernelVariant("another", lambda f: f)])
    newer = choose(*given)  # of another version, which has another way
    assert newer is not None
    assert set(newer.seconds) == {PLAIN, "slow", "another"}
    assert no_memory._times[key] == {PLAIN: 1.0, "slow": 0.1}


def test_numbers_that_are_not_right_are_refused(no_memory: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(x: Tensor, y: Tensor, *, out: Tensor) -> None:
        out.copy_(x.bfloat16().float() @ y.bfloat16().float())

    x, y = torch.randn(32, 32), torch.randn(32, 32)
    monkeypatch.setattr(autotune, "variants_of", lambda *_: [KernelVariant("rounded", lambda f: rounded)])
    monkeypatch.setattr(autotune, "_timed", lambda runs, *_: {PLAIN: 1.0, "rounded": 0.1})
    choice = choose(aten.mm.default, aten.mm.out, [operand(x), operand(y)], {"out": operand(x)}, CPU)
    assert choice is not None
    assert choice.chosen.name == PLAIN
    assert choice.seconds["rounded"] is None
    assert "other numbers" in str(choice)


@pytest.mark.parametrize("asked", [True, False])
def test_where_tf32_was_asked_for_a_kernel_may_round_so(
    asked: bool, no_memory: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(x: Tensor) -> Tensor:
        return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)  # 10 bits of the fraction

    def rounded(x: Tensor, y: Tensor, *, out: Tensor) -> None:
        out.copy_(cut(x) @ cut(y))

    x, y = torch.randn(32, 32), torch.randn(32, 32)
    monkeypatch.setattr(matmul_precision, "float32", lambda device: ("tf32", "none", "none") if asked else ())
    monkeypatch.setattr(autotune, "variants_of", lambda *_: [KernelVariant("rounded", lambda f: rounded)])
    monkeypatch.setattr(autotune, "_timed", lambda runs, *_: {PLAIN: 1.0, "rounded": 0.1})
    choice = choose(aten.mm.default, aten.mm.out, [operand(x), operand(y)], {"out": operand(x)}, CPU)
    assert choice is not None
    assert choice.chosen.name == ("rounded" if asked else PLAIN)
    product, other = x @ y, torch.empty(32, 32)
    rounded(x, y, out=other)
    assert (not compare({"": other}, {"": product}, matmul_precision.tolerance)) is asked
    assert compare({"": product * 1.1}, {"": product}, matmul_precision.tolerance)


def test_a_way_that_fails_is_no_way(no_memory: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(autotune, "variants_of", lambda *_: [KernelVariant("fails", lambda f: fails)])
    x, before = torch.randn(4, 4), matmul_precision.get()
    assert choose(aten.neg.default, aten.neg.out, [operand(x)], {"out": operand(x)}, CPU) is None
    assert matmul_precision.get() == before


def test_a_kernel_that_a_library_refuses_is_tried_once(no_memory: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refused(*args: Any, **kwargs: Any) -> None:
        tried.append(1)
        raise RuntimeError("GET was unable to find an engine to execute this computation")

    given: Any = aten.neg.default, aten.neg.out, [operand(torch.randn(4, 4))], {"out": operand(torch.randn(4, 4))}, CPU
    ways = [KernelVariant("refused", lambda f: refused), KernelVariant("works", lambda f: f)]
    monkeypatch.setattr(autotune, "variants_of", lambda *_: ways)
    choices = [choose(*given), choose(*given)]
    assert len(tried) == 1
    for choice in choices:
        assert choice is not None
        assert choice.seconds["refused"] is None
        assert choice.seconds["works"] is not None


def test_what_torch_itself_refuses_is_tried_once(no_memory: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refused(*args: Any, **kwargs: Any) -> None:
        tried.append(1)
        raise RuntimeError("GET was unable to find an engine to execute this computation")

    monkeypatch.setattr(autotune, "variants_of", lambda *_: [KernelVariant("same", lambda f: f)])
    for _ in range(2):
        assert choose(aten.neg.default, refused, [operand(torch.randn(4))], {}, CPU) is None
    assert len(tried) == 1


# In an array.


def test_a_step_is_replayed_as_it_was_recorded_to_round(monkeypatch: pytest.MonkeyPatch) -> None:
    array = _stepped("fixed")
    (seen,) = array._calls.steps
    assert seen.ready
    monkeypatch.setattr(matmul_precision, "on_cpu", lambda: ("none", "bf16", "bf16"))
    array.backward(F.cross_entropy, torch.randn(32, 64), torch.randint(0, 10, (32,)))
    assert [s.ready for s in array._calls.steps] == [True, False]


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _stepped(strategy: str, steps: int = 6) -> hfta.FusedArray:
    torch.manual_seed(0)
    array = hfta.fuse([_mlp() for _ in range(4)])
    array.strategy = strategy
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    for _ in range(steps):
        for p in array.parameters():
            p.grad = None
        array.backward(F.cross_entropy, x, y)
    return array


def test_measured_is_fixed_but_for_rounding() -> None:
    before = matmul_precision.get()
    measured, fixed, plain = _stepped("measured"), _stepped("fixed"), _stepped("fixed", steps=1)
    for p, q, r in zip(measured.parameters(), fixed.parameters(), plain.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert r.grad is not None
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)
        assert torch.equal(q.grad, r.grad)
    assert matmul_precision.get() == before
    table = measured.explain()
    assert table["how"].str.startswith("measured: ").any()
    assert not fixed.explain()["how"].str.startswith("measured: ").any()
    assert measured.select([0, 1]).strategy == "measured"
    assert fixed.select([0, 1]).strategy == "fixed"


@pytest.mark.skipif(not matmul_precision.can_switch(), reason="no other products here")
def test_the_setting_is_put_back_after_an_error() -> None:
    array = _stepped("measured")
    (seen,) = array._calls.steps
    assert seen.program is not None
    before = matmul_precision.get()

    def fails() -> None:
        assert torch.backends.mkldnn.matmul.fp32_precision == matmul_precision.ONEDNN
        raise RuntimeError("no more")

    seen.program.setting = before
    seen.program.steps[:] = [matmul_precision.switch(matmul_precision.ONEDNN), fails]
    with pytest.raises(RuntimeError, match="no more"):
        seen.program.run()
    assert matmul_precision.get() == before


def test_no_such_strategy() -> None:
    array = hfta.fuse([nn.Linear(2, 2)])
    with pytest.raises(FusionError, match="measured or fixed"):
        array.strategy = "guessed"
    assert array.strategy == "measured"


def test_tuning_leaves_the_program_of_its_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_HOPELESS", "_PAID_STEPS"):  # no size is left out for a slow lap
        monkeypatch.setattr(schedule_trial, limit, float("inf"))
    array = hfta.fuse([_mlp() for _ in range(4)])
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    found = array.tune(F.cross_entropy, x, y, budget_s=30)
    assert array.block_size in found
    assert all(p.grad is None for p in array.parameters())
    (seen,) = array._calls.steps
    assert seen.ready
    assert seen.block_size == array.block_size
