"""Every built-in family sweeps from the command line and from the Workbench, over an axis that fuses and one that does
not.

Models and data are as small as possible; the contract tests show that members equal training alone.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.cli import main
from hfta_nb.data import Data, catalogue, take
from hfta_nb.models.model_zoo import BUILT_IN
from hfta_nb.ui import Workbench

TRAINING, HELD_OUT = 24, 12
DEADLINE_S = 120.0

_TINY: list[tuple[str, dict[str, Any]]] = [
    ("cnn mlp", {"width": 4, "depth": 1}),
    ("resnet18 resnet34 resnet50", {"width": 4}),
    ("mobilenet_v2 mobilenet_v3_large mobilenet_v3_small", {"width_multiplier": 0.1}),
    ("vit", {"width": 8, "depth": 1, "heads": 2}),
    ("unet", {"width": 4, "depth": 1}),
    ("pointnet_cls pointnet_seg", {"width": 4, "input_transform": False}),
    ("transformer_lm gpt", {"width": 8, "depth": 1, "heads": 2}),
    ("bert", {"size": "own", "width": 8, "depth": 1, "heads": 2}),
    ("lstm_lm gru_lm", {"width": 8}),
    ("dlrm", {"width": 4, "bottom_width": 4, "top_width": 4}),
    ("dcgan", {"latent": 4, "generator_width": 4, "discriminator_width": 4}),
]
TINY = {name: axes for names, axes in _TINY for name in names.split()}
FAMILIES = [family.name for family in BUILT_IN]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few samples of each data set; so few steps that no block sizes are tried."""
    whole = catalogue.load

    def few(name: str) -> Data:
        data = whole(name)
        kept, held = slice(TRAINING), slice(HELD_OUT)
        return dataclasses.replace(
            data,
            x=take(data.x, kept),
            y=take(data.y, kept),
            x_validation=take(data.x_validation, held),
            y_validation=take(data.y_validation, held),
        )

    monkeypatch.setattr(catalogue, "load", few)


def check(study: hfta.Study) -> None:
    """Four members in two arrays, all trained for an epoch, each fused with another."""
    assert [len(g.variants) for g in study.plan_groups] == [2, 2]
    assert "optimizer" in study.plan_groups[1].reason
    members = study.history.members
    assert {m.state for m in members.values()} == {ev.COMPLETE}
    losses = [m.curves["train_loss"].values for m in members.values()]
    assert all(len(values) == 1 for values in losses)
    weights = [study.member(i).module().state_dict() for i in range(4)]
    first = next(iter(weights[0]))
    assert not any(torch.equal(weights[0][first], other[first]) for other in weights[1:])


def test_every_built_in_family_has_a_tiny_form() -> None:
    assert set(TINY) == set(FAMILIES)


def _swept(name: str) -> list[str]:
    fixed = [text for axis, value in TINY[name].items() for text in ("--set", f"{axis}={value}".lower())]
    return ["--family", name, "--grid", "lr=1e-3,1e-2", "--grid", "optimizer=sgd,adam", *fixed, "--batch-size", "12"]


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_a_sweep_is_planned_from_the_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is trained as one from the Workbench is, below."""
    code = main(["plan", *_swept(name), "--epochs", "1"])
    out = capsys.readouterr()
    assert (code, out.err) == (0, "")
    assert "4 variants in 2 arrays" in out.out


@pytest.mark.parametrize("name", ["cnn", "bert", "dcgan"])
def test_a_sweep_from_the_command_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "run"
    code = main(["run", *_swept(name), "--epochs", "1", "--output", str(place)])
    out = capsys.readouterr()
    assert (code, out.err) == (0, "")
    assert "4 variants" in out.out
    assert out.out.count("COMPLETE") >= 4
    check(hfta.Study.load(place))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workbench]:
    """The Workbench as it opens, with another family than the one to be chosen."""
    monkeypatch.chdir(tmp_path)
    made = Workbench(family="dlrm", executor="inline")
    yield made
    made.close()


@pytest.mark.each
@pytest.mark.parametrize("name", FAMILIES)
def test_a_sweep_from_the_workbench(name: str, bench: Workbench) -> None:
    define = bench.define
    define.family_field.value = name
    define.fields["epochs"].value, define.fields["batch_size"].value = "1", "12"
    define.row("lr").text_field.value = "1e-3, 1e-2"
    for box in define.add_axis("optimizer").choices_box.children:
        box.value = box.description in ("sgd", "adam")
    for axis, value in TINY[name].items():
        row = define.add_axis(axis)
        if row.choices_box.children:
            for box in row.choices_box.children:
                box.value = box.description == str(value).lower()
        else:
            row.text_field.value = str(value)
    assert [(row.name, row.error) for row in define.rows if row.error] == []
    assert bench.plan_view.sentence.value.startswith("4 variants in 2 arrays")
    button = bench.train_view.buttons["train"]
    assert not button.disabled, button.tooltip
    button.click()
    end = time.monotonic() + DEADLINE_S
    # The state is known a moment before the page says so.
    while not bench.bar.status.startswith(("finished; best #", "failed")) or len(bench.leaderboard.table["rows"]) < 4:
        assert time.monotonic() < end, bench.bar.status
        time.sleep(0.01)
    assert bench.bar.status.startswith("finished; best #"), bench.bar.status
    assert len(bench.leaderboard.table["rows"]) == 4
    check(bench.study.reload())
