"""What a model, loss or metric raises names the user's own line, and the shapes that a member's tensors have there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import MemberError

X, Y, CLASSES = torch.randn(12, 4), torch.randn(12, 1), torch.arange(12) % 3


class Built(nn.Module):
    """Layers, and a forward with a mistake."""

    def __init__(self, call: Callable[[Any, Tensor], Any], **layers: nn.Module) -> None:
        super().__init__()
        self.call = call
        self.scale = nn.Parameter(torch.ones(7))
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Any:
        return self.call(self, x)


def narrow(self: Any, x: Tensor) -> Tensor:
    h = self.body(x)
    return self.head(h)


def unflattened(self: Any, x: Tensor) -> Tensor:
    maps = self.body(x.view(12, 1, 2, 2))
    return self.head(maps)


def scaled(self: Any, x: Tensor) -> Tensor:
    h = self.head(x)
    return h * self.scale


def looked_up(self: Any, x: Tensor) -> Tensor:
    numbers = CLASSES.to(x.device)
    return self.head(numbers)


def missing_key(self: Any, x: Tensor) -> Tensor:
    features = {"a": x, "b": x}
    return self.head(features["c"])


def none(self: Any, x: Tensor) -> None:
    self.head(x)


def plain(self: Any, x: Tensor) -> Tensor:
    return self.head(x)


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y)


def of_four(out: Tensor, y: Tensor) -> Tensor:
    return out[:, 3].mean()


def of_parts(out: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(out["mean"], y)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs)


HERE = r"tests/contract/test_handed_messages\.py:\d+: "
HEAD = r"self\.head\.weight \[3, 9\], self\.head\.bias \[3\]"
MISTAKES: dict[str, tuple[Callable[[], nn.Module], Any, Any, str]] = {
    "in_features": (
        lambda: Built(narrow, body=linear(4, 8), head=linear(9, 3)),
        (cross_entropy, CLASSES),
        "`head`",
        rf"cannot be multiplied \(12x8 and 9x3\); {HERE}return self\.head\(h\), where h \[12, 8\], {HEAD}$",
    ),
    "flatten": (
        lambda: Built(unflattened, body=nn.Conv2d(1, 9, 1), head=linear(9, 3)),
        (cross_entropy, CLASSES),
        "`head`",
        rf"{HERE}return self\.head\(maps\), where maps \[12, 9, 2, 2\], {HEAD}$",
    ),
    "parameter": (
        lambda: Built(scaled, head=linear(4, 5)),
        (F.mse_loss, Y),
        "the model's own forward",
        rf"{HERE}return h \* self\.scale, where h \[12, 5\], self\.scale \[7\]$",
    ),
    "embedding": (
        lambda: Built(looked_up, head=nn.Embedding(2, 3)),
        (cross_entropy, CLASSES),
        "`head`",
        rf"{HERE}return self\.head\(numbers\), where numbers \[12\] int64 .*, self\.head\.weight \[2, 3\]$",
    ),
    "key": (
        lambda: Built(missing_key, head=linear(4, 1)),
        (F.mse_loss, Y),
        "the model's own forward",
        rf"KeyError: 'c'; {HERE}return self\.head\(features\[\"c\"\]\), where features a dict of a, b$",
    ),
    "none": (
        lambda: Built(none, head=linear(4, 1)),
        (F.mse_loss, Y),
        "the loss or metric",
        r"'NoneType' .*; where input None; does the model's forward return its result\?$",
    ),
    "dtype of the target": (
        lambda: Built(plain, head=linear(4, 3)),
        (cross_entropy, CLASSES.int()),
        "the loss or metric",
        rf"{HERE}return F\.cross_entropy\(out, y\), where out \[12, 3\], y \[12\] int32$",
    ),
    "classes": (
        lambda: Built(plain, head=linear(4, 2)),
        (cross_entropy, CLASSES),
        "the loss or metric",
        r"Target 2 is out of bounds; .*, where out \[12, 2\], y \[12\] int64",
    ),
    "index": (
        lambda: Built(plain, head=linear(4, 3)),
        (of_four, Y),
        "the loss or metric",
        rf"IndexError: index 3 is out .*; {HERE}return out\[:, 3\]\.mean\(\), where out \[12, 3\]$",
    ),
    "dict": (
        lambda: Built(plain, head=linear(4, 1)),
        (of_parts, Y),
        "the loss or metric",
        rf"{HERE}return F\.mse_loss\(out\[\"mean\"\], y\), where out \[12, 1\]",
    ),
    "layers of torch": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(6, 1)),
        (F.mse_loss, Y),
        "`1`",
        r"\(12x8 and 6x1\); where input \[12, 8\], self\.weight \[1, 6\], self\.bias \[1\]$",
    ),
}


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_by_the_line_and_the_shapes_of_one_member(name: str, members: int) -> None:
    build, (loss, y), place, words = MISTAKES[name]
    array = hfta.fuse([build() for _ in range(members)])
    with pytest.raises(MemberError, match=rf"^member 0, {place}: .*{words}"):
        array.backward(loss, X, y)


def test_a_study_tells_it_as_well(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return Built(narrow, body=linear(4, 8), head=linear(9, 3))

    study = hfta.Study(build, {"seed": [0, 1]}, (X, CLASSES, X, CLASSES), epochs=1, directory=tmp_path, device="cpu")
    with pytest.raises(MemberError, match=rf"{HERE}return self\.head\(h\), where h \[12, 8\], {HEAD}$"):
        study.fit(progress=False)
