"""MobileNetV3, large and small: inverted residuals with squeeze-and-excitation and hard swish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from hfta_nb.models.model_zoo.mobilenet_v2 import divisible, initialise
from hfta_nb.models.recipes import Family, from_function
from hfta_nb.search.grid import Factor

Row = tuple[int, int, int, bool, bool, int]

LARGE: tuple[Row, ...] = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)
SMALL: tuple[Row, ...] = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)
"""Per block: kernel, hidden channels, output channels, squeeze-and-excitation, hard swish, stride (tables 1 and 2)."""


class SqueezeExcite(nn.Module):
    """Each channel times a gate between 0 and 1 that sees the mean of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = divisible(channels / 4)
        self.down, self.up = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.pool, self.gate = nn.AdaptiveAvgPool2d(1), nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.up(self.down(self.pool(x)).relu()))


def _conv(channels: int, out: int, kernel: int, stride: int, groups: int, activation: nn.Module) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, out, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(out, eps=1e-3, momentum=0.01), activation]


class Block(nn.Module):
    """Wider, filtered per channel, gated, and narrow again without activation."""

    def __init__(self, channels: int, kernel: int, hidden: int, out: int, se: bool, swish: bool, stride: int) -> None:
        super().__init__()
        kind = nn.Hardswish if swish else nn.ReLU
        layers = _conv(channels, hidden, 1, 1, 1, kind()) if hidden != channels else []
        layers += _conv(hidden, hidden, kernel, stride, hidden, kind())
        if se:
            layers.append(SqueezeExcite(hidden))
        self.layers = nn.Sequential(*layers, *_conv(hidden, out, 1, 1, 1, nn.Identity()))
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


def _build(
    rows: Sequence[Row], last: int, multiplier: float, dropout: float, stem: str, in_channels: int, num_classes: int
) -> nn.Module:
    small, strides = stem == "cifar", 0
    channels = divisible(16 * multiplier)
    layers = _conv(in_channels, channels, 3, 1 if small else 2, 1, nn.Hardswish())
    for kernel, hidden, width, se, swish, stride in rows:
        strides += stride == 2
        step = 1 if small and strides == 1 else stride
        out = divisible(width * multiplier)
        layers.append(Block(channels, kernel, divisible(hidden * multiplier), out, se, swish, step))
        channels = out
    wide, last = 6 * channels, divisible(last * multiplier)
    layers += _conv(channels, wide, 1, 1, 1, nn.Hardswish())
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, last), nn.Hardswish()]
    model = nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(last, num_classes))
    initialise(model)
    return model


def _family(name: str, rows: Sequence[Row], last: int, help: str) -> Family:
    def build(
        width_multiplier: Factor = 1.0,
        dropout: float = 0.2,
        stem: Literal["cifar", "imagenet"] = "cifar",
        in_channels: int = 3,
        num_classes: int = 10,
    ) -> nn.Module:
        return _build(rows, last, width_multiplier, dropout, stem, in_channels, num_classes)

    return from_function(build, name=name, data="digits", help=help, inputs="images")


# Source: Howard et al. 2019 (arXiv 1905.02244), with torchvision's initialisation and settings of batch norm. The
# stem "cifar", for small images, leaves out the first two of the five strides.
mobilenet_v3_large = _family("mobilenet_v3_large", LARGE, 1280, "MobileNetV3-Large: squeeze-excite and hard swish.")
mobilenet_v3_small = _family("mobilenet_v3_small", SMALL, 1024, "MobileNetV3-Small: squeeze-excite and hard swish.")
