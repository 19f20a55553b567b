"""Policies, losses with a state, tables, signals and geometry."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.unseen.models import Then, add, drawn, get, made


class WithLoss(nn.Module):
    """A network and a loss of a package, which has a state or weights, with labels of its own."""

    def __init__(self, loss: nn.Module, width: int = 8, **keywords: Any) -> None:
        super().__init__()
        self.net, self.loss, self.keywords = nn.Linear(4, width), loss, keywords

    def forward(self, x: Tensor) -> Any:
        labels = torch.arange(len(x)) % 3
        return self.loss(self.net(x), labels, **self.keywords)


class _Tagger(nn.Module):
    """A conditional random field on the outputs of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.last = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)
        self.crf = get("torchcrf.CRF")(3, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        scores = self.last(self.rnn(x)[0])
        with torch.no_grad():
            best = torch.tensor(self.crf.decode(scores))
        return self.crf(scores, (best + 1) % 3, reduction="mean")


class _Policy(nn.Module):
    """The actions, values and probabilities of a policy of stable-baselines3."""

    def __init__(self, kind: str, **keywords: Any) -> None:
        super().__init__()
        spaces: Any = importlib.import_module("gymnasium.spaces")
        space = spaces.Box(-1, 1, (4,)) if kind == "box" else spaces.Discrete(3)
        build = get("stable_baselines3.common.policies.ActorCriticPolicy")
        self.policy = build(spaces.Box(-9, 9, (4,)), space, lambda _: 1e-3, net_arch=[8], **keywords)

    def forward(self, x: Tensor) -> Any:
        policy = self.policy  # its own forward makes float32 of its input
        latent, critic = policy.mlp_extractor(x)
        chances = policy._get_action_dist_from_latent(latent)
        actions = chances.get_actions()
        return policy.value_net(critic), chances.log_prob(actions.detach()), chances.entropy()


class _Wavelets(nn.Module):
    """Convolutions on the coefficients of wavelets, and back."""

    def __init__(self) -> None:
        super().__init__()
        package: Any = importlib.import_module("pytorch_wavelets")
        self.there, self.back = package.DWTForward(J=2, wave="db2"), package.DWTInverse(wave="db2")
        self.low, self.high = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Any:
        low, high = self.there(x)
        return self.back((self.low(low), [high[0], self.high(high[1][:, 0])[:, None]]))


class _OnManifold(nn.Module):
    """Points of a ball and orthogonal weights as parameters of geoopt."""

    def __init__(self) -> None:
        super().__init__()
        g: Any = importlib.import_module("geoopt")
        self.ball, stiefel = g.PoincareBall(c=1.0, learnable=True), g.CanonicalStiefel()
        self.points = g.ManifoldParameter(0.1 * torch.randn(3, 4), manifold=self.ball)
        self.turn = g.ManifoldParameter(torch.linalg.qr(torch.randn(4, 4))[0], manifold=stiefel)

    def forward(self, x: Tensor) -> Any:
        there = self.ball.expmap0(0.1 * x @ self.turn)
        return self.ball.dist(there[:, None], self.points)


def _ctr(kind: str) -> nn.Module:
    inputs: Any = importlib.import_module("deepctr_torch.inputs")
    columns = [
        inputs.SparseFeat("a", 3, 4), inputs.SparseFeat("b", 3, 4), inputs.DenseFeat("c", 1), inputs.DenseFeat("d", 1)
    ]  # fmt: skip
    build = get(f"deepctr_torch.models.{kind}")
    keywords = {"dnn_hidden_units": (8, 8), "dnn_dropout": 0.1} if kind != "AFM" else {}
    model: nn.Module = build(columns, columns, init_std=0.5, seed=int(torch.randint(99, ())), **keywords)
    return model


def _clicks() -> tuple[Any, ...]:
    return (torch.cat([torch.randint(0, 3, (6, 2)).float(), torch.randn(6, 2)], 1),)


class _Dropped(nn.Module):
    """Blocks left out, more of them with each call."""

    def __init__(self) -> None:
        super().__init__()
        package: Any = importlib.import_module("dropblock")
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.drop = package.LinearScheduler(package.DropBlock2D(0.0, block_size=3), 0.1, 0.5, nr_steps=4)

    def forward(self, x: Tensor) -> Any:
        self.drop.step()
        return self.drop(self.conv(x))


class _Cosines(nn.Module):
    """A filter on cosines, and a linear layer that is one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(8))
        self.layer = get("torch_dct.LinearDCT")(8, "dct")

    def forward(self, x: Tensor) -> Any:
        dct: Any = importlib.import_module("torch_dct")
        return dct.idct(dct.dct(x, norm="ortho") * self.filter, norm="ortho") + self.layer(x)


def _mup() -> nn.Module:
    mup: Any = importlib.import_module("mup")

    def build(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, width), nn.Tanh(), mup.MuReadout(width, 2))

    module = build(8)
    mup.set_base_shapes(module, build(2), delta=build(4))
    return module


class _Sound(nn.Module):
    """A filter, and a loss on spectra of several resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 5, padding=2)
        self.loss = get("auraloss.freq.MultiResolutionSTFTLoss")(
            [32, 64], [8, 16], [16, 32], perceptual_weighting=False
        )

    def forward(self, x: Tensor) -> Any:
        return self.loss(self.conv(x), x)


class _Likeness(nn.Module):
    """A filter, and the structural likeness to the image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.loss = nn.Conv2d(3, 3, 3, padding=1), get("piqa.SSIM")(window_size=5)

    def forward(self, x: Tensor) -> Any:
        return self.loss(torch.sigmoid(self.conv(x)), torch.sigmoid(x))


class _Private(nn.Module):
    """Attention of opacus on its own queries."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = get("opacus.layers.DPMultiheadAttention")(8, 2, dropout=0.1, add_bias_kv=True)

    def forward(self, x: Tensor) -> Any:
        return self.attention(x, x, x)


def _net(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Linear(before, 8), nn.ReLU(), nn.Linear(8, after))


def _decisions() -> nn.Module:
    small = get("torchrl.modules.DecisionTransformer").DTConfig(
        n_embd=16, n_layer=1, n_head=2, n_inner=16, n_positions=16
    )
    module: nn.Module = get("torchrl.modules.OnlineDTActor")(3, 2, transformer_config=small)
    return module


# fmt: off
add("pytorch-crf", "CRF", _Tagger, drawn((2, 5, 4)))
add("pytorch-metric-learning", "ArcFace", lambda: WithLoss(get("pytorch_metric_learning.losses.ArcFaceLoss")(3, 8)),
     drawn((6, 4)))
add("pytorch-metric-learning", "ProxyAnchor", lambda: WithLoss(
     get("pytorch_metric_learning.losses.ProxyAnchorLoss")(3, 8)), drawn((6, 4)))
add("pytorch-metric-learning", "memory of batches", lambda: WithLoss(
     get("pytorch_metric_learning.losses.CrossBatchMemory")(
     get("pytorch_metric_learning.losses.ContrastiveLoss")(), 8, memory_size=12)), drawn((6, 4)))
add("pytorch-metric-learning", "triplets, mined", lambda: WithLoss(
     get("pytorch_metric_learning.losses.TripletMarginLoss")(margin=0.5, swap=True)), drawn((6, 4)))
add("kornia", "HardNet", made("kornia.feature.HardNet", pretrained=False), drawn((3, 1, 32, 32)))
add("kornia", "SOSNet", made("kornia.feature.SOSNet", pretrained=False), drawn((3, 1, 32, 32)))
add("kornia", "TinyViT", made("kornia.models.tiny_vit.TinyViT", img_size=32, num_classes=3, embed_dims=(8, 8, 8, 8),
     depths=(1, 1, 1, 1), num_heads=(2, 2, 2, 2), window_sizes=(2, 2, 2, 1), drop_path_rate=0.3),
     drawn((2, 3, 32, 32)))
add("stable-baselines3", "ActorCriticPolicy", lambda: _Policy("box"), drawn((6, 4)))
add("stable-baselines3", "state-dependent exploration", lambda: _Policy("box", use_sde=True), drawn((6, 4)),
     torch.float64)
add("stable-baselines3", "discrete actions", lambda: _Policy("discrete"), drawn((6, 4)))
add("torchrl", "NoisyLinear", lambda: nn.Sequential(get("torchrl.modules.NoisyLinear")(4, 8), nn.ReLU(),
     get("torchrl.modules.NoisyLinear")(8, 2)), drawn((6, 4)))
add("torchrl", "ConsistentDropout", lambda: Then(get("torchrl.modules.ConsistentDropout")(0.3), 4, 8, 8),
     drawn((6, 4)))
add("torchrl", "DTActor", lambda: _decisions(), lambda: (torch.randn(2, 4, 3),
     torch.randn(2, 4, 2), torch.randn(2, 4, 1)))
add("dropblock", "scheduled", lambda: _Dropped(), drawn((2, 3, 8, 8)))
add("pytorch-wavelets", "there and back", _Wavelets, drawn((2, 1, 16, 16)))
add("torch-dct", "learned spectrum", lambda: _Cosines(), drawn((3, 8)))
add("mup", "MuReadout", lambda: _mup(), drawn((6, 4)))
add("geoopt", "ball and Stiefel", _OnManifold, drawn((6, 4)))
add("julius", "bands", lambda: nn.Sequential(nn.Conv1d(1, 2, 3), get("julius.LowPassFilter")(0.2),
     get("julius.ResampleFrac")(4, 5), nn.Conv1d(2, 1, 3)), drawn((2, 1, 40)))
add("auraloss", "multi-resolution spectra", lambda: _Sound(), drawn((2, 1, 256)))
add("piqa", "SSIM", lambda: _Likeness(), drawn((2, 3, 16, 16)))
add("lassonet", "LassoNet", made("lassonet.model.LassoNet", 4, 8, 2, dropout=0.1), drawn((6, 4)))
add("deeptime", "MLP", lambda: get("deeptime.util.torch.MLP")([4, 8, 2], initial_batchnorm=True), drawn((6, 4)))
for _kind in ("DeepFM", "xDeepFM", "AutoInt", "DCN", "DCNMix", "FiBiNET", "NFM"):
    add("deepctr-torch", _kind, lambda k=_kind: _ctr(k), _clicks)
add("opacus", "DPLSTM", made("opacus.layers.DPLSTM", 4, 6, batch_first=True), drawn((3, 5, 4)))
add("opacus", "DPMultiheadAttention", lambda: _Private(), drawn((5, 3, 8)))
add("opacus", "GradSampleModule", lambda: get("opacus.grad_sample.GradSampleModule")(_net(4, 2)), drawn((6, 4)))
# fmt: on
