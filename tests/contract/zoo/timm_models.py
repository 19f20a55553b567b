"""Unmodified models of timm at small sizes, with building blocks that torchvision does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from tests.contract.zoo.model import Model
from tests.contract.zoo.packages import package
from tests.contract.zoo.torchvision_models import images


def _named(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A model by its name in timm's registry."""
    return lambda: package("timm").create_model(name, pretrained=False, num_classes=5, **settings)


def _made(module: str, kind: str, **settings: Any) -> Callable[[], nn.Module]:
    """A model by its class in ``timm.models``."""
    return lambda: getattr(package(f"timm.models.{module}"), kind)(num_classes=5, **settings)


def _bit() -> nn.Module:
    std = package("timm.layers").StdConv2d
    return package("timm.models.resnetv2").ResNetV2(
        (1, 1), (128, 256), num_classes=5, conv_layer=std, stem_chs=32, drop_path_rate=0.4
    )


_WINDOWS = {"img_size": 16, "patch_size": 2, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}
_TOKENS = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}

# fmt: off
MODELS = [
    Model("timm se resnet", _named("test_resnet", block_args={"attn_layer": "se"}, drop_path_rate=0.4), images(32)),
    Model("timm efficientnet", _named("test_efficientnet", drop_path_rate=0.4, drop_rate=0.2), images(64), core=True),
    Model("timm byobnet", _named("test_byobnet", drop_path_rate=0.4), images(32)),
    Model("timm nfnet", _named("test_nfnet", drop_path_rate=0.4), images(32), core=True),
    Model("timm bit", _bit, images(32)),
    Model("timm convnext", _named("test_convnext", drop_path_rate=0.4), images(32)),
    Model("timm vit", _named("test_vit", img_size=32, drop_path_rate=0.4, proj_drop_rate=0.1), images(32)),
    Model("timm vit, tokens dropped",
          _made("vision_transformer", "VisionTransformer", patch_drop_rate=0.5, **_TOKENS), images(16)),
    Model("timm beit",
          _made("beit", "Beit", use_rel_pos_bias=True, drop_path_rate=0.4, init_values=0.1, **_TOKENS), images(16)),
    Model("timm eva", _made("eva", "Eva", use_rot_pos_emb=True, drop_path_rate=0.4, **_TOKENS), images(16)),
    Model("timm swin", _made("swin_transformer", "SwinTransformer", drop_path_rate=0.4, **_WINDOWS), images(16),
          core=True),
    Model("timm swin v2", _made("swin_transformer_v2", "SwinTransformerV2", drop_path_rate=0.4, **_WINDOWS),
          images(16)),
    Model("timm mixer", _made("mlp_mixer", "MlpMixer", img_size=16, patch_size=4, num_blocks=2, embed_dim=16,
                              drop_path_rate=0.4), images(16)),
    Model("timm mobilevit", _named("mobilevit_xxs"), images(64)),
    Model("timm maxvit", _named("maxvit_rmlp_pico_rw_256", embed_dim=(32, 32), depths=(1, 1), stem_width=(8, 8),
                                img_size=64), images(64)),
    Model("timm cait", _made("cait", "Cait", **_TOKENS), images(16)),
    Model("timm xcit", _made("xcit", "Xcit", **{**_TOKENS, "patch_size": 8}), images(16)),
    Model("timm ghostnet", _named("ghostnet_050"), images(64)),
    Model("timm levit", _named("levit_128s", img_size=64), images(64)),
    Model("timm edgenext", _named("edgenext_xx_small"), images(64)),
    Model("timm pvt v2", _named("pvt_v2_b0"), images(32)),
    Model("timm volo", _made("volo", "VOLO", layers=(1, 1), img_size=32, patch_size=8, stem_hidden_dim=8,
                             embed_dims=(8, 16), num_heads=(2, 2), pos_drop_rate=0.1), images(32)),
    Model("timm coat", _named("coat_lite_tiny", img_size=32), images(32)),
    Model("timm vovnet", _named("ese_vovnet19b_slim_dw"), images(64)),
    Model("timm dla", _named("dla46_c"), images(64)),
    Model("timm mambaout", _named("test_mambaout"), images(32)),
    Model("timm fastvit", _named("fastvit_t8"), images(64)),
    Model("timm hiera", _made("hiera", "Hiera", img_size=(32, 32), embed_dim=8, num_heads=1, stages=(1, 1, 1, 1),
                              drop_path_rate=0.4), images(32)),
    Model("timm focalnet", _made("focalnet", "FocalNet", embed_dim=8, depths=(1, 1), drop_path_rate=0.4), images(32)),
    Model("timm davit", _made("davit", "DaVit", depths=(1, 1), embed_dims=(8, 16), num_heads=(2, 2), window_size=4),
          images(32)),
    Model("timm inception next", _named("inception_next_atto"), images(32)),
    Model("timm regnet", _named("regnety_002"), images(64)),
    Model("timm nf_regnet", _named("nf_regnet_b0"), images(32)),
    Model("timm convmixer", _made("convmixer", "ConvMixer", dim=16, depth=2, kernel_size=3, patch_size=4), images(16)),
    Model("timm starnet", _named("starnet_s1"), images(32)),
]
# fmt: on
