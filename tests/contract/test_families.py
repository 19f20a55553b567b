"""Every built-in family: fused equals serial over 20 optimizer steps with dropout; and a study of it runs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hfta_nb as hfta
from hfta_nb.engine.eager.gradients import call_module
from hfta_nb.engine.members.tree import tensor_map
from hfta_nb.models.losses import IGNORED
from hfta_nb.models.model_zoo import BUILT_IN
from hfta_nb.records.events import COMPLETE
from hfta_nb.train.step import ArrayStep
from tests.contract.serial import largest

SEEDS = [101, 102]
RATES = [3e-3, 1e-3]
SAMPLES, CLASSES, WORDS, LENGTH, POINTS = 6, 3, 7, 5, 8


@dataclass(frozen=True)
class FamilyRow:
    """A family under contract.

    Attributes:
        axes: of a tiny member, dropout among them where there is any.
        task: of the data that `x` and `y` make.
        swept: an axis of the architecture with two values, for the study.
        noise: parameters whose exact gradient is zero (what follows takes them out again: a norm, or the softmax of an
            attention's keys), compared through outputs only.
    """

    name: str
    axes: dict[str, Any]
    task: str
    x: Callable[[], Any]
    y: Callable[[], Tensor]
    swept: dict[str, list[Any]]
    noise: tuple[str, ...] = ()
    facts: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        extra = "-transform" if self.axes.get("feature_transform") else ""
        return f"{self.name}{extra}"


def _images() -> Tensor:
    return torch.randn(SAMPLES, 2, 8, 8, dtype=torch.float64)


def _larger() -> Tensor:
    return torch.randn(SAMPLES, 2, 16, 16, dtype=torch.float64)


def _pictures() -> Tensor:
    return torch.rand(SAMPLES, 2, 16, 16, dtype=torch.float64) * 2 - 1


def _vectors() -> Tensor:
    return torch.randn(SAMPLES, 4, dtype=torch.float64)


def _clouds() -> Tensor:
    return torch.randn(SAMPLES, POINTS, 6, dtype=torch.float64)


def _tokens() -> Tensor:
    return torch.randint(0, WORDS, (SAMPLES, LENGTH))


def _masked() -> Tensor:
    words = _tokens()
    words[:, 1:] = IGNORED
    words[0] = IGNORED
    return words


def _impressions() -> tuple[Tensor, Tensor]:
    return torch.randn(SAMPLES, 3, dtype=torch.float64), torch.randint(0, 4, (SAMPLES, 2))


def _numbers(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, CLASSES, (SAMPLES, *shape))


IMAGE = {"in_channels": 2, "num_classes": CLASSES}
TOKENS = {"vocab_size": WORDS, "context": LENGTH}
CLOUD = {"in_channels": 6, "num_classes": CLASSES}


def _image(name: str, axes: dict[str, Any], swept: dict[str, list[Any]], noise: tuple[str, ...] = ()) -> FamilyRow:
    facts = {**IMAGE, "image_size": 8} if name == "vit" else IMAGE
    return FamilyRow(name, axes, "classification", _images, _numbers(), swept, noise, facts)


def _language(name: str, axes: dict[str, Any], noise: tuple[str, ...] = ()) -> FamilyRow:
    facts = {"vocab_size": WORDS} if name.endswith("m_lm") or name == "gru_lm" else TOKENS
    facts = TOKENS if name == "transformer_lm" else facts
    swept = {"width": [8, 16]}
    return FamilyRow(name, axes, "language_model", _tokens, _tokens, swept, noise, facts)


def _cloud(name: str, transform: bool) -> FamilyRow:
    axes: dict[str, Any] = {"width": 2, "feature_transform": transform}
    parts = name == "pointnet_seg"
    task, shape = ("segmentation", (POINTS,)) if parts else ("classification", ())
    return FamilyRow(name, axes, task, _clouds, _numbers(*shape), {"width": [2, 3]}, (), CLOUD)


_KEYS = "attention.in_proj_bias"
ROWS = [
    _image("cnn", {"width": 2, "depth": 2, "dropout": 0.3}, {"width": [2, 3]}),
    FamilyRow(
        "mlp",
        {"width": 5, "dropout": 0.3},
        "classification",
        _vectors,
        _numbers(),
        {"width": [4, 5]},
        (),
        {"in_features": 4, "out_features": CLASSES},
    ),
    _image("resnet18", {"width": 2}, {"width": [2, 3]}),
    _image("resnet34", {"width": 2}, {"width": [2, 3]}),
    # Of smaller images the last stage sees one pixel: batch norm over six numbers, fifty layers deep, makes a lot of
    # the last bits (a serial run whose weights are changed in them ends further away than the array).
    FamilyRow("resnet50", {"width": 4}, "classification", _larger, _numbers(), {"width": [2, 4]}, (), IMAGE),
    _image("mobilenet_v2", {"width_multiplier": 0.1}, {"dropout": [0.1, 0.3]}),
    _image("mobilenet_v3_large", {"width_multiplier": 0.1}, {"dropout": [0.1, 0.3]}),
    _image("mobilenet_v3_small", {"width_multiplier": 0.1}, {"dropout": [0.1, 0.3]}),
    _image(
        "vit",
        {"patch_size": 4, "width": 8, "depth": 2, "heads": 2, "dropout": 0.2},
        {"depth": [1, 2]},
        (f"blocks.0.{_KEYS}", f"blocks.1.{_KEYS}"),
    ),
    FamilyRow("unet", {"width": 2, "depth": 1}, "segmentation", _images, _numbers(8, 8), {"depth": [1, 2]}, (), IMAGE),
    _cloud("pointnet_cls", transform=False),
    _cloud("pointnet_cls", transform=True),
    _cloud("pointnet_seg", transform=False),
    _cloud("pointnet_seg", transform=True),
    _language(
        "transformer_lm",
        {"width": 8, "depth": 2, "heads": 2, "dropout": 0.2},
        ("encoder.layers.0.self_attn.in_proj_bias", "encoder.layers.1.self_attn.in_proj_bias"),
    ),
    _language(
        "gpt",
        {"width": 8, "depth": 2, "heads": 2, "dropout": 0.2},
        ("blocks.0.attention.qkv.bias", "blocks.1.attention.qkv.bias"),
    ),
    FamilyRow(
        "bert",
        {"size": "own", "width": 8, "depth": 2, "heads": 2, "dropout": 0.2},
        "masked_language_model",
        _tokens,
        _masked,
        {"depth": [1, 2]},
        ("encoder.layers.0.self_attn.in_proj_bias", "encoder.layers.1.self_attn.in_proj_bias"),
        TOKENS,
    ),
    _language("lstm_lm", {"width": 4, "depth": 2, "dropout": 0.2}),
    _language("gru_lm", {"width": 4, "depth": 2, "dropout": 0.2, "tied": True}),
    FamilyRow(
        "dlrm",
        {"width": 2, "bottom_width": 4, "top_width": 4},
        "click",
        _impressions,
        lambda: torch.arange(SAMPLES) % 2,
        {"width": [2, 3]},
        (),
        {"dense_features": 3, "categorical_features": 2, "categories": 4},
    ),
    FamilyRow(
        "dcgan",
        {"latent": 3, "generator_width": 2, "discriminator_width": 2},
        "generation",
        _pictures,
        lambda: torch.zeros(SAMPLES, dtype=torch.long),
        {"discriminator_width": [2, 3]},
        (),
        {"in_channels": 2, "image_size": 16},
    ),
]

rows = pytest.mark.parametrize("row", ROWS, ids=str)


def test_every_family_has_a_row() -> None:
    assert {row.name for row in ROWS} == {f.name for f in BUILT_IN}


def _data(row: FamilyRow) -> hfta.Data:
    torch.manual_seed(0)
    x, y = row.x(), row.y()
    return hfta.Data("tiny", row.task, x, y, x, y, row.facts)


def _members(row: FamilyRow, data: hfta.Data, device: torch.device) -> list[torch.nn.Module]:
    family, modules, axes = hfta.family(row.name), [], row.axes
    if device.type == "cuda" and row.name in ("lstm_lm", "gru_lm"):
        axes = axes | {"dropout": 0.0}  # between recurrent layers it draws from a state of the process
    for seed in SEEDS:
        torch.manual_seed(seed)
        modules.append(family.build(**row.facts, **axes).to(device, torch.float64))
    return modules


@pytest.mark.only(steps=4)
@pytest.mark.parametrize("steps", [4, 20])
@pytest.mark.parametrize("row", [r for r in ROWS if not hfta.family(r.name).phases], ids=str)
def test_steps(row: FamilyRow, steps: int, device: torch.device) -> None:
    if device.type == "cuda" and steps == 20 and row.name == "mobilenet_v2":
        pytest.skip("cuDNN adds in any order, of which 20 steps make a tenth of the weights, in plain modules too")
    near = 1e-9 if device.type == "cpu" else 1e-4 if steps == 4 else 1e-3  # of atomic additions Adam makes much
    data = _data(row).to(device, torch.float64)
    loss = hfta.family(row.name).loss_for(data)
    modules = _members(row, data, device)
    array = hfta.fuse(copy.deepcopy(modules), SEEDS)
    optimizer = hfta.optim.Adam(array, lr=RATES)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(array.backward(loss, data.x, data.y))
        optimizer.step()
    for i, module in enumerate(modules):
        torch.manual_seed(SEEDS[i])
        alone = torch.optim.Adam(module.parameters(), lr=RATES[i])
        for step in range(steps):
            alone.zero_grad()
            value = loss(call_module(module, data.x), data.y)
            value.backward()
            alone.step()
            assert losses[step][i].item() == pytest.approx(value.item(), abs=near), step
    assert largest(array, modules, row.noise) <= near
    array.eval()
    with torch.no_grad():
        together = array(*data.x) if isinstance(data.x, tuple) else array(data.x)
        for i, module in enumerate(modules):
            own = call_module(module.eval(), data.x)
            within = max(near, 1e-8)
            torch.testing.assert_close(tensor_map(lambda t, i=i: t[i], together), own, atol=within, rtol=within)


@pytest.mark.parametrize("row", [r for r in ROWS if hfta.family(r.name).phases], ids=str)
def test_steps_of_several_networks(row: FamilyRow, device: torch.device) -> None:
    data, family = _data(row).to(device, torch.float64), hfta.family(row.name)
    modules = _members(row, data, device)
    array = hfta.fuse(copy.deepcopy(modules), SEEDS)
    axes = [{k: spec.default for k, spec in family.training.items()} | {"lr": lr} for lr in RATES]
    step = ArrayStep(array, axes, family.objective_for(data), {}, epochs=1)
    told = [step.train(data.x, data.y) for _ in range(20)]
    trained = {k: v.clone() for k, v in step.weights().items()}
    found = step.evaluate(data.x, data.y)
    assert all(torch.equal(v, trained[k]) for k, v in step.weights().items())
    for i, module in enumerate(modules):
        torch.manual_seed(SEEDS[i])
        betas = (family.defaults["beta1"], 0.999)
        alone = {
            p.name: torch.optim.Adam(module.get_submodule(p.name).parameters(), RATES[i], betas) for p in family.phases
        }
        for scores in told:
            for phase in family.phases:
                alone[phase.name].zero_grad()
                value = phase.loss(module(data.x, phase=phase.name), data.y)
                value.backward()
                alone[phase.name].step()
                assert scores[phase.score][i].item() == pytest.approx(value.item(), abs=1e-9)
        module.eval()
        with torch.no_grad():
            for phase in family.phases:
                own = phase.loss(module(data.x, phase=phase.name), data.y)
                assert found[phase.score][i].item() == pytest.approx(own.item(), abs=1e-9)
    assert largest(array, modules, row.noise) <= 1e-9


@pytest.mark.each
@rows
def test_a_study_runs(row: FamilyRow, tmp_path: Path) -> None:
    axes = {k: v for k, v in row.axes.items() if k not in row.swept}
    grid = {"batch_size": [4, 3], **row.swept}
    study = hfta.Study(row.name, grid, _data(row), epochs=1, directory=tmp_path / "run", **axes)
    assert len(study.plan_groups) >= 2  # what batches differ in never fuses
    list(study.run())
    found = study.results()
    assert list(found["state"]) == [COMPLETE] * 4
    assert found[list(study.metrics)].notna().all(axis=None)
