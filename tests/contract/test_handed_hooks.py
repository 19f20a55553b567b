"""What forward hooks collect from an array has the member axis; in a member's loss, it is that member's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import FusionError
from tests.contract.handed_over import numbers

X, Y = numbers(12, 4), numbers(12, 1, seed=1)
STEPS = 6
pytestmark = pytest.mark.usefixtures("verified")

Term = Callable[[int], Tensor]
"""From the number of axes in front of a member's, a term of the loss."""


class Reading(nn.Module):
    """Members read values, so they run one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.tanh = nn.Linear(4, 5), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        found: Tensor = self.tanh(h if h.sum().item() > -1e9 else -h)
        return found


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def reading() -> nn.Module:
    return nn.Sequential(Reading(), nn.Tanh(), nn.Linear(5, 1)).double()


def _mean(value: Tensor, axes: int) -> Tensor:
    return value.flatten(axes).pow(2).mean(-1)


def _cleared_list(model: nn.Module) -> Term:
    kept: list[Tensor] = []
    model.get_submodule("1").register_forward_pre_hook(lambda m, i: kept.clear())
    model.get_submodule("1").register_forward_hook(lambda m, i, o: kept.append(o))
    return lambda axes: _mean(kept[0], axes)


def _growing_list(model: nn.Module) -> Term:
    kept: list[Tensor] = []
    model.get_submodule("1").register_forward_hook(lambda m, i, o: kept.append(o))
    return lambda axes: _mean(kept[-1], axes) * len(kept)


def _dict_by_name(model: nn.Module) -> Term:
    kept: dict[str, Tensor] = {}
    for name in ("0", "1"):
        model.get_submodule(name).register_forward_hook(lambda m, i, o, name=name: kept.__setitem__(name, o))
    return lambda axes: _mean(kept["0"], axes) + _mean(kept["1"], axes)


def _reduced(model: nn.Module) -> Term:
    kept: list[Tensor] = []
    model.get_submodule("1").register_forward_hook(lambda m, i, o: kept.append(o.pow(2).mean()))
    return lambda axes: kept[-1]


def _average(model: nn.Module) -> Term:
    kept = {"average": torch.zeros((), dtype=torch.float64)}

    def hook(module: nn.Module, given: Any, output: Tensor) -> None:
        kept["average"] = 0.9 * kept["average"].detach() + 0.1 * output.pow(2).mean()

    model.get_submodule("1").register_forward_hook(hook)
    return lambda axes: kept["average"]


class Collector:
    def __init__(self, model: nn.Module) -> None:
        self.model, self.seen, self.count = model, dict[str, Tensor](), 0

    def __call__(self, module: nn.Module, given: Any, output: Tensor) -> None:
        self.count += 1
        self.seen["output"] = output

    def before(self, module: nn.Module, given: Any) -> None:
        self.seen["input"] = given[0]


def _object(model: nn.Module) -> Term:
    collector = Collector(model)
    model.get_submodule("1").register_forward_hook(collector)
    return lambda axes: _mean(collector.seen["output"], axes) * collector.count


def _method(model: nn.Module) -> Term:
    collector = Collector(model)
    model.get_submodule("2").register_forward_pre_hook(collector.before)
    return lambda axes: _mean(collector.seen["input"], axes)


def _inner(model: nn.Module) -> Term:
    collector = Collector(model)
    model.get_submodule("0.tanh").register_forward_hook(collector)
    return lambda axes: _mean(collector.seen["output"], axes)


KINDS: list[tuple[Callable[[nn.Module], Term], Callable[[], nn.Module]]] = [
    *((kind, plain) for kind in (_cleared_list, _growing_list, _dict_by_name, _reduced, _average, _object, _method)),
    (_dict_by_name, reading),
    (_inner, reading),
]


@pytest.mark.pairs
@pytest.mark.parametrize("form", ["forward", "backward"])
@pytest.mark.parametrize("block_size", [3, 2, 1])
@pytest.mark.parametrize(("hook", "build"), KINDS, ids=[f"{h.__name__[1:]}-{b.__name__}" for h, b in KINDS])
def test_what_hooks_collect_trains_members_as_alone(
    hook: Callable[[nn.Module], Term], build: Callable[[], nn.Module], block_size: int, form: str
) -> None:
    torch.manual_seed(0)
    modules = [build() for _ in range(3)]
    array = hfta.fuse(copy.deepcopy(modules))
    array.block_size = block_size
    terms, term = [hook(module) for module in modules], hook(array)
    ours, theirs = hfta.optim.SGD(array, lr=0.05), [torch.optim.SGD(m.parameters(), lr=0.05) for m in modules]
    for _ in range(STEPS):
        ours.zero_grad()
        if form == "backward":
            losses = array.backward(lambda o, y: F.mse_loss(o, y) + term(0), X, Y)
        else:
            out = array(X)
            losses = (out - Y).pow(2).flatten(1).mean(1) + term(1)
            losses.sum().backward()
        ours.step()
        for i, (module, own, optimizer) in enumerate(zip(modules, terms, theirs, strict=True)):
            optimizer.zero_grad()
            value = F.mse_loss(module(X), Y) + own(0)
            value.backward()
            optimizer.step()
            torch.testing.assert_close(losses[i].detach(), value.detach(), rtol=1e-10, atol=1e-10)
    for i, module in enumerate(modules):
        for p, q in zip(module.parameters(), array.parameters(), strict=True):
            torch.testing.assert_close(q[i], p, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("as_object", [False, True])
def test_one_hook_of_all_modules_collects_once_a_call(as_object: bool) -> None:
    kept: list[Tensor] = []
    modules = [plain() for _ in range(3)]
    collector = Collector(nn.Identity())
    for module in modules:
        hook = collector if as_object else lambda m, i, o: kept.append(o)
        module[1].register_forward_hook(hook)  # type: ignore[index]
    array = hfta.fuse(modules)
    for call in range(4):
        with torch.set_grad_enabled(call % 2 == 0):
            array(X)
        array.evaluate(F.mse_loss, X, Y)
        if as_object:
            assert (collector.count, collector.seen["output"].shape) == (2 * call + 2, (3, 12, 5))
        else:
            assert [list(v.shape) for v in kept] == [[3, 12, 5]] * (2 * call + 2)
    assert not any(torch._C._functorch.is_functorch_wrapped_tensor(v) for v in kept)


def test_hooks_that_keep_in_an_object_of_each_module_are_refused() -> None:
    def hooked() -> nn.Module:
        module, own = plain(), list[Tensor]()
        module[1].register_forward_hook(lambda m, i, o: own.append(o))  # type: ignore[index]
        return module

    with pytest.raises(FusionError, match="own: each module has a hook that keeps"):
        hfta.fuse([hooked() for _ in range(3)])


def test_hooks_that_keep_on_their_module_show_all_members() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = nn.Linear(4, 5), dict[str, Tensor]()
            self.layer.register_forward_hook(self.keep)

        def keep(self, module: nn.Module, given: Any, output: Tensor) -> None:
            self.seen["layer"] = output

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layer(x)
            return found

    array = hfta.fuse([Keeping().double() for _ in range(3)])
    for _ in range(4):
        out = array(X)
    torch.testing.assert_close(array.seen["layer"], out)


@pytest.mark.parametrize("verify", ["first", "never"])
@pytest.mark.parametrize("form", ["forward", "losses", "backward"])
def test_gradients_that_a_hook_keeps_in_the_backward_are_refused(form: str, verify: str) -> None:
    """They would be those of a block of members, or of the member that is compared."""
    kept: dict[str, Tensor] = {}

    def hook(module: nn.Module, given: Any, output: Tensor) -> None:
        output.register_hook(lambda grad: kept.update(grad=grad))

    array = hfta.fuse([plain() for _ in range(3)], verify=verify)
    array.get_submodule("1").register_forward_hook(hook)

    def step() -> None:
        if form == "backward":
            array.backward(F.mse_loss, X, Y)
        else:
            out = array(X)
            losses = array.losses(F.mse_loss, out, Y) if form == "losses" else (out - Y).pow(2).flatten(1).mean(1)
            losses.sum().backward()

    message = r"^kept\['grad'\]: the backward changes .*register its hook after array\(x\)"
    with pytest.raises(FusionError, match=message):
        step()


def test_a_hook_on_what_a_forward_hook_has_kept_sees_all_members() -> None:
    modules = [plain() for _ in range(3)]
    array, kept, grads, expected = hfta.fuse(modules), dict[str, Tensor](), list[Tensor](), list[Tensor]()
    array.get_submodule("1").register_forward_hook(lambda m, i, o: kept.update(output=o))
    for _ in range(4):
        out = array(X)
        kept["output"].register_hook(grads.append)
        (out - Y).pow(2).flatten(1).mean(1).sum().backward()
    for module in modules:
        module[1].register_forward_hook(lambda m, i, o: o.register_hook(expected.append) and None)  # type: ignore[index]
        (module(X) - Y).pow(2).mean().backward()
    for grad in grads:
        torch.testing.assert_close(grad, torch.stack(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", ["forward", "backward"])
@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_are_called_once_for_each_member(register: str, form: str) -> None:
    modules = [plain() for _ in range(3)]
    copies = copy.deepcopy(modules)
    seen, expected = list[float](), list[float]()
    for kept, own in ((seen, copies), (expected, modules)):
        for module in own:
            getattr(module.get_submodule("1"), register)(_noting(kept))
    array = hfta.fuse(copies)
    for _ in range(STEPS):
        _step(array, form)
        for module in modules:
            F.mse_loss(module(X), Y).backward()
        assert sorted(seen) == pytest.approx(sorted(expected), rel=1e-10)


def _step(array: hfta.FusedArray, form: str) -> None:
    if form == "backward":
        array.backward(F.mse_loss, X, Y)
    else:
        (array(X) - Y).pow(2).flatten(1).mean(1).sum().backward()


def _noting(kept: list[float]) -> Callable[..., None]:
    return lambda module, *grads: kept.append(float(grads[-1][0].norm()))


class Averaging(nn.Module):
    """A backward hook, a function over the model, moves an average to what the forward has kept."""

    def __init__(self, register: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 1)
        self.register_buffer("average", torch.zeros(5))
        self.kept: Tensor | None = None
        getattr(self, register)(lambda *_: self.move())

    def move(self) -> None:
        assert self.kept is not None
        self.average.mul_(0.9).add_(self.kept, alpha=0.1)
        self.kept = None

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        self.kept = h.detach().mean(0)
        return self.second(h - self.average)


@pytest.mark.filterwarnings("ignore:.*than alone", "ignore:.*ackward hook")
@pytest.mark.parametrize("form", ["forward", "backward"])
@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_backward_hook"])
def test_what_a_backward_hook_changes_in_its_model_is_compared(register: str, form: str) -> None:
    modules, copies = ([Averaging(register).double() for _ in range(3)] for _ in range(2))
    for module, other in zip(modules, copies, strict=True):
        other.load_state_dict(module.state_dict())
    array = hfta.fuse(copies)
    for _ in range(STEPS):
        _step(array, form)
        for i, module in enumerate(modules):
            F.mse_loss(module(X), Y).backward()
            torch.testing.assert_close(array[i].get_buffer("average"), module.average, rtol=1e-10, atol=1e-10)
