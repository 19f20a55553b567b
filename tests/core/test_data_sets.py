"""Data sets without download: their content, reproducibility, and separation of splits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import hfta_nb as hfta
from hfta_nb import data
from hfta_nb.data import english, shapes, surfaces
from hfta_nb.models.losses import IGNORED
from hfta_nb.models.model_zoo import BUILT_IN

SETS: list[tuple[str, str, list[tuple[int, ...]], tuple[int, ...], dict[str, int]]] = [
    ("wine", "classification", [(13,)], (), {"num_classes": 3}),
    ("iris", "classification", [(4,)], (), {"num_classes": 3}),
    ("photographs", "segmentation", [(1, 32, 32)], (32, 32), {"in_channels": 1, "num_classes": 4}),
    ("photograph_patches", "generation", [(3, 32, 32)], (), {"in_channels": 3, "image_size": 32}),
    ("digit_images", "generation", [(1, 16, 16)], (), {"in_channels": 1, "image_size": 16}),
    ("shapes", "classification", [(256, 6)], (), {"in_channels": 6, "num_classes": 8}),
    ("shape_parts", "segmentation", [(256, 6)], (256,), {"in_channels": 6, "num_classes": 10}),
    ("english", "language_model", [(64,)], (64,), {"vocab_size": 256, "context": 64}),
    ("english_words", "language_model", [(32,)], (32,), {"vocab_size": 2048, "context": 32}),
    ("english_masked", "masked_language_model", [(64,)], (64,), {"vocab_size": 257, "context": 64}),
    ("english_words_masked", "masked_language_model", [(32,)], (32,), {"vocab_size": 2049, "context": 32}),
    ("clicks", "click", [(13,), (26,)], (), {"dense_features": 13, "categorical_features": 26, "categories": 100}),
]


@pytest.mark.parametrize(("name", "task", "x", "y", "facts"), SETS)
def test_sets(name: str, task: str, x: list[tuple[int, ...]], y: tuple[int, ...], facts: dict[str, int]) -> None:
    d = data.load(name)
    assert d.task == data.task_of(name) == task
    for part in (d.x, d.x_validation):
        assert [tuple(t.shape[1:]) for t in data.leaves(part)] == x
        assert all(torch.isfinite(t).all() for t in data.leaves(part))
    assert tuple(d.y.shape[1:]) == tuple(d.y_validation.shape[1:]) == y
    assert facts.items() <= d.facts.items()
    again = data.load.__wrapped__(name)
    for one, other in zip(data.leaves(d.x), data.leaves(again.x), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(d.y_validation, again.y_validation)
    classes = facts.get("num_classes", facts.get("vocab_size"))
    if classes is not None:
        assert int(d.y.max()) < classes
        if "num_classes" in facts:
            assert d.y.unique().tolist() == d.y_validation.unique().tolist() == list(range(classes))


@pytest.mark.parametrize("name", ["digits", "breast_cancer", "wine", "iris", "diabetes"])
def test_tables_are_what_scikit_learn_reads_and_splits(name: str) -> None:
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    bunch = getattr(datasets, f"load_{name}")()
    shares = None if name == "diabetes" else bunch.target
    kept, held, y, yv = train_test_split(bunch.data, bunch.target, test_size=0.2, random_state=0, stratify=shares)
    d = data.load(name)
    mean, deviation = (0, 16) if name == "digits" else (kept.mean(0), kept.std(0, ddof=1))
    for found, known in ((d.x, kept), (d.x_validation, held)):
        torch.testing.assert_close(found.flatten(1), torch.as_tensor((known - mean) / deviation).float())
    if shares is not None:
        assert d.y.tolist() == y.tolist()
        assert d.y_validation.tolist() == yv.tolist()


@pytest.mark.parametrize("name", [f.name for f in BUILT_IN])
def test_every_family_can_be_built_for_its_data(name: str) -> None:
    family = hfta.family(name)
    for known in family.data:
        arguments = family.arguments({}, data.load(known))
        with torch.device("meta"):
            module = family.build(**arguments)
        assert sum(p.numel() for p in module.parameters()) > 0


@pytest.mark.parametrize("name", ["photograph_patches", "digit_images"])
def test_images_to_generate_fill_their_range(name: str) -> None:
    d = data.load(name)
    for part in (d.x, d.x_validation):
        assert -1 <= part.min() < -0.9
        assert 0.9 < part.max() <= 1
    assert not d.y.any()
    assert not d.y_validation.any()


@pytest.mark.long
def test_no_validation_patch_shows_what_a_training_patch_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    import sklearn.datasets

    def where(name: str) -> np.ndarray[Any, Any]:
        """A picture whose colours say where a pixel is."""
        y, x = np.mgrid[:427, :640]
        more = (name == "flower.jpg") * 64 + y // 256 * 8 + x // 256
        return np.stack([y % 256, x % 256, more], -1).astype(np.uint8)

    monkeypatch.setattr(sklearn.datasets, "load_sample_image", where)
    d = data.load.__wrapped__("photograph_patches")

    def places(part: torch.Tensor) -> set[tuple[int, ...]]:
        return set(map(tuple, ((part + 1) * 127.5).round().long().movedim(1, -1).reshape(-1, 3).tolist()))

    training, held = places(d.x), places(d.x_validation)
    assert len(training) + len(held) == 2 * 60 * (32 + 5 * 6) ** 2  # of each tile all but the last two rows and columns
    assert not training & held


def test_text_is_split_by_topic() -> None:
    from pydoc_data.topics import topics

    training, validation = english.topics()
    assert 0.1 < len(validation) / (len(training) + len(validation)) <= 0.15
    for name, text in topics.items():
        assert (text in training) != (text in validation) or len(text) < 500, name


def test_next_tokens_and_masks() -> None:
    d = data.load("english")
    assert torch.equal(d.x[:, 1:], d.y[:, :-1])
    text = bytes(d.x.flatten().tolist()).decode("utf-8", errors="ignore")
    assert english.topics()[0].startswith(text[:1000])
    m = data.load("english_masked")
    hidden = m.y != IGNORED
    assert english.IGNORED == IGNORED
    assert hidden.float().mean().item() == pytest.approx(0.15, abs=0.005)
    assert (m.x[hidden] == 256).float().mean().item() == pytest.approx(0.8, abs=0.01)
    assert torch.equal(m.x[~hidden], torch.where(hidden, m.y, m.x)[~hidden])
    assert not (m.x[~hidden] == 256).any()
    copies = m.x.view(english.MASKINGS, -1, 64)
    restored = torch.where(hidden, m.y, m.x).view_as(copies)
    assert torch.equal(restored[0], restored[1])
    assert not torch.equal(copies[0], copies[1])


PATCHES: list[tuple[str, Callable[[], Any], float]] = [
    ("disk", lambda: surfaces.disk(2.0, 1.0), math.pi * 4),
    ("tube", lambda: surfaces.tube(1.0, 1.0, 0.0, 3.0), 6 * math.pi),
    ("cone", lambda: surfaces.tube(3.0, 0.0, 0.0, 4.0), 15 * math.pi),
    ("ball", lambda: surfaces.ellipsoid(1.0, 1.0, 1.0), 4 * math.pi),
    ("torus", lambda: surfaces.torus(2.0, 0.5), 4 * math.pi**2),
    ("triangle", lambda: surfaces.flat((0, 0, 0), (2, 0, 0), (0, 3, 0), triangle=True), 3.0),
]


@pytest.mark.parametrize(("name", "make", "area"), PATCHES)
def test_surfaces(name: str, make: Callable[[], surfaces.Patch], area: float) -> None:
    patch = make()
    assert patch.area == pytest.approx(area)
    points, normals = patch.sample(4000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(normals.norm(dim=1), torch.ones(4000, dtype=torch.float64))
    x, y, z = points.T
    equation = {
        "disk": z - 1,
        "tube": x**2 + y**2 - 1,
        "cone": (x**2 + y**2).sqrt() - 3 * (1 - z / 4),
        "ball": x**2 + y**2 + z**2 - 1,
        "torus": ((x**2 + y**2).sqrt() - 2) ** 2 + z**2 - 0.25,
        "triangle": z,
    }[name]
    assert equation.abs().max() < 1e-9
    # Even: half of the area is where it should be.
    halves = {
        "disk": x**2 + y**2 < 2,
        "tube": z < 1.5,
        "cone": z < 4 * (1 - math.sqrt(0.5)),
        "ball": z < 0,
        "torus": z < 0,
        "triangle": x / 2 + y / 3 < math.sqrt(0.5),
    }[name]
    assert halves.double().mean().item() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("name", ["sphere", "ellipsoid", "cube", "cylinder", "cone", "pyramid"])
def test_normals_point_out_of_convex_shapes(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    points, normals, _ = surfaces.sampled(shapes.SHAPES[name](lambda low, high: low), 500, generator)
    inside = points.mean(0)
    assert (((points - inside) * normals).sum(1) > 0).all()


def test_parts_are_where_they_belong() -> None:
    d = data.load("shape_parts")
    tops, legs = (d.y == shapes.PARTS.index(n) for n in ("table top", "table leg"))
    tables = tops.any(1)
    assert int(tables.sum()) == shapes.TRAINING
    height = d.x[tables][..., 2]
    assert height[tops[tables]].min() > height[legs[tables]].mean()
    noses, fins = (d.y == shapes.PARTS.index(n) for n in ("rocket nose", "rocket fin"))
    rockets = noses.any(1)
    assert d.x[rockets][..., 2][noses[rockets]].min() > d.x[rockets][..., 2][fins[rockets]].max()


def test_clicks_follow_from_the_features() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    d = data.load("clicks")
    dense, held = d.x[0].numpy(), d.x_validation[0].numpy()
    found = LogisticRegression().fit(dense, d.y.numpy()).decision_function(held)
    assert 0.6 < roc_auc_score(d.y_validation.numpy(), found) < 0.9  # the numbers alone do not say all


def test_words_can_be_read_again(tmp_path: Any) -> None:
    d, masked = data.load("english_words"), data.load("english_words_masked")
    text = " ".join(d.words[i] for i in d.x.flatten()[:200])
    split = re.findall(r"\w+|[^\w\s]|\n", english.topics()[0])[:200]
    assert text == " ".join(word if word in d.words else "<unk>" for word in split)
    assert len(masked.words) == masked.facts["vocab_size"]
    hidden = masked.y[0] != IGNORED
    assert {masked.words[i] for i in masked.x[0][~hidden]} <= set(d.words)
    assert data.load("english").words == ()
    own = hfta.Data("poems", "language_model", d.x[:9], d.y[:9], d.x[:3], d.y[:3], d.facts, words=d.words)
    hfta.Study("lstm_lm", {"lr": [1e-3]}, own, directory=tmp_path / "run").save(tmp_path / "run")
    assert hfta.Study.load(tmp_path / "run").data.words == d.words


def test_several_inputs(tmp_path: Any) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(40, 2), torch.randint(0, 3, (40, 1))

    @hfta.family
    def two(width: int = 4) -> torch.nn.Module:
        return _Two(width)

    @hfta.family(name="named")
    def by_name(width: int = 4) -> torch.nn.Module:
        return _Two(width)

    for family, x in (("two", (a, b)), ("named", {"numbers": a, "classes": b})):
        d = data.resolve((x, a.sum(1)))
        assert len(d) == 32
        study = hfta.Study(family, {"lr": [0.1, 0.01]}, d, epochs=2, data_seed=3, directory=tmp_path / family)
        list(study.run())
        assert study.check([0])["equal"].all()
        again = hfta.Study.load(tmp_path / family)
        assert type(again.data.x) is type(d.x)
        kept, given = again.data.tensors(), d.tensors()
        assert kept.keys() == given.keys()
        assert all(torch.equal(kept[k], given[k]) for k in given)
    swept = hfta.Study("two", {"data_seed": [1, 2]}, ((a, b), a.sum(1)), epochs=1, directory=tmp_path / "swept")
    list(swept.run())
    assert swept.check([1])["equal"].all()


class _Two(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Embedding(3, width), torch.nn.Linear(2 + width, 1)

    def forward(self, numbers: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return self.second(torch.cat([numbers, self.first(classes[:, 0])], 1))


def test_inputs_of_unequal_length() -> None:
    with pytest.raises(hfta.HftaError, match="5 and 4 inputs, 5 targets"):
        data.from_tensors((torch.zeros(5, 1), torch.zeros(4, 1)), torch.zeros(5))
