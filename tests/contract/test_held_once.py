"""Parameters that are frozen and equal in all members are held once, and computed with once where it can be."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import hfta_nb as hfta
from hfta_nb.engine.members.arena import is_held_once
from hfta_nb.train.memory import Meter

SEEDS = [5, 6, 7]
LRS = [1e-3, 3e-3, 1e-2]
WIDTH = 32


class Lora(nn.Module):
    """A frozen linear layer with a trained correction of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base, self.drop = base, nn.Dropout(0.2)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / 8)
        self.up = nn.Parameter(torch.randn(base.out_features, rank) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(self.drop(x), self.down), self.up)  # type: ignore[no-any-return]


def trunk(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(*layers).double().requires_grad_(False)


def tuned(base: nn.Sequential, seed: int) -> nn.Module:
    """Frozen, frozen with an adapter, frozen, and a head."""
    torch.manual_seed(seed)
    layers = base[0], nn.Tanh(), Lora(base[2]), base[3], nn.Dropout(0.1), nn.Linear(WIDTH, 3)  # type: ignore[arg-type]
    return nn.Sequential(*layers).double()


ONE = trunk()
SOURCES: dict[str, Callable[[int], nn.Sequential]] = {
    "one object": lambda i: ONE,
    "equal copies": lambda i: copy.deepcopy(ONE),
    "unlike": trunk,
}
HELD = ["0.weight", "0.bias", "2.base.weight", "2.base.bias", "3.weight", "3.bias"]


def members(source: str = "one object", count: int = 3) -> list[nn.Module]:
    return [tuned(SOURCES[source](i), i) for i in range(count)]


def held(array: hfta.FusedArray) -> list[str]:
    return [name for name, p in array.named_parameters() if is_held_once(p)]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X, Y = numbers(24, WIDTH), torch.arange(24) % 3
Train = Callable[[hfta.FusedArray, Any, int], None]


def backward(array: hfta.FusedArray, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        array.backward(F.cross_entropy, X, Y)
        optimizer.step()


def split(array: hfta.FusedArray, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(array.losses(F.cross_entropy, array(X), Y).sum())
        optimizer.step()


def one_by_one(array: hfta.FusedArray, optimizer: Any, steps: int) -> None:
    array.block_size = 1
    backward(array, optimizer, steps)


class Alone:
    """Plain modules, each trained by torch alone under its own seed."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = [copy.deepcopy(m) for m in modules]
        self.optimizers = [
            torch.optim.AdamW(m.parameters(), lr=lr, weight_decay=0.1) for m, lr in zip(self.modules, LRS, strict=False)
        ]
        self.states: list[Tensor] = []
        for seed in SEEDS:
            torch.manual_seed(seed)
            self.states.append(torch.get_rng_state())

    def train(self, steps: int) -> Alone:
        for i, (module, optimizer) in enumerate(zip(self.modules, self.optimizers, strict=True)):
            torch.set_rng_state(self.states[i])
            for _ in range(steps):
                optimizer.zero_grad()
                torch.autograd.backward(F.cross_entropy(module(X), Y))
                optimizer.step()
            self.states[i] = torch.get_rng_state()
        return self

    def equals(self, array: hfta.FusedArray) -> None:
        named = dict(array.named_parameters())
        for i, module in enumerate(self.modules):
            for name, p in module.named_parameters():
                torch.testing.assert_close(named[name][i].detach(), p.detach(), atol=1e-10, rtol=0)


def adam(array: hfta.FusedArray) -> Any:
    return hfta.optim.AdamW(array, lr=LRS[: len(array)], weight_decay=0.1)


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


class Codes(nn.Module):
    """A frozen codebook that follows its input, some calls after the first."""

    def __init__(self, how: str, late: bool) -> None:
        super().__init__()
        self.how, self.late, self.calls = how, late, 0
        self.codes = nn.Parameter(numbers(WIDTH, WIDTH), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.training and self.calls > 3 * self.late:
            codes = self.codes.data if self.how == "data" else self.codes
            with torch.no_grad():
                codes.lerp_(x.T @ x, 0.01)
        return x @ self.codes


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


class Embedded(nn.Module):
    """A frozen table of which members look up their own rows."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(64, WIDTH, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.table((x * 9).long().abs() % 64).mean(1)  # type: ignore[no-any-return]


class Attending(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x.view(4, 6, WIDTH))
        rows: Tensor = found[0] if isinstance(found, tuple) else found
        return rows.reshape(24, WIDTH)


class Imaging(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.view(24, 2, 4, 4)).flatten(1)[:, :WIDTH]  # type: ignore[no-any-return]


KINDS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "bilinear form": lambda: Codes("data", late=True).eval(),
    "embedding": Embedded,
    "embedding with padding": lambda: Embedded(padding_idx=3),
    "convolution": lambda: Imaging(nn.Conv2d(2, 64, 3, padding=1)),
    "transposed convolution": lambda: Imaging(nn.ConvTranspose2d(2, 64, 3)),
    "pointwise convolutions": lambda: Imaging(nn.Conv2d(2, 64, 3), nn.Conv2d(64, 64, 1)),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "lstm": lambda: Attending(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    "transformer": lambda: Attending(nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True)),
}


@pytest.mark.each("kind")
@pytest.mark.parametrize("after", [False, True], ids=["first", "after what is trained"])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_frozen_layers(kind: str, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfta_nb.engine.array.held_once.LEAST_BYTES", 0)
    torch.manual_seed(100)
    frozen = KINDS[kind]().double().requires_grad_(False)
    modules = []
    for i in range(3):
        torch.manual_seed(i)
        first = nn.Linear(WIDTH, WIDTH) if after else nn.Identity()
        own = copy.deepcopy(frozen) if kind == "batch norm" else frozen
        modules.append(nn.Sequential(first, own, nn.Linear(WIDTH, 3)).double())
    array, alone = hfta.fuse(modules, SEEDS), Alone(modules)
    assert held(array)
    backward(array, adam(array), 5)
    alone.train(5).equals(array)
    given = X.repeat(3, 1, 1).requires_grad_()
    found = array.eval()(hfta.per_member(given))
    found.square().sum().backward()
    for i, module in enumerate(alone.modules):
        x = X.clone().requires_grad_()
        expected = module.eval()(x)
        expected.square().sum().backward()
        torch.testing.assert_close(found[i], expected, atol=1e-10, rtol=0)
        torch.testing.assert_close(array(X)[i], expected, atol=1e-10, rtol=0)
        if x.grad is not None and given.grad is not None:
            torch.testing.assert_close(given.grad[i], x.grad, atol=1e-10, rtol=0)
    assert held(array)


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The shapes of the matrix products that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            self.found.append(tuple(args[-2].shape))
        return func(*args, **(kwargs or {}))


def test_a_frozen_layer_is_one_product_and_a_frozen_prefix_is_computed_once() -> None:
    array = hfta.fuse(members(), SEEDS, verify="never")
    array.capture = False
    with Products() as products:
        array.backward(F.cross_entropy, X, Y)
    assert products.found.count((24, WIDTH)) == 2  # the first layer and that in the adapter, of one input for all
    assert products.found.count((3 * 24, WIDTH)) == 2  # forward and backward of the layer after the adapters
    frozen = [shape for shape in products.found if len(shape) == 3 and shape[1:] == (WIDTH, WIDTH)]
    assert frozen == []


def test_memory_is_that_of_one_base() -> None:
    torch.manual_seed(0)
    base = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)]).requires_grad_(False)
    size = sum(p.nbytes for p in base.parameters())
    modules = [nn.Sequential(base, nn.Linear(256, 4)) for _ in range(8)]
    meter = Meter(torch.device("cpu"))
    with meter:
        array = hfta.fuse(modules, range(8), verify="never")
    assert meter.peak_bytes < 1.2 * size
    meter = Meter(torch.device("cpu"))
    x, y = torch.randn(16, 256), torch.arange(16) % 4
    optimizer = hfta.optim.Adam(array, lr=1e-3)
    with meter:
        for _ in range(6):
            optimizer.zero_grad()
            array.backward(F.cross_entropy, x, y)
            optimizer.step()
    assert meter.peak_bytes < 1.7 * size


def test_explain_tells_of_it() -> None:
    rows = hfta.fuse(members(), SEEDS).explain()
    assert "6 of 10 parameters are frozen and equal, and held once: 0.0242 MiB" in set(rows["how"])
