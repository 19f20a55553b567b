"""The how-to guides on user loops, data and models give the described results."""

from __future__ import annotations

import importlib.util
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hfta_nb as hfta
from hfta_nb.errors import FamilyError
from hfta_nb.models.losses import IGNORED
from tests.pages.blocks import DOCS, blocks

GUIDES = DOCS / "how_to"


def ran(page: str, until: str) -> dict[str, Any]:
    """The names that a guide's blocks leave, up to the first block that has this text."""
    names: dict[str, Any] = {"__name__": "guide"}
    for block in blocks(GUIDES / f"{page}.md"):
        if block.language == "python" and not block.mark:
            exec(compile(block.code, page, "exec"), names)  # noqa: S102 - our own text
            if until in block.code:
                return names
    raise AssertionError(f"{page} has no block with {until}")


def shown(number: int) -> str:
    """A block of "Models that others wrote"."""
    section = (GUIDES / "own_model.md").read_text(encoding="utf-8").partition("## Models that others wrote\n")[2]
    return str(re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.S)[number])


def test_the_loop_trains_and_copies_members() -> None:
    names = ran("training_loop", "copy_member")
    assert names["losses"].shape == (4,)
    assert type(names["best"]) is nn.Sequential
    assert torch.equal(names["array"][1][0].weight, names["array"][2][0].weight)


def test_own_data_is_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = ran("own_data", "DataLoader(")["study"]
    assert study.history.state == "COMPLETE"
    assert len(study.results()) == 2


def pictures() -> TensorDataset:
    """Four of two classes."""
    return TensorDataset(torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(4) % 2)


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[hfta.Study]]:
    """Runs a block of "Models that others wrote" and gives its studies."""
    nets = tmp_path / "my_package" / "nets.py"
    nets.parent.mkdir()
    nets.write_text(NETS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(number: int) -> list[hfta.Study]:
        made: list[hfta.Study] = []
        hold = types.SimpleNamespace(Study=lambda *a, **k: made.append(hfta.Study(*a, **k)), seeds=hfta.seeds)
        names = {"hfta": hold, "torch": torch, "pictures": pictures()}
        exec(compile(shown(number), "own_model.md", "exec"), names)  # noqa: S102 - our own text
        return made

    return run


NETS = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width: int, num_classes: int):
        super().__init__(nn.Flatten(), nn.Linear(3072, width), nn.Linear(width, num_classes))
"""


def test_models_that_others_wrote(others: Callable[[int], list[hfta.Study]]) -> None:
    """As in the environment of the project: what is not installed there, or can't be imported, fails here."""
    studies = [*others(0), *others(1)]
    assert [study.family.name.partition(".")[0] for study in studies] == ["timm", "transformers", "my_package"]
    for study in studies:
        assert sum(len(group.variants) for group in study.plan_groups) == 2


def test_models_of_torchvision(others: Callable[[int], list[hfta.Study]]) -> None:
    if importlib.util.find_spec("torchvision") is None:
        with pytest.raises(FamilyError, match=r"torchvision is not installed; pip install \"torchvision==0\."):
            others(2)
    else:
        [study] = others(2)
        assert sum(len(group.variants) for group in study.plan_groups) == 2


def words() -> hfta.Data:
    """Four rows of tokens, every other of which is to be found."""
    x = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(0))
    y = x.clone()
    y[:, ::2] = IGNORED
    return hfta.data.from_tensors(x, y, name="tokens", task="masked_language_model")


BERT = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}


@pytest.mark.parametrize(
    ("name", "data", "settings"),
    [
        ("timm.vit_tiny_patch16_224", lambda: (pictures(), pictures()), {"embed_dim": 24, "depth": 1, "patch_size": 8}),
        ("transformers.BertForMaskedLM", words, {**BERT, "pad_token_id": None}),
    ],
    ids=["timm", "transformers"],
)
def test_small_ones_of_them_are_trained(
    name: str, data: Callable[[], Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    options = {"epochs": 1, "directory": tmp_path / "run", "device": "cpu", **settings}
    study = hfta.Study(name, {"lr": [1e-3, 1e-2]}, data(), **options)
    list(study.run())
    assert study.history.state == "COMPLETE"
    assert [len(group.variants) for group in study.plan_groups] == [2]
    assert len(study.results()) == 2
    assert type(study.best().module()).__module__.startswith(name.partition(".")[0])
