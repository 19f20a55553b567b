"""Fine-tuning with the data that people have: tokenised rows, masks, labels of -100, padding by batch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import hfta_nb as hfta
from hfta_nb.errors import DataError
from tests.contract.zoo.packages import package
from tests.core.saved_models import bert

IGNORED = -100


class Rows(Dataset[dict[str, Any]]):
    """Tokenised texts of unlike length, as Hugging Face's `datasets` gives them: dicts of lists of whole numbers."""

    def __init__(self, count: int = 20, length: int = 0) -> None:
        drawn = torch.Generator().manual_seed(1)
        self.rows = []
        for i in range(count):
            long = length or int(torch.randint(3, 8, (), generator=drawn))
            ids = torch.randint(1, 13, (long,), generator=drawn).tolist()
            self.rows.append({"input_ids": ids, "attention_mask": [1] * long, "label": i % 3})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.rows[i]


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch as long as its longest text, as Hugging Face's `DataCollatorWithPadding` makes it."""
    long = max(len(row["input_ids"]) for row in rows)
    found = {k: torch.tensor([r[k] + [0] * (long - len(r[k])) for r in rows]) for k in ("input_ids", "attention_mask")}
    return {**found, "labels": torch.tensor([row["label"] for row in rows])}


def test_labels_are_the_next_tokens() -> None:
    rows = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    assert hfta.data.next_tokens(rows)["labels"].tolist() == [[6, 7, IGNORED], [9, IGNORED, IGNORED]]
    marked = {"input_ids": [5, 6, 7], "labels": [IGNORED, 6, IGNORED]}
    assert hfta.data.next_tokens(marked)["labels"].tolist() == [6, IGNORED, IGNORED]
    with pytest.raises(DataError, match="no tokens"):
        hfta.data.next_tokens({"text": "words"})


@pytest.mark.long
def test_batches_padded_by_a_collate_function(tmp_path: Path) -> None:
    name = f"transformers.AutoModelForSequenceClassification:{bert(tmp_path / 'base')}"
    rows = Rows()
    loaders = tuple(DataLoader(rows, batch_size=5, collate_fn=padded) for _ in range(2))
    runs = []
    for serial in (False, True):
        study = hfta.Study(name, {"lr": [1e-3, 1e-2]}, loaders, epochs=2, dtype="float64", device="cpu", serial=serial,
                           directory=tmp_path / f"run{serial}")  # fmt: skip
        study.fit(progress=False)
        runs.append(study)
    for m, member in runs[1].history.members.items():
        for metric in ("val_loss", "val_accuracy"):
            found = runs[0].history.members[m].curves[metric].values
            torch.testing.assert_close(found, member.curves[metric].values, rtol=0, atol=1e-10)


def test_a_causal_language_model_has_the_loss_that_it_has_in_transformers(tmp_path: Path) -> None:
    transformers = package("transformers")
    config = transformers.GPT2Config(vocab_size=13, n_embd=8, n_layer=1, n_head=2, n_positions=16, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt")
    rows = [padded(Rows().rows[i : i + 1] + Rows(length=8).rows[:1]) for i in range(6)]
    for batch in rows:
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
    data = hfta.data.from_batches(
        lambda: (hfta.data.next_tokens(batch) for batch in rows),
        lambda: (hfta.data.next_tokens(batch) for batch in rows),
        task="language_model",
    )
    study = hfta.Study(f"transformers:{tmp_path / 'gpt'}", {"lr": [1e-3, 1e-2]}, data, epochs=1, dtype="float64",
                       directory=tmp_path / "run")  # fmt: skip
    study.fit(progress=False)
    model = study.member(0).module()
    with torch.no_grad():
        outputs = [(model(**batch), batch["labels"][:, 1:]) for batch in rows]
    counts = [int((y != IGNORED).sum()) for _, y in outputs]
    mean = sum(float(out.loss) * n for (out, _), n in zip(outputs, counts, strict=True)) / sum(counts)
    hits = sum(int((out.logits[:, :-1].argmax(-1) == y)[y != IGNORED].sum()) for out, y in outputs)
    found = study.member(0).metrics
    assert found["val_perplexity"] == pytest.approx(math.exp(mean), rel=1e-6)  # whose own loss is in float32
    assert found["val_accuracy"] == pytest.approx(hits / sum(counts), rel=1e-9)


@pytest.mark.long
def test_a_label_for_each_token(tmp_path: Path) -> None:
    x = torch.randint(1, 13, (20, 6), generator=torch.Generator().manual_seed(2))
    y = torch.where(x < 4, IGNORED, x % 3)
    data = hfta.data.from_tensors({"input_ids": x, "attention_mask": torch.ones_like(x)}, y, task="segmentation")
    study = hfta.Study(f"transformers.AutoModelForTokenClassification:{bert(tmp_path / 'base')}", {"lr": [1e-3, 1e-2]},
                       data, metrics=["token_accuracy"], epochs=1, directory=tmp_path / "run")  # fmt: skip
    study.fit(progress=False)
    model, part = study.member(1).module(), data.y_validation
    with torch.no_grad():
        right = model(**data.x_validation).logits.argmax(-1) == part
    assert model.config.num_labels == 3
    assert study.member(1).metrics["val_token_accuracy"] == pytest.approx(float(right[part != IGNORED].float().mean()))


def test_parts_by_name() -> None:
    parts = {"train": Rows(length=4), "validation": Rows(6, length=4), "test": Rows(3, length=4)}
    data = hfta.data.resolve(parts)
    assert (len(data.examples[1]), len(data.y_validation)) == (20, 6)
    del parts["validation"]
    assert len(hfta.data.resolve(parts).y_validation) == 3
    assert len(hfta.data.resolve({"train": Rows(length=4)}).y_validation) == 4  # held out
    with pytest.raises(DataError, match="not data"):
        hfta.data.resolve({"train": 3})


def test_data_sets_of_hugging_face(tmp_path: Path) -> None:
    datasets = package("datasets")
    rows = datasets.Dataset.from_list(Rows(length=6).rows)
    parts = rows.train_test_split(0.25, seed=0)
    data = hfta.data.resolve(parts)
    assert (data.task, data.facts["num_classes"], sorted(data.examples[0])) == (
        "classification", 3, ["attention_mask", "input_ids"])  # fmt: skip
    assert data.examples[0]["input_ids"].tolist() == list(parts["train"]["input_ids"])
    name = f"transformers.AutoModelForSequenceClassification:{bert(tmp_path / 'base')}"
    for kind in (None, "torch"):
        study = hfta.Study(name, {"lr": [1e-3]}, parts.with_format(kind), epochs=1, directory=tmp_path / f"run{kind}")
        study.fit(progress=False)
        assert study.check()["equal"].all()
    with pytest.raises(DataError, match="remove_columns"):
        hfta.data.resolve(datasets.Dataset.from_list([{"text": "words", "label": i % 2} for i in range(8)]))


# Packing.


def test_texts_are_packed_without_padding() -> None:
    rows = [{"input_ids": [1, 2, 3, 9], "attention_mask": [1, 1, 1, 0]}, [4, 5], torch.tensor([6, 7, 8])]
    x, y = hfta.data.pack(rows, 4)
    assert (x.tolist(), y.tolist()) == ([[1, 2, 3, 4]], [[2, 3, 4, 5]])
    x, y = hfta.data.pack(rows, 5, end=0)
    assert (x.tolist(), y.tolist()) == ([[1, 2, 3, 0, 4], [5, 0, 6, 7, 8]], [[2, 3, 0, 4, 5], [0, 6, 7, 8, 0]])
    marked = [{"input_ids": [1, 2, 3], "labels": [IGNORED, 2, 3]}, {"input_ids": [4, 5, 6], "labels": [IGNORED, 5, 6]}]
    x, y = hfta.data.pack(marked, 5)
    assert (x.tolist(), y.tolist()) == ([[1, 2, 3, 4, 5]], [[2, 3, IGNORED, 5, 6]])


@pytest.mark.parametrize(
    ("rows", "length", "message"),
    [
        (["a text"], 2, "row 0: not tokens"),
        ([{"text": "words"}], 2, "row 0: no tokens"),
        ([[1, 2], {"input_ids": [1, 2], "labels": [1]}], 2, "row 1: not as many labels"),
        ([[1, 2]], 2, "too few tokens"),
        ([[1, 2]], 0, "length: no sample"),
        ([[1, 2]], 1.5, "length: not a whole number"),
    ],
)
def test_what_can_not_be_packed(rows: Any, length: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        hfta.data.pack(rows, length)
