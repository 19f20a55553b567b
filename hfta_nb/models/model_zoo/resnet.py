"""Residual networks for images: resnet18, resnet34 and resnet50."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from hfta_nb.models.recipes import Family, from_function
from hfta_nb.search.grid import Size


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(out)) + self.shortcut(x)).relu()


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolutions around a shortcut."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut = _shortcut(channels, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(self.conv1(x)).relu()
        out = self.bn2(self.conv2(out)).relu()
        return (self.bn3(self.conv3(out)) + self.shortcut(x)).relu()


def _shortcut(channels: int, out: int, stride: int) -> nn.Module:
    if stride == 1 and channels == out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    """Images ``[N, in_channels, H, W]`` to logits ``[N, num_classes]``.

    Args:
        block: its kind.
        depths: blocks per stage; the channels double from stage to stage, the resolution halves.
        width: channels of the first stage.
        stem: "imagenet" is a 7x7 convolution and a max pooling, which divide the resolution by 4; "cifar", for small
            images, a 3x3 convolution that keeps it.

    Source: He et al. 2016 (arXiv 1512.03385); as torchvision's, the stride of a bottleneck is in its 3x3 convolution.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, ...],
        width: int,
        stem: str,
        in_channels: int,
        num_classes: int,
    ) -> None:
        super().__init__()
        small = stem == "cifar"
        first = nn.Conv2d(in_channels, width, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
        layers: list[nn.Module] = [first, nn.BatchNorm2d(width), nn.ReLU()]
        self.stem = nn.Sequential(*layers, *([] if small else [nn.MaxPool2d(3, 2, 1)]))
        stages, channels = [], width
        for i, depth in enumerate(depths):
            blocks = []
            for j in range(depth):
                blocks.append(block(channels, width * 2**i, 2 if i and not j else 1))
                channels = width * 2**i * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)))


def _family(name: str, block: Any, depths: tuple[int, ...]) -> Family:
    make: Callable[..., nn.Module] = partial(ResNet, block, depths)

    def build(
        width: Size = 64, stem: Literal["cifar", "imagenet"] = "cifar", in_channels: int = 3, num_classes: int = 10
    ) -> nn.Module:
        return make(width, stem, in_channels, num_classes)

    layers = 2 + sum(depths) * (2 if block is BasicBlock else 3)
    text = f"Residual network of {layers} layers."
    return from_function(build, name=name, data="digits", help=text, inputs="images")


resnet18 = _family("resnet18", BasicBlock, (2, 2, 2, 2))
resnet34 = _family("resnet34", BasicBlock, (3, 4, 6, 3))
resnet50 = _family("resnet50", Bottleneck, (3, 4, 6, 3))
