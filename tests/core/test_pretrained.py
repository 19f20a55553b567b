"""Families with pretrained weights: read once, from safetensors alone, and equal to fine-tuning alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import FamilyError, StoreError
from hfta_nb.models import weights
from tests.contract.zoo.packages import package
from tests.core.saved_models import SIZES, bert, tokens

HEAD = "transformers.AutoModelForSequenceClassification"


@pytest.fixture(autouse=True)
def _nothing_read() -> None:
    weights._read.cache_clear()


def test_a_model_is_what_from_pretrained_makes(tmp_path: Path) -> None:
    transformers = package("transformers")
    folder = bert(tmp_path / "base")
    family = hfta.family(f"{HEAD}:{folder}")
    assert (family.axes["hidden_size"].default, family.tasks) == (8, ("classification",))
    torch.manual_seed(3)
    built = family.build(num_classes=4, hidden_dropout_prob=0.3)
    torch.manual_seed(3)
    alone = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=4, hidden_dropout_prob=0.3, use_cache=False
    )
    assert type(built) is type(alone)
    assert (built.training, built.config.hidden_dropout_prob) == (True, 0.3)
    torch.testing.assert_close(built.state_dict(), alone.state_dict(), rtol=0, atol=0)
    random = family.build(num_classes=4, weights=None)
    name = "bert.pooler.dense.weight"
    assert not torch.equal(random.state_dict()[name], alone.state_dict()[name])


def test_its_class_is_the_one_that_was_saved(tmp_path: Path) -> None:
    folder = bert(tmp_path / "saved", "BertForSequenceClassification", num_labels=3)
    family = hfta.family(f"transformers:{folder}")
    kept = family.build(num_classes=3)
    assert torch.equal(kept.classifier.weight, load_file(folder / "model.safetensors")["classifier.weight"])
    assert len(family.build(num_classes=5).classifier.weight) == 5  # of other classes, the head begins anew
    assert hfta.family(family.name) is family
    bert(folder, "BertForMaskedLM")
    assert hfta.family(family.name).tasks == ("masked_language_model",)


GRID = {"lr": [1e-3, 3e-3], "train": ["all", "head", ["classifier.*", "bert.encoder.layer.1.*"]]}


@pytest.mark.each("grid", every=3)
@pytest.mark.parametrize("grid", [{"lr": [1e-3, 3e-3], "train": ["head"]}, GRID, {"weights": ["pretrained", None]}])
def test_members_are_what_they_are_alone(grid: dict[str, Any], tmp_path: Path) -> None:
    folder = bert(tmp_path / "base")
    runs = []
    for serial in (False, True):
        study = hfta.Study(f"{HEAD}:{folder}", grid, tokens(), epochs=2, batch_size=8, dtype="float64", device="cpu",
                           serial=serial, optimizer="sgd", directory=tmp_path / f"run{serial}")  # fmt: skip
        list(study.run())
        runs.append(study)
    fused, alone = runs
    assert any(len(g.variants) > 1 for g in fused.plan_groups)
    for m, member in alone.history.members.items():
        found = fused.history.members[m].curves["val_loss"].values
        torch.testing.assert_close(found, member.curves["val_loss"].values, rtol=0, atol=1e-10)
    assert fused.check(members=[0])["equal"].all()


def test_what_is_frozen_stays_as_it_was_saved(tmp_path: Path) -> None:
    folder = bert(tmp_path / "base")
    study = hfta.Study(f"{HEAD}:{folder}", {"lr": [1e-2, 3e-2]}, tokens(), train="head", epochs=1, batch_size=8,
                       directory=tmp_path / "run")  # fmt: skip
    study.fit(progress=False)
    saved = load_file(folder / "model.safetensors")
    found = study.best().module()
    assert {n for n, p in found.named_parameters() if p.requires_grad} == {"classifier.weight", "classifier.bias"}
    frozen = {n.removeprefix("bert."): p for n, p in found.named_parameters() if not p.requires_grad}
    assert all(torch.equal(p, saved[n]) for n, p in frozen.items())


def test_members_hold_what_is_frozen_once_and_read_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, opened = bert(tmp_path / "base"), list[str]()
    usual = weights.safe_open
    monkeypatch.setattr(weights, "safe_open", lambda path, kind: opened.append(path) or usual(path, kind))
    family = hfta.family(f"{HEAD}:{folder}")
    one, two = (family.member(num_classes=3, train="head") for _ in range(2))
    assert len(opened) == 1
    places = [{n: p.untyped_storage().data_ptr() for n, p in m.named_parameters()} for m in (one, two)]
    assert {n for n in places[0] if places[0][n] != places[1][n]} == {"classifier.weight", "classifier.bias"}
    mine, others = (family.build(num_classes=3) for _ in range(2))  # of a user, who may train all of it
    with torch.no_grad():
        mine.bert.pooler.dense.weight.zero_()
    assert others.bert.pooler.dense.weight.abs().sum() > 0
    assert family.member(num_classes=3).bert.pooler.dense.weight.abs().sum() > 0
    assert len(opened) == 1


def test_shards_and_half_precision(tmp_path: Path) -> None:
    transformers = package("transformers")
    whole = bert(tmp_path / "whole")
    model = transformers.BertModel.from_pretrained(whole).half()
    model.save_pretrained(tmp_path / "shards", max_shard_size="1KB")
    assert not (tmp_path / "shards" / "model.safetensors").exists()
    built = hfta.family(f"transformers:{tmp_path / 'shards'}").build()
    assert built.pooler.dense.weight.dtype == torch.float32
    torch.testing.assert_close(built.state_dict(), model.float().state_dict(), rtol=0, atol=0)
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text(encoding="utf-8"))
    lost = sorted(set(index["weight_map"].values()))[0]
    (tmp_path / "shards" / lost).unlink()
    with pytest.raises(FamilyError, match=f"lacks 1 of .* shards; got '{lost}'"):
        hfta.family(f"transformers:{tmp_path / 'shards'}").build()


def test_the_winner_is_read_by_transformers_alone(tmp_path: Path) -> None:
    transformers, data = package("transformers"), tokens()
    study = hfta.Study(f"{HEAD}:{bert(tmp_path / 'base')}", {"lr": [1e-3, 1e-2]}, data, epochs=1, batch_size=8,
                       directory=tmp_path / "run")  # fmt: skip
    with pytest.raises(StoreError):
        study.member(0).save_pretrained(tmp_path / "early")
    study.fit(progress=False)
    again = hfta.Study.load(study.directory)
    folder = again.best().save_pretrained(tmp_path / "winner")
    alone = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    x = data.x_validation
    torch.testing.assert_close(alone(**x).logits, study.best().module()(**x).logits, rtol=0, atol=0)
    assert sorted(p.suffix for p in folder.iterdir()) == [".json", ".safetensors"]


def test_what_has_no_save_pretrained(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [1e-2]}, "iris", epochs=1, directory=tmp_path / "run")
    study.fit(progress=False)
    with pytest.raises(StoreError, match="has no save_pretrained"):
        study.best().save_pretrained(tmp_path / "winner")


def _without(folder: Path, name: str) -> None:
    (folder / name).unlink()


def _pickled(folder: Path) -> None:
    torch.save({}, folder / "pytorch_model.bin")
    _without(folder, "model.safetensors")


def _cut(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def _lacking(folder: Path) -> None:
    kept = load_file(folder / "model.safetensors")
    del kept["embeddings.word_embeddings.weight"]
    save_file(kept, folder / "model.safetensors")


def _odd(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "no such"}', encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (shutil.rmtree, r"there is no such folder.*looked in .*base and .*nothing is downloaded"),
        (lambda f: _without(f, "model.safetensors"), "holds no weights"),
        (lambda f: _without(f, "config.json"), "holds no config.json"),
        (_pickled, r"is a pickle.*pytorch_model\.bin.*convert it once"),
        (_cut, r"can't be read"),
        (_lacking, r"1 missing \(bert\.embeddings\.word_embeddings\.weight\)"),
        (_odd, "is not a configuration of transformers"),
    ],
)
def test_what_is_damaged_is_told(damage: Any, words: str, tmp_path: Path) -> None:
    folder = bert(tmp_path / "base")
    damage(folder)
    with pytest.raises(FamilyError, match=words):
        hfta.Study(f"{HEAD}:{folder}", {"lr": [1e-3]}, tokens())


def test_names_and_shapes_that_do_not_fit(tmp_path: Path) -> None:
    folder, data = bert(tmp_path / "base"), tokens()
    for more, words in (
        ({"hidden_size": 16}, r"\d+ of another shape \(bert\.embeddings"),
        ({"num_hidden_layers": 3}, r"16 missing \(bert\.encoder\.layer\.2"),
        ({"weights": str(tmp_path / "no.bin")}, "is a pickle"),
        ({"weights": str(tmp_path / "no.safetensors")}, "there is no such file"),
        ({"weights": "nobody/nothing"}, "no such repository"),
        ({"train": "clasifier.*"}, r"matches no parameter.*did you mean classifier"),
    ):
        with pytest.raises(FamilyError, match=words):
            hfta.Study(f"{HEAD}:{folder}", {"lr": [1e-3]}, data, **more)
    with pytest.raises(FamilyError, match="BertModel has no head"):
        hfta.family(f"transformers:{folder}").build(train="head")
    with pytest.raises(FamilyError, match="has no model for BertConfig"):
        hfta.family(f"transformers.AutoModelForImageClassification:{folder}")


def test_weights_of_a_constructor_of_transformers(tmp_path: Path) -> None:
    folder = bert(tmp_path / "base")
    family = hfta.family("transformers.BertForSequenceClassification")
    built = family.build(num_classes=3, weights=str(folder), **SIZES)
    assert torch.equal(built.bert.pooler.dense.weight, load_file(folder / "model.safetensors")["pooler.dense.weight"])
    with pytest.raises(FamilyError, match="of another shape"):
        family.build(num_classes=3, weights=str(folder), **{**SIZES, "hidden_size": 16})


def test_a_repository_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package("transformers")
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--someone--tiny"
    bert(cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc", encoding="utf-8")
    assert hfta.family("transformers:someone/tiny").build().config.hidden_size == 8


def test_timms_models(tmp_path: Path) -> None:
    timm = package("timm")
    torch.manual_seed(1)
    saved = timm.create_model("test_resnet", num_classes=5)
    save_file(saved.state_dict(), tmp_path / "model.safetensors")
    family = hfta.family("timm.test_resnet")
    kept = family.build(num_classes=5, weights=str(tmp_path))
    torch.testing.assert_close(kept.state_dict(), saved.state_dict(), rtol=0, atol=0)
    torch.manual_seed(2)
    other = family.member(num_classes=3, in_channels=1, weights=str(tmp_path), train="head")
    torch.manual_seed(2)
    overlay = {"file": str(tmp_path / "model.safetensors"), "num_classes": 5}
    alone = timm.create_model("test_resnet", pretrained=True, pretrained_cfg_overlay=overlay, num_classes=3, in_chans=1)
    torch.testing.assert_close(other.state_dict(), alone.state_dict(), rtol=0, atol=0)
    assert {n for n, p in other.named_parameters() if p.requires_grad} == {"fc.weight", "fc.bias"}
    assert "state_dict" not in other.pretrained_cfg
    state = load_file(tmp_path / "model.safetensors")
    save_file({n: v for n, v in state.items() if n != "layer1.0.conv1.weight"}, tmp_path / "less.safetensors")
    for classes in (3, 5):
        with pytest.raises(FamilyError, match=r"do not fit the model.*Missing key.*layer1\.0\.conv1\.weight"):
            family.build(num_classes=classes, weights=str(tmp_path / "less.safetensors"))
    with pytest.raises(FamilyError, match=r"no such repository in the hub's cache; got 'timm/test_resnet"):
        hfta.family("timm:test_resnet").build()


class Net(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.BatchNorm1d(5))
        self.head = nn.Linear(5, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x))
        return out


def test_own_families_load_weights(tmp_path: Path) -> None:
    torch.manual_seed(5)
    saved = Net(7)
    file = tmp_path / "net.safetensors"
    save_file(saved.state_dict(), file)

    def tuned(train: str = "head", classes: int = 3) -> nn.Module:
        return hfta.load_weights(Net(classes), file, fresh=["head.*"], train=train)

    grid = {"lr": [1e-2, 3e-2], "train": ["head", "all"]}
    study = hfta.Study(tuned, grid, "iris", epochs=2, directory=tmp_path / "run")
    study.fit(progress=False)
    assert study.check()["equal"].all()
    probe = study.member(0).module()
    assert torch.equal(probe.body[0].weight, saved.body[0].weight)
    assert not torch.equal(study.member(1).module().body[0].weight, saved.body[0].weight)
    for change, words in (
        ({"fresh": []}, "do not fit the model: 2 of another shape"),
        ({"fresh": ["tail.*"]}, "matches no parameter"),
        ({"fresh": ["head.*"], "train": "had.*"}, "matches no parameter"),
    ):
        with pytest.raises(FamilyError, match=words):
            hfta.load_weights(Net(), file, **change)
    with pytest.raises(FamilyError, match=r"3 missing \(0.weight.*unexpected"):
        hfta.load_weights(nn.Sequential(nn.Linear(4, 3), nn.PReLU()), file)


@pytest.mark.long
def test_a_run_goes_on_in_another_process_and_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bert(tmp_path / "base")
    name, grid = f"{HEAD}:base", {"lr": [1e-3, 3e-3], "train": ["head", "all"]}
    options: dict[str, Any] = {"batch_size": 8, "dtype": "float64", "device": "cpu"}
    whole = hfta.Study(name, grid, tokens(), epochs=2, directory=tmp_path / "whole", **options)
    whole.fit(progress=False)
    part = hfta.Study(name, grid, tokens(), epochs=1, directory=tmp_path / "part", **options)
    part.fit(progress=False, executor="processes", workers=1)
    again = hfta.Study.load(part.directory, trust=True)
    again.fit(progress=False, epochs=2)
    for m, member in whole.history.members.items():
        found = again.history.members[m].curves["val_loss"].values
        torch.testing.assert_close(found, member.curves["val_loss"].values, rtol=0, atol=1e-12)
    code = whole.to_code()
    assert f"'{HEAD}:" in code
    assert "must be defined" not in code
    whole.plan()


@pytest.mark.long
def test_the_command_line_knows_saved_models(tmp_path: Path) -> None:
    bert(tmp_path / "base", "BertForMaskedLM", vocab_size=300, max_position_embeddings=256)
    command = [sys.executable, "-m", "hfta_nb", "run", "--family", "transformers:base", "--data", "english_masked"]
    command += ["--epochs", "1", "--grid", "train=all,bert.*", "--set", "weights=pretrained"]
    command += ["--output", "run", "--plain"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "COMPLETE" in done.stdout
