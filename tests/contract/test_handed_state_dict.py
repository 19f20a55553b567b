"""An array's `state_dict` refers to the weights, and its rows are those of the plain modules."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning, FusionError
from tests.contract.handed_over import STEPS, numbers

WIDTHS = {"alike": (8, 8, 8), "unlike": (8, 5, 6)}
X, Y = numbers(12, 4), numbers(12, 1, seed=1)

pytestmark = pytest.mark.usefixtures("verified")


def build(member: int, width: int = 8) -> nn.Module:
    torch.manual_seed(member)
    layers = (nn.Linear(4, width, bias=False), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, 1))
    return nn.Sequential(*layers).double()


def fused(widths: Sequence[int] = WIDTHS["alike"], seed: int = 50) -> hfta.FusedArray:
    return hfta.fuse([build(i, w) for i, w in enumerate(widths)], seeds=[seed + i for i in range(len(widths))])


@torch.no_grad()
def yolo(average: Any, model: Any) -> None:
    theirs = model.state_dict()
    for name, value in average.state_dict().items():
        if value.dtype.is_floating_point:
            value *= 0.9
            value += 0.1 * theirs[name].detach()


@torch.no_grad()
def timm(average: Any, model: Any) -> None:
    for mean, value in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
        mean.copy_(0.9 * mean + 0.1 * value)


def by_data(average: Any, model: Any) -> None:
    for mean, value in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
        mean.data.copy_(value.data)


@torch.no_grad()
def pulled_back(average: Any, model: Any) -> None:
    yolo(average, model)
    for value, mean in zip(model.state_dict().values(), average.state_dict().values(), strict=True):
        if value.is_floating_point():
            value.lerp_(mean, 0.5)


@torch.no_grad()
def shifted(average: Any, model: Any) -> None:
    for value in model.state_dict().values():
        value.add_(1) if value.is_floating_point() else None


def loaded(average: Any, model: Any) -> None:
    average.load_state_dict(model.state_dict())


def in_part(average: Any, model: Any) -> None:
    average.load_state_dict({k: v for k, v in model.state_dict().items() if k.startswith("0")}, strict=False)


def trained(model: Any, form: str, after: Callable[[Any, Any], None], optimizer: Any) -> list[Any]:
    """The model, and its average, after some steps, each followed by `after`."""
    average = copy.deepcopy(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        if form == "backward":
            model.backward(F.mse_loss, X, Y)
        elif form == "forward":
            out = model(X)
            torch.stack([F.mse_loss(row, Y) for row in out]).sum().backward()
        else:
            F.mse_loss(model(X), Y).backward()
        optimizer.step()
        after(average, model)
    return [model, average]


@pytest.mark.parametrize(
    "after", [yolo, timm, by_data, pulled_back, shifted, loaded, in_part], ids=lambda f: f.__name__
)
@pytest.mark.parametrize(("widths", "form"), [("alike", "backward"), ("alike", "forward"), ("unlike", "backward")])
def test_writing_to_its_tensors_is_writing_to_the_array(widths: str, form: str, after: Callable[..., None]) -> None:
    array = fused(WIDTHS[widths])
    found = trained(array, form, after, hfta.optim.SGD(array, lr=0.05))
    for i, width in enumerate(WIDTHS[widths]):
        module = build(i, width)
        torch.manual_seed(50 + i)
        expected = trained(module, "plain", after, torch.optim.SGD(module.parameters(), lr=0.05))
        for mine, theirs in zip(found, expected, strict=True):
            row = {name: value[i] for name, value in mine.state_dict().items()}
            plain = build(9, width)
            plain.load_state_dict(mine.unpad(i)(row) if widths == "unlike" else row, strict=True)
            torch.testing.assert_close(plain.state_dict(), theirs.state_dict(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "options",
    [{}, {"use_buffers": True}, {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}],
    ids=["plain", "buffers", "multi"],
)
def test_averaged_models(options: dict[str, Any]) -> None:
    batches = [(numbers(12, 4, seed=n),) for n in range(3)]

    def averaged(model: Any, optimizer: Any, backward: Callable[[], Any]) -> tuple[Any, Tensor]:
        average = AveragedModel(model, **options)
        for _ in range(STEPS):
            optimizer.zero_grad()
            backward()
            optimizer.step()
            average.update_parameters(model)
        update_bn(batches, average)
        average.eval()
        with torch.no_grad():
            return average, average(X)

    array = fused()
    average, out = averaged(array, hfta.optim.Adam(array, lr=0.01), lambda: array.backward(F.mse_loss, X, Y))
    for i in range(3):
        module = build(i)
        torch.manual_seed(50 + i)
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        _, own = averaged(module, optimizer, lambda m=module: F.mse_loss(m(X), Y).backward())  # type: ignore[misc]
        torch.testing.assert_close(out[i], own, rtol=1e-10, atol=1e-10)
    other = AveragedModel(fused(seed=90), **options)
    other.load_state_dict(through_file(average.state_dict()))
    assert torch.equal(average.train()(X), other.train()(X))


def through_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("way", [through_file, copy.deepcopy, lambda state: state], ids=["file", "copy", "itself"])
def test_random_streams_go_along_beside_the_keys(way: Callable[[Any], Any]) -> None:
    array, other = fused(), fused(seed=90)
    array(X)
    kept = way(array.state_dict())
    assert list(kept) == list(build(0).state_dict())
    other.load_state_dict(kept)
    assert torch.equal(array(X), other(X))


def test_the_arguments_are_torch_s() -> None:
    array = fused()
    assert list(array.state_dict(prefix="model.")) == [f"model.{name}" for name in build(0).state_dict()]
    given: dict[str, Any] = {"step": 1}
    assert array.state_dict(destination=given) is given
    assert list(given) == ["step", *build(0).state_dict()]
    kept = array.state_dict(keep_vars=True)
    assert all(kept[name] is p for name, p in array.named_parameters())
    with pytest.raises(FusionError, match="assign=True"):
        array.load_state_dict(array.state_dict(), assign=True)
    for name, value in array.state_dict().items():
        own = build(0).state_dict()[name]
        assert (value.dtype, value.device, value[0].shape) == (own.dtype, own.device, own.shape)


def test_the_state_of_members_of_other_widths_is_refused() -> None:
    array, other = fused((8, 5, 6)), fused((5, 8, 6))
    with pytest.raises(FusionError, match="other widths"):
        array.load_state_dict(other.state_dict())
    before = array(X)
    array.load_state_dict(fused((8, 5, 6), seed=7).state_dict())
    assert before.shape == array(X).shape


class Counting(nn.Linear):
    """Its state has more than tensors."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return super().forward(x) / self.calls

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


@pytest.mark.parametrize("way", [through_file, copy.deepcopy], ids=["file", "copy"])
@pytest.mark.parametrize("make", [Counting, lambda *sizes: nn.Sequential(Counting(*sizes))], ids=["root", "inner"])
def test_a_model_s_own_extra_state_is_saved(make: Callable[..., nn.Module], way: Callable[[Any], Any]) -> None:
    modules = [make(4, 1).double() for _ in range(3)]
    array = hfta.fuse([copy.deepcopy(module) for module in modules])
    for _ in range(3):
        array(X)
    kept = way(array.state_dict())
    assert list(kept) == list(modules[0].state_dict())
    other = hfta.fuse([make(4, 1).double() for _ in range(3)])
    for _ in range(2):
        other.load_state_dict(kept)
        out = other(X)
    for i, module in enumerate(modules):
        expected = [module(X) for _ in range(4)]
        torch.testing.assert_close(out[i], expected[-1], rtol=1e-10, atol=1e-10)


class Wide(nn.Module):
    """Members of unlike width, with a mean and a number in the extra state of a submodule."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.scale, self.last = nn.Linear(4, width), Scaled(), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.scale(self.first(x)))  # type: ignore[no-any-return]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.calls = torch.zeros((), dtype=torch.float64), 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean, self.calls = self.mean + x.detach().mean(), self.calls + 1
        return x + self.mean / max(self.calls, 1)

    def get_extra_state(self) -> dict[str, Any]:
        return {"mean": self.mean, "calls": self.calls}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.mean, self.calls = state["mean"], state["calls"]


@pytest.mark.parametrize("widths", [(4, 4, 4), (3, 4, 5)], ids=["alike", "padded"])
def test_rows_have_the_members_own_extra_states(widths: tuple[int, ...]) -> None:
    modules = [Wide(w).double() for w in widths]
    array, other = (hfta.fuse([copy.deepcopy(module) for module in modules]) for _ in range(2))
    for i, module in enumerate(modules):
        for _ in range(i):  # a plain module's state, of another number of calls for each member
            module(X)
        array.load_member(i, module.state_dict())
    other.load_state_dict(array.state_dict())
    for i, (module, row) in enumerate(zip(modules, array.state_dict()["scale._extra_state"], strict=True)):
        assert row == {"mean": module.scale.mean, "calls": i}
        plain = Wide(widths[i]).double()
        plain.load_state_dict(array.unpad(i)({k: v[i] for k, v in array.state_dict().items()}))
        torch.testing.assert_close(plain.eval()(X), copy.deepcopy(module).eval()(X), rtol=1e-12, atol=0)
    with pytest.warns(DeprecationWarning, match=r"array\.narrower is array\.unpad now"):
        array.narrower(0)
    found = array(X), other(X)
    for i, module in enumerate(modules):
        expected = module(X)
        for out in found:
            torch.testing.assert_close(out[i], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("grid", [{"lr": [0.1, 0.01]}, {"lr": [0.1], "width": [3, 5]}], ids=["alike", "padded"])
@pytest.mark.parametrize("serial", [False, True])
def test_a_study_takes_extra_states_home(grid: dict[str, Any], serial: bool, tmp_path: Path) -> None:
    study = hfta.Study(
        Wide, grid, (X, torch.zeros(len(X), 1, dtype=X.dtype)), epochs=2, batch_size=4, dtype="float64",
        serial=serial, directory=tmp_path,
    )  # fmt: skip
    study.fit()
    for i in range(2):
        scale = study.member(i).module().get_submodule("scale")
        assert scale.calls > 0
        assert scale.mean.dtype == torch.float64
    assert study.check()["equal"].all()
    plain, again = (s.member(0).module() for s in (study, hfta.Study.load(tmp_path, family=Wide, data=study.data)))
    torch.testing.assert_close(plain(X), again(X), rtol=0, atol=0)


def _hooked(kind: str) -> nn.Module:
    """A model that loads and saves by code of its own, as those do whose layers had other names once."""
    model = nn.Sequential(
        Tripled(4, 3) if "overridden" in kind else nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)
    ).double()

    def renamed(module: nn.Module, state: Any, *_: Any) -> None:
        for name in [name for name in state if name.startswith("module.")]:
            state[name.removeprefix("module.")] = state.pop(name)

    def tripled(module: nn.Module, state: Any, prefix: str, *_: Any) -> None:
        state[prefix + "weight"] = 3 * state[prefix + "weight"]

    if kind == "renamed":
        model.register_load_state_dict_pre_hook(renamed)
    elif kind == "a submodule's":
        model[0].register_load_state_dict_pre_hook(tripled)
    return model


class Tripled(nn.Linear):
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = 3 * destination[prefix + "weight"]

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        state[prefix + "weight"] = state[prefix + "weight"] / 3
        super()._load_from_state_dict(state, prefix, *rest)


@pytest.mark.parametrize("kind", ["renamed", "a submodule's", "overridden"])
def test_a_member_loads_as_its_module_does(kind: str) -> None:
    modules = [_hooked(kind) for _ in range(3)]
    array = hfta.fuse([copy.deepcopy(module) for module in modules])
    for i, module in enumerate(modules):
        state = {f"module.{k}" if kind == "renamed" else k: v.clone() for k, v in build_plain(i).state_dict().items()}
        array.load_member(i, dict(state))
        module.load_state_dict(dict(state))
        torch.testing.assert_close(array[i](X), module(X), rtol=1e-12, atol=0)
    if kind == "renamed":
        with pytest.raises(FusionError, match="the module does not load it"):
            array.load_member(0, {"other": X})


def build_plain(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def test_code_of_a_model_s_own_that_an_array_does_not_call_is_told() -> None:
    array = hfta.fuse([_hooked("renamed") for _ in range(2)])
    with pytest.warns(ArrayWarning, match=r"code of its own for load_state_dict .*array.load_member"):
        array.load_state_dict(array.state_dict())


def test_a_hook_of_an_array_changes_what_its_submodules_load() -> None:
    def halved(module: nn.Module, state: Any, *_: Any) -> None:
        state["0.weight"] = state["0.weight"] / 2

    array = hfta.fuse([build_plain(i) for i in range(2)])
    array.register_load_state_dict_pre_hook(halved)
    array.load_state_dict(array.state_dict())
    for i in range(2):
        torch.testing.assert_close(array[i].state_dict()["0.weight"], build_plain(i).state_dict()["0.weight"] / 2)
