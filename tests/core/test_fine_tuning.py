"""Families that fine-tune a saved model: a head, the last layers, or adapters that peft alone reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import hfta_nb as hfta
from hfta_nb.errors import FamilyError, FusionError, GridError, StoreError
from tests.contract.peft_rows import ROWS, SEEDS
from tests.contract.zoo.packages import package
from tests.core.saved_models import SIZES, bert, tokens

MIXED = [
    {"lr": 1e-2, "r": 2, "alpha": 4},
    {"lr": 3e-3, "r": 4, "target_modules": ["query"]},
    {"lr": 3e-3, "r": 3, "target_modules": "all-linear", "lora_dropout": 0.3},
]


def study(family: str, folder: Path, grid: Any, directory: Path, data: Any = None, **options: Any) -> hfta.Study:
    given = {"epochs": 2, "batch_size": 8, "dtype": "float64", "device": "cpu", **options}
    return hfta.Study(f"{family}:{folder}", grid, data or tokens(), directory=directory, **given)


def read(base: Path, folder: Path, task: str = "SequenceClassification", **settings: Any) -> Any:
    """The adapter in a folder over its base, by transformers and peft alone."""
    transformers, peft = package("transformers"), package("peft")
    model = getattr(transformers, f"AutoModelFor{task}").from_pretrained(base, dtype=torch.float64, **settings)
    return peft.PeftModel.from_pretrained(model, folder).eval()


def test_adapters_of_a_study_are_read_by_peft_alone(tmp_path: Path) -> None:
    base, data = bert(tmp_path / "base"), tokens()
    run = study("lora_classifier", base, MIXED, tmp_path / "run", data)
    assert run.plan()["members"].tolist() == [3]  # the layers that are adapted differ
    with pytest.raises(StoreError, match="no member has such weights"):
        run.save_pretrained(tmp_path / "early")
    for event in run.run():
        if isinstance(event, hfta.events.EpochDone):
            break
    again = hfta.Study.load(run.directory, family=f"lora_classifier:{base}")
    list(again.run(resume=True))
    assert again.check(members=[2])["equal"].all()
    folders = again.save_pretrained(tmp_path / "adapters")
    assert {i: folder.name for i, folder in folders.items()} == {0: "0", 1: "1", 2: "2"}
    for i, folder in folders.items():
        kept = load_file(folder / "adapter_model.safetensors")
        assert {"lora_A", "lora_B", "classifier"} == {n.split(".")[-2] for n in kept}
        expected = again.member(i).module()(**data.x_validation).logits
        found = read(base, folder, num_labels=3)(**data.x_validation).logits
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


@pytest.mark.long
def test_adapters_of_a_language_model(tmp_path: Path) -> None:
    transformers = package("transformers")
    config = transformers.GPT2Config(vocab_size=13, n_embd=8, n_layer=2, n_head=2, n_positions=16, bos_token_id=0,
                                     eos_token_id=0)  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "base")
    x = tokens().x
    rows = [hfta.data.next_tokens({k: v[i] for k, v in x.items()}) for i in range(16)]
    data = hfta.data.from_dataset(Rows(rows), task="language_model")
    grid = [{"lr": 1e-2, "r": 2}, {"lr": 1e-2, "r": 4, "layers_to_train": 1}, {"lr": 3e-3, "use_dora": True}]
    run = study("lora_causal_lm", tmp_path / "base", grid, tmp_path / "run", data)
    assert run.plan()["members"].tolist() == [3]
    run.fit(progress=False)
    assert run.check(members=[0, 1, 2])["equal"].all()
    for i, folder in run.save_pretrained(tmp_path / "adapters").items():
        assert all("lora_" in name for name in load_file(folder / "adapter_model.safetensors"))
        given = {k: v[:4] for k, v in x.items()}
        expected = run.member(i).module()(**given).logits
        found = read(tmp_path / "base", folder, "CausalLM")(**given).logits
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_adapters_of_an_array_are_read_by_peft_alone(row: Any, tmp_path: Path) -> None:
    peft, members = package("peft"), row.members()
    array = hfta.fuse(members, SEEDS).eval()
    folders = array.save_pretrained(tmp_path / "adapters")
    assert folders == [tmp_path / "adapters" / str(i) for i in range(3)]
    for i, folder in enumerate(folders):
        assert type(array[i]) is type(members[i])
        alone = peft.PeftModel.from_pretrained(row.base(), folder).eval()
        torch.testing.assert_close(alone(**row.x).logits, array(**row.x).logits[i], rtol=0, atol=1e-12)


def test_an_array_without_save_pretrained(tmp_path: Path) -> None:
    array = hfta.fuse([torch.nn.Linear(2, 2) for _ in range(2)])
    with pytest.raises(FusionError, match="has no save_pretrained"):
        array.save_pretrained(tmp_path)


def test_what_begins_anew_goes_with_the_adapter(tmp_path: Path) -> None:
    """A base without a pooler, with which an adapter alone would be lost."""
    transformers = package("transformers")
    torch.manual_seed(0)
    bare = transformers.BertModel(transformers.BertConfig(**SIZES), add_pooling_layer=False)
    bare.save_pretrained(tmp_path / "base")
    torch.manual_seed(1)
    built = hfta.family(f"lora_classifier:{tmp_path / 'base'}").build(num_classes=3)
    trained = {name for name, p in built.named_parameters() if p.requires_grad and "lora_" not in name}
    inside = "base_model.model.{}.modules_to_save.default.{}"
    names = (
        ("bert.pooler", "dense.weight"),
        ("bert.pooler", "dense.bias"),
        ("classifier", "weight"),
        ("classifier", "bias"),
    )
    assert trained == {inside.format(*pair) for pair in names}
    assert all(p.requires_grad is False for name, p in built.named_parameters() if "original_module" in name)


def test_the_last_layers_are_trained(tmp_path: Path) -> None:
    base = bert(tmp_path / "base")
    tuned = hfta.family(f"finetune:{base}").build(layers_to_train=1)  # of the class that was saved
    names = {name for name, p in tuned.named_parameters() if p.requires_grad}
    assert {n.split(".")[0] for n in names} == {"encoder", "pooler"}
    assert {n.split(".")[2] for n in names if n.startswith("encoder")} == {"1"}
    assert all(p.requires_grad for p in hfta.family(f"finetune:{base}").build().parameters())
    adapted = hfta.family(f"lora_classifier:{base}").build(num_classes=3, layers_to_train=1, target_modules=["query"])
    with_adapter = [n for n, p in adapted.named_parameters() if p.requires_grad and "lora_" in n]
    assert {name.split(".encoder.layer.")[1][0] for name in with_adapter} == {"1"}
    with pytest.raises(FamilyError, match=r"more layers than the model has; got 3; accepted: 1 to 2"):
        hfta.family(f"finetune:{base}").build(layers_to_train=3)
    probe = hfta.family(f"linear_probe:{base}").build(num_classes=3)
    assert {n for n, p in probe.named_parameters() if p.requires_grad} == {"classifier.weight", "classifier.bias"}


def test_values_that_peft_does_not_take(tmp_path: Path) -> None:
    family = hfta.family(f"lora_classifier:{bert(tmp_path / 'base')}")
    assert "lora_classifier:" in "".join(hfta.families())  # from now on, in the Workbench's list too
    with pytest.raises(FamilyError, match=r"peft refuses it .No modules were targeted.*got .*'q_proj'"):
        family.build(num_classes=3, target_modules=["q_proj"])
    with pytest.raises(GridError, match=r"not a choice; got 'pissa'"):  # which changes the base
        family.build(num_classes=3, init="pissa")
    with pytest.raises(GridError, match="r: "):
        family.build(num_classes=3, r=0)
    with pytest.raises(FamilyError, match=r"unknown family; got 'lora_classifier'.*lora_classifier:FOLDER"):
        hfta.family("lora_classifier")
