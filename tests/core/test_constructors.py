"""Families by the name of a constructor: axes from its signature, facts from the data, members equal to training
alone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb import losses
from hfta_nb.errors import FamilyError, GridError
from tests.contract.zoo.packages import package

OWN = '''
from collections import OrderedDict
from torch import nn

class Net(nn.Module):
    """A net of one's own."""

    def __init__(self, num_classes: int, in_features: int, width: int = 4, rate: float | int = 0.1, kind: str = "a"):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(in_features, width), nn.Dropout(rate), nn.Linear(width, num_classes))

    def forward(self, x):
        return OrderedDict(logits=self.layers(x), more=x)

class Wide(Net):
    def __init__(self, n_classes: int, lr: float = 0.1, **more):
        super().__init__(n_classes, **more)

def plain(width: int = 3):
    return Net(3, 13, width)

def odd(width: int = 3) -> nn.Module:
    return width

class Inner(nn.Module):
    def __init__(self, inner: nn.Module, sizes: list[int], act: type = nn.ReLU):
        super().__init__()

def broken() -> nn.Module:
    raise OSError("no disk")
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of one's own beside the notebook."""
    (tmp_path / "own_nets.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    from hfta_nb.models.model_zoo.constructors import recipe_of

    recipe_of.cache_clear()
    monkeypatch.delitem(sys.modules, "own_nets", raising=False)
    return tmp_path


def images(channels: int = 3, size: int = 32, count: int = 20) -> hfta.Data:
    x = torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0))
    return hfta.data.from_tensors(x, torch.arange(count) % 4, name="pictures")


def tokens(task: str) -> hfta.Data:
    x = torch.randint(0, 11, (20, 6), generator=torch.Generator().manual_seed(0))
    y = x.clone()
    if task == "masked_language_model":
        y[:, ::2] = losses.IGNORED
    return hfta.data.from_tensors(x, y, name="tokens", task=task)


SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}

ROWS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "torchvision.models.squeezenet1_1": (images, {"dropout": (0.0, 0.2)}, {}),
    "torchvision.models.shufflenet_v2_x0_5": (images, {}, {}),
    "timm.test_resnet": (lambda: images(1), {"drop_rate": (0.0, 0.2)}, {"stem_width": 8}),
    "timm.test_vit": (images, {"num_heads": (1, 2)}, {"patch_size": 16}),
    "transformers.BertForMaskedLM": (
        lambda: tokens("masked_language_model"),
        {"hidden_dropout_prob": (0.0, 0.1)},
        {**SMALL, "max_position_embeddings": 4, "pad_token_id": None},
    ),
    "transformers.GPT2LMHeadModel": (
        lambda: tokens("language_model"),
        {"resid_pdrop": (0.0, 0.1)},
        {"n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0},
    ),
    "transformers.ViTForImageClassification": (lambda: images(1, 8), {}, {**SMALL, "patch_size": 4}),
}


@pytest.mark.each
@pytest.mark.parametrize("name", ROWS)
def test_members_are_what_they_are_alone(name: str, tmp_path: Path) -> None:
    package(name.partition(".")[0])
    make, axes, fixed = ROWS[name]
    grid = {"lr": [1e-3, 3e-3], **axes}
    if fixed.get("max_position_embeddings") == 4:  # given, it is taken as it stands: too few for the data
        with pytest.raises(Exception, match=r"[Ii]ndex|size"):
            list(hfta.Study(name, grid, make(), epochs=1, directory=tmp_path / "few", device="cpu", **fixed).run())
        fixed = {k: v for k, v in fixed.items() if k != "max_position_embeddings"}
    runs = []
    for serial in (False, True):
        options = {"epochs": 2, "batch_size": 8, "dtype": "float64", "device": "cpu", "serial": serial, **fixed}
        study = hfta.Study(name, grid, make(), directory=tmp_path / f"run{serial}", **options)
        list(study.run())
        runs.append(study)
    fused, alone = runs
    assert any(len(g.variants) > 1 for g in fused.plan_groups)
    for m, member in alone.history.members.items():
        for metric in fused.metrics:
            found = fused.history.members[m].curves[metric].values
            torch.testing.assert_close(found, member.curves[metric].values, rtol=0, atol=1e-10)
    again = hfta.Study.load(fused.directory)
    assert isinstance(again.best().module(), nn.Module)
    assert f"'{name}'" in fused.to_code()


def test_the_data_fills_in_what_it_knows(own: Path) -> None:
    timm = package("timm")
    built = hfta.family("timm.test_vit").build(num_classes=4, in_channels=1, image_size=32, patch_size=16)
    assert type(built) is type(timm.create_model("test_vit"))
    assert (built.num_classes, built.patch_embed.proj.in_channels, built.patch_embed.grid_size) == (4, 1, (2, 2))
    bert = hfta.family("transformers.BertForMaskedLM")
    assert bert.axes["hidden_dropout_prob"].type == "float"
    assert bert.axes["hidden_size"].default == 768
    assert "output_attentions" not in bert.axes
    small = bert.build(vocab_size=7, context=600, **SMALL)
    assert small.config.vocab_size == 7
    assert small.config.max_position_embeddings == 602
    assert small.config.use_cache is False


def test_the_data_fills_in_what_it_knows_of_torchvision() -> None:
    package("torchvision")
    assert hfta.family("torchvision.models.resnet18").build(num_classes=3).fc.out_features == 3


def test_own_classes(own: Path) -> None:
    family = hfta.family("own_nets.Net")
    kinds = {name: (spec.type, spec.default) for name, spec in family.axes.items()}
    assert kinds == {"width": ("int", 4), "rate": ("float", 0.1), "kind": ("str", "a")}
    assert (family.facts, family.help, family.tasks) == (("num_classes", "in_features"), "A net of one's own.", ())
    assert "own_nets.Net" in hfta.families()
    study = hfta.Study("own_nets.Net", {"width": [3, 4], "lr": [1e-3, 1e-2]}, "wine", epochs=1, directory=own / "run")
    list(study.run())
    assert study.check(members=[1])["equal"].all()
    wide = hfta.family("own_nets.Wide")
    assert wide.open
    with pytest.raises(FamilyError, match="unexpected keyword argument 'widht'"):
        hfta.Study("own_nets.Wide", {"widht": [3, 4]}, "wine", in_features=13)
    study = hfta.Study("own_nets.Wide", {"width": [3, 4]}, "wine", in_features=13, epochs=1, directory=own / "wide")
    assert sum(len(g.variants) for g in study.plan_groups) == 2
    assert all(g.parameters > 0 for g in study.plan_groups)
    with pytest.raises(GridError, match="unknown axis"):
        hfta.Study("own_nets.Net", {"widht": [3, 4]}, "wine")


@pytest.mark.long
def test_the_command_and_the_worker_know_names(own: Path) -> None:
    command = [sys.executable, "-m", "hfta_nb", "run", "--family", "own_nets.Net", "--data", "wine", "--epochs", "1"]
    command += ["--grid", "width=3,4", "--lr", "1e-2", "--output", "run", "--plain"]
    done = subprocess.run(command, cwd=own, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch.nn.Lineer", r"torch.nn has no Lineer; did you mean torch.nn.Linear"),
        ("torch.nn", r"is a package, not a constructor.*for example torch\.nn\."),
        ("torch.optim.Adam", "is not a module of torch"),
        ("nowhere_at_all.Net", "nowhere_at_all is not installed; check the spelling"),
        ("os.system", "does not say that it builds a module"),
        ("own_nets.plain", "does not say that it builds a module.*annotate it"),
        ("own_nets.Inner", "takes arguments that can't be axes; got 'inner'"),
        ("__main__.Net", "not the name of a constructor"),
        ("torch..Net", "not the name of a constructor"),
        ("own_broken.Net", r"own_broken can't be imported \(ValueError: at import\)"),
    ],
)
def test_names_that_can_not_be(name: str, words: str, own: Path) -> None:
    (own / "own_broken.py").write_text("raise ValueError('at import')\n", encoding="utf-8")
    with pytest.raises(FamilyError, match=words):
        hfta.family(name)
    assert name not in hfta.families()


def test_a_package_that_imports_late_and_fails(own: Path) -> None:
    code = """
def __getattr__(name):
    try:
        raise OSError("no such library")
    except OSError as error:
        raise ModuleNotFoundError(name) from error
"""
    (own / "own_lazy.py").write_text(code, encoding="utf-8")
    with pytest.raises(FamilyError, match=r"own_lazy\.Net can't be imported \(OSError: no such library\)"):
        hfta.family("own_lazy.Net")


def test_what_is_built_must_be_a_module(own: Path) -> None:
    with pytest.raises(FamilyError, match="did not return a module"):
        hfta.family("own_nets.odd").build()
    with pytest.raises(FamilyError, match=r"own_nets.broken, .*OSError: no disk"):
        hfta.Study("own_nets.broken", {"lr": [1e-3]}, "wine")


def test_models_of_timm_and_transformers_that_are_not_there() -> None:
    package("timm")
    with pytest.raises(FamilyError, match=r"no such model of timm; did you mean timm.resnet18"):
        hfta.family("timm.resnet19x")
    with pytest.raises(FamilyError, match="is not a module of torch"):
        hfta.family("transformers.AutoModel")
    with pytest.raises(FamilyError, match=r"did you mean transformers\.BertForMaskedLM"):
        hfta.family("transformers.BertForMaskdLM")


def test_without_a_package_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FamilyError, match="timm is not installed; pip install timm"):
        hfta.family("timm.resnet99")


def test_predictions_by_name() -> None:
    x = torch.zeros(2)
    assert losses.prediction({"logits": x}) is x
    assert losses.prediction({"out": x, "aux": 1}) is x
    assert losses.prediction((x, 1)) is x
    with pytest.raises(FamilyError, match="no prediction"):
        losses.prediction({"last_hidden_state": x})
