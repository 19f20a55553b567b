"""The built-in families: sizes are those of the papers and of torchvision, outputs have the task's shape."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import FamilyError, GridError
from hfta_nb.models.model_zoo import BUILT_IN
from hfta_nb.models.recipes import from_function
from hfta_nb.search.grid import AxisSpec, Bounds

Share = Annotated[float, Bounds(above=0)]
IMAGENET: dict[str, Any] = {"stem": "imagenet", "num_classes": 1000}
BERT: dict[str, Any] = {"vocab_size": 30522, "context": 512}

# torchvision's, but for: gpt (GPT-2 small), unet (the paper's network, 31.03 million), bert (encoder and head for
# masked tokens; with the pooler's 512 * 512 + 512 it is the 41.7 million that Turc et al. state), dlrm (by hand),
# pointnet_cls (3.5 and 0.8 million in the paper).
COUNTS = [
    ("resnet18", IMAGENET, 11_689_512),
    ("resnet34", IMAGENET, 21_797_672),
    ("resnet50", IMAGENET, 25_557_032),
    ("mobilenet_v2", IMAGENET, 3_504_872),
    ("mobilenet_v3_large", IMAGENET, 5_483_032),
    ("mobilenet_v3_small", IMAGENET, 2_542_856),
    (
        "vit",
        {"patch_size": 16, "width": 768, "depth": 12, "heads": 12, "image_size": 224, "num_classes": 1000},
        86_567_656,
    ),
    ("gpt", {"width": 768, "depth": 12, "heads": 12, "vocab_size": 50257, "context": 1024}, 124_439_808),
    ("bert", {"size": "medium", **BERT}, 41_404_730),
    ("bert", {"size": "tiny", **BERT}, 4_416_698),
    ("unet", {"width": 64, "depth": 4, "norm": False, "in_channels": 1, "num_classes": 2}, 31_030_658),
    ("pointnet_cls", {"feature_transform": True, "num_classes": 40}, 3_465_521),
    ("pointnet_cls", {"input_transform": False, "num_classes": 40}, 809_064),
    (
        "dlrm",
        {
            "width": 4,
            "dense_features": 3,
            "categorical_features": 2,
            "categories": 5,
            "bottom_width": 6,
            "top_width": 8,
        },
        (3 * 6 + 6 + 6 * 4 + 4) + 2 * 5 * 4 + (7 * 8 + 8 + 8 + 1),
    ),
]


@pytest.mark.parametrize(("name", "axes", "count"), COUNTS)
def test_parameters_are_those_of_the_paper(name: str, axes: dict[str, Any], count: int) -> None:
    with torch.device("meta"):
        module = hfta.family(name).build(**axes)
    assert sum(p.numel() for p in module.parameters()) == count


@pytest.mark.parametrize(("size", "generator", "discriminator"), [(64, 3_576_704, 2_765_568), (16, None, None)])
def test_networks_of_dcgan(size: int, generator: int | None, discriminator: int | None) -> None:
    torch.manual_seed(0)
    module = hfta.family("dcgan").build(image_size=size)
    if generator is not None:  # as published for 64x64
        assert sum(p.numel() for p in module.generator.parameters()) == generator
        assert sum(p.numel() for p in module.discriminator.parameters()) == discriminator
    for layer in module.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.ConvTranspose2d):
            assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1)
            assert layer.bias is None
        elif isinstance(layer, torch.nn.BatchNorm2d):
            assert layer.weight.mean().item() == pytest.approx(1.0, abs=0.02)
            assert not layer.bias.any()
    x = torch.rand(3, 3, size, size) * 2 - 1
    images, real = module(x)
    assert real is x
    assert images.shape == module.generate(3).shape == x.shape
    assert images.abs().max() <= 1
    assert [v.shape for v in module(x, phase="discriminator")] == [(3,), (3,)]
    assert module(x, phase="generator").shape == (3,)


@pytest.mark.parametrize("size", [8, 24, 48, 63])
def test_sides_that_dcgan_refuses(size: int) -> None:
    with pytest.raises(FamilyError, match=f"dcgan, image_size: not a power of two from 16; got {size}"):
        hfta.family("dcgan").build(image_size=size)


IMAGES = [f.name for f in BUILT_IN if {"in_channels", "num_classes"} <= set(f.facts) and not f.name.startswith("point")]


def test_which_families_take_images() -> None:
    assert set(IMAGES) == {
        *("cnn", "resnet18", "resnet34", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small"),
        *("vit", "unet"),
    }


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_images_of_other_sizes(name: str, stem: str) -> None:
    family = hfta.family(name)
    axes: dict[str, Any] = {"stem": stem} if "stem" in family.axes else {}
    size = 17 if name != "vit" else 8
    module = family.build(in_channels=2, num_classes=7, **axes).eval()
    with torch.no_grad():
        out = module(torch.randn(2, 2, size, size))
    assert out.shape == ((2, 7, size, size) if name == "unet" else (2, 7))


def test_stems_keep_or_divide_the_resolution() -> None:
    x = torch.zeros(1, 3, 64, 64)
    for name, sizes in (("resnet18", (8, 2)), ("mobilenet_v2", (8, 2)), ("mobilenet_v3_large", (8, 2))):
        for stem, size in zip(("cifar", "imagenet"), sizes, strict=True):
            module = hfta.family(name).build(stem=stem)
            seen: list[torch.Size] = []
            pools = [m for m in module.modules() if isinstance(m, nn.AdaptiveAvgPool2d)]
            pools[-1].register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0].shape))
            module.eval()(x)
            assert seen[0][-1] == size


@pytest.mark.parametrize("name", ["transformer_lm", "gpt", "lstm_lm", "gru_lm"])
def test_language_models_do_not_see_what_comes_next(name: str) -> None:
    torch.manual_seed(0)
    module = hfta.family(name).build(width=16, vocab_size=11).eval()
    tokens = torch.randint(0, 11, (2, 9))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    with torch.no_grad():
        one, other = module(tokens), module(changed)
    assert one.shape == (2, 9, 11)
    torch.testing.assert_close(one[:, :5], other[:, :5])
    assert not torch.allclose(one[:, 5:], other[:, 5:])


def test_bert_sees_both_sides() -> None:
    torch.manual_seed(0)
    module = hfta.family("bert").build(size="own", width=16, heads=2, vocab_size=11).eval()
    tokens = torch.randint(0, 11, (2, 9))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    with torch.no_grad():
        assert not torch.allclose(module(tokens)[:, 0], module(changed)[:, 0])


@pytest.mark.parametrize("name", ["pointnet_cls", "pointnet_seg"])
def test_pointnet_does_not_mind_the_order_of_points(name: str) -> None:
    torch.manual_seed(0)
    module = hfta.family(name).build(width=4, feature_transform=True, num_classes=3, in_channels=6).eval()
    x, order = torch.randn(2, 20, 6), torch.randperm(20)
    with torch.no_grad():
        (logits, transform), (turned, _) = module(x), module(x[:, order])
    assert transform.shape == (2, 4, 4)
    torch.testing.assert_close(turned, logits if name == "pointnet_cls" else logits[:, order])


def test_pointnet_pays_for_a_transform_that_is_no_rotation() -> None:
    family = hfta.family("pointnet_cls")
    loss = family.loss
    assert loss is not None
    logits, target = torch.zeros(2, 3), torch.tensor([0, 1])
    eye = torch.eye(4).repeat(2, 1, 1).requires_grad_()
    plain = loss(logits, target)
    same = loss((logits, eye), target)
    same.backward()
    assert same.item() == plain.item()
    assert eye.grad is not None
    assert torch.isfinite(eye.grad).all()
    # |I - 4 I| over 4 axes is 6.
    assert loss((logits, 2 * eye), target).item() == pytest.approx(plain.item() + 1e-3 * 6)


def test_a_patch_that_does_not_fit() -> None:
    with pytest.raises(FamilyError, match="whole patches; got 3; accepted: a divisor of the image's size, 8"):
        hfta.family("vit").build(patch_size=3)


@pytest.mark.parametrize("family", BUILT_IN, ids=lambda family: family.name)
def test_sizes_have_bounds(family: hfta.Family, tmp_path: Path) -> None:
    sizes = {n: s for n, s in family.axes.items() if s.type == "int" or n in ("width_multiplier", "mlp_ratio")}
    assert sizes
    for name, spec in sizes.items():
        wrong = [-1, 10**9, *([] if spec.low == 0 else [0])]
        for value in wrong:
            with pytest.raises(GridError, match=rf"^{name}: out of bounds; got .*; accepted: .* and at most "):
                hfta.Study(family, {name: [value]}, directory=tmp_path / "run")
        assert spec.check(spec.default) == spec.default


def test_bounds_of_a_family_of_ones_own(tmp_path: Path) -> None:
    def build(width: Annotated[int, "of the layer", Bounds(low=2)] = 4, share: Share = 1.0) -> nn.Module:
        return nn.LazyLinear(10)

    own = from_function(build)
    assert own.axes["width"] == AxisSpec("width", "int", 4, low=2)
    assert own.axes["share"] == AxisSpec("share", "float", 1.0, above=0)
    with pytest.raises(GridError, match=r"width: out of bounds; got 1; accepted: at least 2$"):
        hfta.Study(own, {"width": [1, 2]}, directory=tmp_path)
    with pytest.raises(GridError, match=r"share: out of bounds; got 0.0; accepted: above 0$"):
        hfta.Study(own, share=0, directory=tmp_path)


def test_what_can_not_even_be_built_is_too_large(tmp_path: Path) -> None:
    def build(width: int = 4) -> nn.Module:
        return nn.Linear(width, width)

    with pytest.raises(
        FamilyError, match=r"build, #0 width=10000000000: .*too large to be built;.*choose smaller sizes"
    ):
        hfta.Study(from_function(build), {"width": [10**10]}, directory=tmp_path)
