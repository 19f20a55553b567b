"""timm without torchvision, and messages about a torchvision that is missing or was built for another torch."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hfta_nb as hfta
from hfta_nb.errors import FamilyError
from hfta_nb.models.model_zoo import vision
from hfta_nb.models.model_zoo.constructors import recipe_of

NEEDS_IT = """
from torch import nn
from torchvision.ops.misc import FrozenBatchNorm2d
from torchvision.transforms import functional as F, InterpolationMode
try:
    from torchvision.models import resnet18
except ImportError:
    resnet18 = None

TABLE = {"frozen": FrozenBatchNorm2d, InterpolationMode.BILINEAR: "bilinear"}

class Crop(FrozenBatchNorm2d):
    pass

class Net(nn.Linear):
    def __init__(self, width: int = 3):
        super().__init__(width, 2)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with a package that imports torchvision, in an environment without torchvision."""
    (tmp_path / "own_vision.py").write_text(NEEDS_IT, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    if importlib.util.find_spec(vision.NAME) is not None:
        pytest.skip("torchvision is installed")
    recipe_of.cache_clear()
    yield tmp_path
    recipe_of.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("own_vision", vision.NAME)]:
        del sys.modules[name]


def test_what_only_imports_torchvision_is_imported_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FamilyError, match="own_vision can't be imported"):
        hfta.family("own_vision.Net")
    monkeypatch.setattr(vision, "NEEDS", frozenset({"own_vision"}))
    assert hfta.family("own_vision.Net").build(width=4).in_features == 4
    own = importlib.import_module("own_vision")
    assert own.resnet18 is None
    assert not isinstance(torch.nn.BatchNorm2d(3), own.FrozenBatchNorm2d)
    for called in (own.FrozenBatchNorm2d, own.Crop, own.F.resize, own.InterpolationMode.BILINEAR):
        with pytest.raises(FamilyError, match=r"needs torchvision, which is not installed; pip install \"torchvision"):
            called(3)


def test_torchvision_itself_stays_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "NEEDS", frozenset({"own_vision"}))
    finders = list(sys.meta_path)
    vision.import_module("own_vision")
    assert sys.meta_path == finders
    with pytest.raises(ModuleNotFoundError, match="No module named 'torchvision'"):
        importlib.import_module("torchvision")
    with pytest.raises(FamilyError, match=r"torchvision is not installed; pip install \"torchvision"):
        hfta.family("torchvision.models.resnet18")


@pytest.mark.parametrize(
    ("torch_version", "command"),
    [
        ("2.13.0", 'pip install "torchvision==0.28.*"'),
        ("2.11.1+cpu", 'pip install "torchvision==0.26.*" from the package index that torch cpu came from'),
        ("3.0.0", "pip install torchvision"),
    ],
)
def test_the_command_names_the_torchvision_of_this_torch(
    torch_version: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: torch_version)
    assert vision.install_command() == command


def test_a_torchvision_for_another_torch_is_named(folder: Path) -> None:
    """As torchvision 0.28.0 from PyPI says it to a CPU build of torch."""
    (folder / "torchvision").mkdir()
    code = "import torch\n@torch.library.register_fake('torchvision::nms')\ndef meta_nms(): ...\n"
    (folder / "torchvision" / "__init__.py").write_text(code, encoding="utf-8")
    info = folder / "torchvision-0.28.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n", encoding="utf-8")
    importlib.invalidate_caches()
    for name in ("torchvision.models.resnet18", "own_vision.Net"):
        with pytest.raises(FamilyError) as caught:
            hfta.family(name)
        error: Any = caught.value
        assert error.where == name
        assert error.what.startswith(f"torchvision 0.28.0 can't be imported with torch {torch.__version__}")
        assert "operator torchvision::nms does not exist" in error.got
        assert error.remedy.startswith("pip uninstall torchvision; if you need it, then pip install")


def test_other_errors_of_an_import_are_not_its_fault(folder: Path) -> None:
    (folder / "own_vision.py").write_text("raise ValueError('at import')\n", encoding="utf-8")
    with pytest.raises(FamilyError, match=r"own_vision can't be imported \(ValueError: at import\)"):
        hfta.family("own_vision.Net")
