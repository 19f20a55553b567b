"""Unmodified models of torchvision at small sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.contract.zoo.agree import Sample
from tests.contract.zoo.model import Model
from tests.contract.zoo.packages import package


def images(size: int, batch: int = 2) -> Callable[[], Sample]:
    """Pictures, not too small: where the last batch norm sees two numbers only, one ulp moves gradients by 1e-8."""
    return lambda: Sample((torch.randn(batch, 3, size, size, dtype=torch.float64),))


def _named(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A model by its function in `torchvision.models`."""

    def build() -> nn.Module:
        models = package("torchvision.models")
        return getattr(models.segmentation if name.startswith("lraspp") else models, name)(weights=None, **settings)

    return build


def _densenet() -> nn.Module:
    return package("torchvision.models").DenseNet(4, (2, 2, 2), 8, bn_size=2, drop_rate=0.1, num_classes=5)


def _swin(version: int) -> nn.Module:
    swin = package("torchvision.models.swin_transformer")
    extra = {} if version == 1 else {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
    return swin.SwinTransformer(
        [2, 2], 8, [2, 2], [2, 4], [4, 4], dropout=0.1, stochastic_depth_prob=0.4, num_classes=5, **extra
    )


def _convnext() -> nn.Module:
    convnext = package("torchvision.models.convnext")
    settings = [convnext.CNBlockConfig(8, 16, 2), convnext.CNBlockConfig(16, None, 2)]
    return convnext.ConvNeXt(settings, stochastic_depth_prob=0.4, num_classes=5)


def _vit() -> nn.Module:
    return package("torchvision.models").VisionTransformer(
        16, 4, 2, 2, 16, 32, dropout=0.1, attention_dropout=0.1, num_classes=5
    )


def _efficientnet() -> nn.Module:
    efficientnet = package("torchvision.models.efficientnet")
    settings = [
        efficientnet.FusedMBConvConfig(2, 3, 1, 8, 8, 1),
        efficientnet.MBConvConfig(2, 3, 2, 8, 16, 2, 1.0, 1.0),
    ]
    return efficientnet.EfficientNet(settings, 0.2, stochastic_depth_prob=0.4, num_classes=5, last_channel=32)


def _regnet() -> nn.Module:
    regnet = package("torchvision.models.regnet")
    block = regnet.BlockParams([2, 2], [8, 16], [4, 4], [1.0, 1.0], [2, 2], 0.25)
    return regnet.RegNet(block, num_classes=5, stem_width=8)


def _maxvit() -> nn.Module:
    return package("torchvision.models").MaxVit(
        (32, 32), 8, 4, [8, 16], [1, 1], 4, 0.4, mlp_dropout=0.1, attention_dropout=0.1, num_classes=5
    )


def _video() -> nn.Module:
    resnet = package("torchvision.models.video.resnet")
    made = resnet.VideoResNet(
        resnet.BasicBlock, [resnet.Conv3DSimple] * 4, [1, 1, 1, 1], resnet.BasicStem, num_classes=5
    )
    # The last two stages hold nearly all of its weights, and nothing else that is new.
    made.layer3, made.layer4, made.fc = nn.Identity(), nn.Identity(), nn.Linear(128, 5)
    return made


MODELS = [
    Model("torchvision resnet18", _named("resnet18", num_classes=5), images(64), core=True),
    Model("torchvision mobilenet_v3_small", _named("mobilenet_v3_small", num_classes=5), images(64)),
    Model("torchvision densenet", _densenet, images(32)),
    Model("torchvision googlenet", _named("googlenet", num_classes=5, aux_logits=True, init_weights=False), images(48)),
    Model("torchvision swin", partial(_swin, 1), images(16), core=True),
    Model("torchvision swin v2", partial(_swin, 2), images(16)),
    Model("torchvision convnext", _convnext, images(32)),
    Model("torchvision vit", _vit, images(16)),
    Model("torchvision efficientnet", _efficientnet, images(32), core=True),
    Model("torchvision squeezenet", _named("squeezenet1_1", num_classes=5), images(32)),
    Model("torchvision shufflenet", _named("shufflenet_v2_x0_5", num_classes=5), images(64)),
    Model("torchvision regnet", _regnet, images(32)),
    Model("torchvision maxvit", _maxvit, images(32)),
    Model("torchvision lraspp", _named("lraspp_mobilenet_v3_large", num_classes=3, weights_backbone=None), images(32)),
    Model("torchvision video resnet", _video, lambda: Sample((torch.randn(2, 3, 4, 12, 12, dtype=torch.float64),))),
]
