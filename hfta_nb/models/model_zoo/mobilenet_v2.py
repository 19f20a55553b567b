"""MobileNetV2: inverted residuals with linear bottlenecks."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from hfta_nb.models.recipes import from_function
from hfta_nb.search.grid import Factor

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Per stage: expansion, output channels, blocks, stride of the first block (table 2 of the paper)."""


def divisible(channels: float, by: int = 8) -> int:
    """The nearest multiple, at least `by` and at least 90% of what was asked."""
    near = max(by, int(channels + by / 2) // by * by)
    return near + by if near < 0.9 * channels else near


def _conv(channels: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    padding = (kernel - 1) // 2
    convolution = nn.Conv2d(channels, out, kernel, stride, padding, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(out), nn.ReLU6()]


class InvertedResidual(nn.Module):
    """Wider by a 1x1 convolution, filtered per channel, and narrow again without activation."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels * expansion
        wider = _conv(channels, hidden) if expansion != 1 else []
        narrow = [nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out)]
        self.layers = nn.Sequential(*wider, *_conv(hidden, hidden, 3, stride, hidden), *narrow)
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


def initialise(module: nn.Module) -> None:
    """As torchvision's MobileNets: convolutions by their fan out, linear layers small."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0.0, 0.01)
            nn.init.zeros_(layer.bias)


def build(
    width_multiplier: Factor = 1.0,
    dropout: float = 0.2,
    stem: Literal["cifar", "imagenet"] = "cifar",
    in_channels: int = 3,
    num_classes: int = 10,
) -> nn.Module:
    """MobileNetV2: inverted residuals with linear bottlenecks.

    Args:
        width_multiplier: of all channels; the last layer's never fall below 1280.
        stem: "cifar", for small images, leaves out the first two of the five strides.

    Source: Sandler et al. 2018 (arXiv 1801.04381); initialised as torchvision's.
    """
    channels, strides = divisible(32 * width_multiplier), 1 if stem == "cifar" else 2
    layers: list[nn.Module] = _conv(in_channels, channels, 3, strides)
    for i, (expansion, width, count, stride) in enumerate(STAGES):
        out = divisible(width * width_multiplier)
        for j in range(count):
            step = 1 if j or (stem == "cifar" and i == 1) else stride
            layers.append(InvertedResidual(channels, out, step, expansion))
            channels = out
    last = divisible(1280 * max(1.0, width_multiplier))
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(last, num_classes)]
    model = nn.Sequential(*layers, *_conv(channels, last), *head)
    initialise(model)
    return model


mobilenet_v2 = from_function(build, name="mobilenet_v2", data="digits", inputs="images")
