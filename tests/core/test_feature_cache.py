"""Outputs of frozen submodules that are computed once per sample: results are those without, and of a plain loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hfta_nb as hfta
from hfta_nb.engine.array.access import Prefix, find_prefix
from hfta_nb.errors import StudyError
from hfta_nb.records.events import EpochDone
from hfta_nb.train import features
from tests.core.saved_models import bert, tokens

WIDTH = 64
Build = Callable[[], nn.Module]


def frozen(*layers: nn.Module, seed: int = 0) -> nn.Sequential:
    """Layers with the same frozen weights in each call."""
    made = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), *layers)
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn(p.shape, generator=drawn) / 8)
    return made.requires_grad_(False)


class Evaluated(nn.Module):
    """A trunk that stays in eval mode, as its dropout and batch norm would otherwise be its member's."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(WIDTH, 3)

    def train(self, mode: bool = True) -> Evaluated:
        super().train(mode)
        self.trunk.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))  # type: ignore[no-any-return]


class Tapped(nn.Module):
    """A head on two layers of a trunk, one of which gives a tuple, and a layer that writes into its input."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
            nn.init.eye_(self.layer.weight)
            nn.init.zeros_(self.layer.bias)

        def forward(self, x: Tensor) -> tuple[Tensor, None, dict[str, Tensor]]:
            return self.layer(x), None, {"twice": 2 * x}

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pair, self.relu, self.head = frozen(), self.Pair(), nn.ReLU(inplace=True), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out, _, more = self.pair(h)
        return self.head(self.relu(out) + more["twice"] * h)  # type: ignore[no-any-return]


class Item(nn.Module):
    """What `vmap` can't run, around a frozen part and a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = frozen(), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.trunk(x))
        return out if float(out.detach().sum()) > -1e9 else 2 * out


def hooked(made: nn.Sequential) -> nn.Module:
    made[0].register_forward_hook(lambda m, given, out: 2 * out)
    return made


BUILDS: dict[str, Build] = {
    "a head": lambda: nn.Sequential(frozen(), nn.Dropout(0.2), nn.Linear(WIDTH, 3)),
    "eval mode": lambda: Evaluated(frozen(nn.BatchNorm1d(WIDTH), nn.Dropout(0.3))),
    "some layers": lambda: nn.Sequential(*frozen(nn.ReLU(inplace=True)), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)),
    "several outputs": Tapped,
    "a hook": lambda: hooked(nn.Sequential(frozen(), nn.Linear(WIDTH, 3))),
    "one by one": lambda: nn.Sequential(Item(), nn.Linear(3, 3)),
}
"""Models with a frozen prefix, by what is particular about them."""


class Mixing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = frozen(), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda v: self.head(self.trunk(v)), x, use_reentrant=False)  # type: ignore[no-any-return]


def random() -> nn.Module:
    return nn.Sequential(nn.Linear(4, WIDTH), nn.Linear(WIDTH, WIDTH)).requires_grad_(False)


NONE: dict[str, tuple[Build, str]] = {
    "dropout": (lambda: nn.Sequential(frozen(nn.Dropout(0.2)), nn.Linear(WIDTH, 3)), ""),
    "dropout first": (
        lambda: nn.Sequential(nn.Dropout(0.2), frozen(), nn.Linear(WIDTH, 3)),
        "`0` draws random numbers",
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.BatchNorm1d(4), frozen(), nn.Linear(WIDTH, 3)),
        "changes a parameter or buf",
    ),
    "trained": (lambda: nn.Sequential(nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3)), "too little of the model"),
    "mixed": (lambda: nn.Sequential(frozen(Mixing()), nn.Linear(WIDTH, 3)), "mix samples"),
    "unlike": (lambda: nn.Sequential(random(), nn.Linear(WIDTH, 3)), "differ between members"),
    "checkpoint": (Checkpointed, "runs within torch.utils.checkpoint"),
}
"""Models without a prefix to keep, and why."""


def make(build: Build, place: Path, *, grid: Any = None, **more: Any) -> hfta.Study:
    @hfta.family
    def member() -> nn.Module:
        return build()

    settings = {"epochs": 3, "dtype": "float64", "device": "cpu", "batch_size": 16, **more}
    return hfta.Study(
        member, grid or {"lr": [1e-3, 1e-2, 1e-1]}, settings.pop("data", "iris"), directory=place, **settings
    )


def weights(study: hfta.Study, **how: bool) -> list[dict[str, Tensor]]:
    list(study.run(**how))
    return [study.store.read_weights(i) for i in range(3)]


def assert_equal(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            torch.testing.assert_close(value, theirs[name], atol=1e-11, rtol=1e-11)


@pytest.fixture
def uses(monkeypatch: pytest.MonkeyPatch) -> list[Prefix]:
    """The prefixes whose outputs forwards have taken from their inputs."""
    found, forwards = [], Prefix.forwards

    def watched(self: Prefix, given: Any) -> Any:
        found.append(self)
        return forwards(self, given)

    monkeypatch.setattr(Prefix, "forwards", watched)
    return found


def rows(names: Iterable[str], first: str) -> list[Any]:
    """All names, of which one is tested in the default tier."""
    return [name if name == first else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.mark.parametrize("name", rows(BUILDS, "several outputs"))
def test_results_are_those_of_a_plain_loop(name: str, tmp_path: Path, uses: list[Prefix]) -> None:
    study = make(BUILDS[name], tmp_path / "kept")
    assert study.plan()["features"][0].startswith("outputs of `")
    assert not uses
    found = weights(study)
    assert uses
    assert "computed once" in study.plan_groups[0].record().strategy
    assert_equal(found, weights(make(BUILDS[name], tmp_path / "never", cache_features="never")))
    assert bool(study.check(members=[0, 2])["equal"].all())


@pytest.mark.parametrize("name", rows(NONE, "unlike"))
def test_where_nothing_is_kept_the_plan_says_why(name: str, tmp_path: Path, uses: list[Prefix]) -> None:
    build, why = NONE[name]
    study = make(build, tmp_path, grid={"seed": [0, 1, 2]})
    said = study.plan()["features"][0]
    if name == "dropout":  # what comes before it is kept
        assert said.startswith("outputs of `0.2`")
        return
    assert said.startswith("none: ")
    assert why in said
    list(study.run())
    assert not uses


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    yield torch.randn(12, 4), torch.arange(12) % 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"cache_features": "never"}, "never"),
        ({"serial": True}, "without fusing"),
        ({"data": (batches, batches), "batch_size": None}, "batch by batch"),
        ({"grid": {"weaken": [0.1, 0.2, 0.3]}, "data": "iris"}, "inputs are mixed"),
    ],
)
def test_what_else_keeps_features_from_being_kept(more: dict[str, Any], why: str, tmp_path: Path) -> None:
    assert why in make(BUILDS["a head"], tmp_path, **more).plan()["features"][0]


@pytest.mark.long
def test_augmented_samples_have_no_features(tmp_path: Path) -> None:
    images = torch.randint(0, 255, (30, 1, 2, 2), dtype=torch.uint8)
    data = hfta.data.from_tensors(images, torch.arange(30) % 3)
    build = lambda: nn.Sequential(nn.Flatten(), *BUILDS["a head"]())  # noqa: E731
    more = {"data": data, "grid": {"horizontal_flip": [0.5, 0.2]}}
    assert "augmented" in make(build, tmp_path / "a", **more).plan()["features"][0]
    assert "outputs of" in make(build, tmp_path / "b", data=data).plan()["features"][0]


@pytest.mark.long
@pytest.mark.parametrize("place", ["disk", "nowhere"])
def test_what_does_not_fit_in_memory_is_in_a_file(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses: list[Prefix]
) -> None:
    monkeypatch.setattr(features, "SHARE", 0.0)
    if place == "nowhere":
        monkeypatch.setattr(features, "DISK_SHARE", 0.0)
    study = make(BUILDS["a head"], tmp_path / "kept")
    if place == "nowhere":
        assert "there is no room" in study.plan()["features"][0]
    found = weights(study)
    assert bool(uses) == (place == "disk")
    assert_equal(found, weights(make(BUILDS["a head"], tmp_path / "never", cache_features="never")))


@pytest.mark.long
@pytest.mark.parametrize("grid", [{"data_seed": [0, 1, 2]}, {"batch_size": [16, 32, 8]}, {"lr": [1e-2, 1e9, 1e-3]}])
def test_members_with_data_of_their_own_and_members_that_leave(grid: Any, tmp_path: Path, uses: list[Prefix]) -> None:
    studies = [make(BUILDS["a head"], tmp_path / how, grid=grid, cache_features=how) for how in ("auto", "never")]
    found = [weights(study) for study in studies]
    assert uses
    assert_equal(*found)


@pytest.mark.long
def test_arrays_of_one_base_share_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed, compute = [], features.FeatureCache._computed

    def counted(*given: Any) -> Any:
        computed.append(given)
        return compute(*given)

    monkeypatch.setattr(features.FeatureCache, "_computed", counted)
    study = make(BUILDS["a head"], tmp_path, grid={"optimizer": ["adam", "sgd"], "lr": [1e-3, 1e-2]})
    list(study.run())
    assert len(study.plan_groups) == 2
    assert len(computed) == 1


def test_a_resumed_study_computes_features_again(tmp_path: Path, uses: list[Prefix]) -> None:
    whole, parts = (make(BUILDS["some layers"], tmp_path / name, epochs=4) for name in ("whole", "parts"))
    expected = weights(whole)
    for event in parts.run():
        if isinstance(event, EpochDone):
            break
    uses.clear()
    assert_equal(weights(parts, resume=True), expected)
    assert uses


class Late(nn.Module):
    """A trunk that writes into its parameters some calls after the first."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.trunk, self.head = 0, frozen(), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        if self.calls > 12:
            self.trunk[0].weight.data.mul_(1.01)
        return self.head(self.trunk(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("members", [1, 3])
def test_a_trunk_that_changes_is_an_error(members: int, tmp_path: Path) -> None:
    grid = {"lr": [1e-3, 1e-2, 1e-1][:members]}
    with pytest.raises(StudyError, match="a frozen submodule has changed"):
        list(make(Late, tmp_path, grid=grid).run())


@pytest.mark.long
def test_a_saved_model(tmp_path: Path, uses: list[Prefix]) -> None:
    pytest.importorskip("transformers")
    base = bert(tmp_path / "base", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, hidden_size=16)
    name = f"transformers.AutoModelForSequenceClassification:{base}"
    grid = {"lr": [1e-3, 1e-2], "train": [["classifier.*", "bert.pooler.*", "bert.encoder.layer.1.*"]]}
    more: dict[str, Any] = {"epochs": 2, "dtype": "float64", "device": "cpu", "batch_size": 8}
    study = hfta.Study(name, grid, tokens(), directory=tmp_path / "run", **more)
    assert study.plan()["features"][0].startswith("outputs of `bert.encoder.layer.0`")
    list(study.run())
    assert uses
    assert set(uses[0].kept) == {"bert.encoder.layer.0"}
    assert set(uses[0].skipped) == {"bert.embeddings"}
    assert bool(study.check(members=[0, 1])["equal"].all())


# How the prefix is found.


def found(module: nn.Module, *given: Tensor) -> Prefix | str:
    return find_prefix(module, lambda m, x: m(*x), given, len(given[0]))


def test_two_encoders_under_a_head() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image, self.text, self.head = frozen(), frozen(seed=1), nn.Linear(WIDTH, 3)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.head(self.image(a) * self.text(b))  # type: ignore[no-any-return]

    prefix = found(Two(), torch.randn(3, 4), torch.randn(3, 4))
    assert isinstance(prefix, Prefix)
    assert set(prefix.kept) == {"image", "text"}
    assert not prefix.skipped


def test_values_that_code_reads_are_kept() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = frozen(), nn.Linear(WIDTH, WIDTH).requires_grad_(False), nn.Linear(WIDTH, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.one(x)
            out: Tensor = self.head(self.two(h))
            return out if bool(h.sum() > 0) else -out

    prefix = found(Reads(), torch.randn(3, 4))
    assert isinstance(prefix, Prefix)
    assert set(prefix.kept) == {"one", "two"}


def layers(width: int) -> Iterator[nn.Module]:
    shared = nn.Linear(width, width).requires_grad_(False)
    yield from (nn.Linear(4, width).requires_grad_(False), shared, nn.Tanh(), shared, nn.Linear(width, 3))


def test_a_layer_that_runs_twice_is_computed_in_each_step() -> None:
    prefix = found(nn.Sequential(*layers(WIDTH)), torch.randn(3, 4))
    assert isinstance(prefix, str)
    wider = nn.Sequential(copy.deepcopy(frozen()), *[*layers(WIDTH)][1:])
    prefix = found(wider, torch.randn(3, 4))
    assert isinstance(prefix, Prefix)
    assert set(prefix.kept) == {"2"}
    assert set(prefix.skipped) == {"0"}


def test_a_layer_that_writes_into_its_input_runs_in_each_step() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.mul_(2))  # type: ignore[no-any-return]

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.writes, self.head = frozen(), Writes(), nn.Linear(WIDTH, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            return self.head(self.writes(h) + h)  # type: ignore[no-any-return]

    prefix = found(Reads(), torch.randn(3, 4))
    assert isinstance(prefix, Prefix)
    assert set(prefix.kept) == {"first", "writes.layer"}
    assert "first" in prefix.written
