"""Classes of `torch.nn` that torch's own list omits, and uses of classes that its samples omit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from tests.contract.zoo.agree import Sample
from tests.contract.zoo.model import Model

NOT_TESTED = {
    "Module": "the base of all",
    "Container": "a name of old",
    "DataParallel": "spreads one model over devices itself",
    "SyncBatchNorm": "needs processes; equals batch norm in one",
    "CrossMapLRN2d": "a name of old for LocalResponseNorm",
    "NLLLoss2d": "a name of old",
    "RNNBase": "a base",
    "RNNCellBase": "a base",
}
"""Kinds that nobody builds a member of, and why."""


def _x(*shape: int, learn: bool = True) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_(learn)


def _given(*shapes: tuple[int, ...], **named: Any) -> Callable[[], Sample]:
    return lambda: Sample(tuple(_x(*s) for s in shapes), named)


class Containers(nn.Module):
    """Holds parameters and modules in every container that torch has."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ParameterList([torch.randn(3) for _ in range(2)])
        self.named = nn.ParameterDict({"shift": torch.randn(3)})
        self.steps = nn.ModuleList([nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 3))])
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Identity()})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for row, step in zip(self.rows, self.steps, strict=True):
            x = step(x) * row
        return {name: head(x + self.named["shift"]) for name, head in self.heads.items()}


class Packed(nn.Module):
    """A recurrent layer over sequences of unequal lengths."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner = getattr(nn, kind)(3, 4, num_layers=2, bidirectional=True)

    def forward(self, x: Tensor, lengths: list[int]) -> Any:
        return self.inner(pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False))


def _packed() -> Sample:
    return Sample((_x(5, 3, 3), [3, 5, 1]))


def _pooled(dims: int) -> Callable[[], Sample]:
    def make() -> Sample:
        pool = getattr(torch.nn.functional, f"max_pool{dims}d")
        values, places = pool(torch.randn(2, 2, *[4] * dims, dtype=torch.float64), 2, return_indices=True)
        return Sample((values.requires_grad_(), places))

    return make


def _tokens(high: int, *shape: int, **named: Any) -> Callable[[], Sample]:
    return lambda: Sample((torch.randint(0, high, shape),), named)


def _bag() -> Sample:
    return Sample((torch.randint(0, 7, (8,)), torch.tensor([0, 3, 3])), {"per_sample_weights": _x(8)})


def _classes(*shape: int) -> Callable[[], Sample]:
    return lambda: Sample((_x(*shape), torch.randint(0, 10, shape[:1])))


def _masked() -> Sample:
    hidden = torch.tensor([[False, False, True], [False, True, True]])
    return Sample((_x(2, 3, 4), _x(2, 3, 4)), {"tgt_is_causal": False, "memory_key_padding_mask": hidden})


_triplet = _given((4, 3), (4, 3), (4, 3))
_image, _line, _space = _given((3, 4, 4, 4)), _given((3, 4, 6)), _given((3, 4, 2, 2, 2))

KINDS = [
    Model(
        "AdaptiveLogSoftmaxWithLoss",
        lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 10, [3, 6], div_value=2),
        _classes(5, 8),
        apart=("*",),
    ),
    Model("AlphaDropout", lambda: nn.AlphaDropout(0.4), _line),
    Model("ChannelShuffle", lambda: nn.ChannelShuffle(2), _image),
    Model("CosineSimilarity", nn.CosineSimilarity, _given((3, 4), (3, 4))),
    Model("Dropout", lambda: nn.Dropout(0.4), _line),
    Model("Dropout, in place", lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.4, inplace=True)), _line),
    Model("Dropout1d", lambda: nn.Dropout1d(0.4), _line),
    Model("Dropout2d", lambda: nn.Dropout2d(0.4), _image),
    Model("Dropout3d", lambda: nn.Dropout3d(0.4), _space),
    Model("FeatureAlphaDropout", lambda: nn.FeatureAlphaDropout(0.4), _image),
    Model("Embedding, padded", lambda: nn.Embedding(7, 3, padding_idx=0), _tokens(7, 4, 5)),
    Model("Embedding, renormed", lambda: nn.Embedding(7, 3, max_norm=1.0), _tokens(7, 4, 5)),
    Model("Embedding, by frequency", lambda: nn.Embedding(7, 3, scale_grad_by_freq=True), _tokens(7, 4, 5)),
    Model("EmbeddingBag", lambda: nn.EmbeddingBag(7, 3, mode="sum"), _bag),
    Model("EmbeddingBag, means", lambda: nn.EmbeddingBag(7, 3, mode="mean", padding_idx=2), _tokens(7, 4, 5)),
    Model("EmbeddingBag, maxima", lambda: nn.EmbeddingBag(7, 3, mode="max"), _tokens(7, 4, 5)),
    Model("Flatten", nn.Flatten, _image),
    Model("Fold", lambda: nn.Fold((4, 4), 2, stride=2), _given((2, 12, 4))),
    Model("Hardsigmoid", nn.Hardsigmoid, _line),
    Model("Identity", nn.Identity, _line),
    Model("LazyBatchNorm1d", nn.LazyBatchNorm1d, _line),
    Model("LazyBatchNorm2d", nn.LazyBatchNorm2d, _image),
    Model("LazyBatchNorm3d", nn.LazyBatchNorm3d, _space),
    Model("LazyInstanceNorm1d", lambda: nn.LazyInstanceNorm1d(affine=True, track_running_stats=True), _line),
    Model("LazyInstanceNorm2d", lambda: nn.LazyInstanceNorm2d(affine=True, track_running_stats=True), _image),
    Model("LazyInstanceNorm3d", lambda: nn.LazyInstanceNorm3d(affine=True, track_running_stats=True), _space),
    Model("LazyLinear", lambda: nn.LazyLinear(3), _line),
    Model("MaxUnpool1d", lambda: nn.MaxUnpool1d(2), _pooled(1)),
    Model("MaxUnpool2d", lambda: nn.MaxUnpool2d(2), _pooled(2)),
    Model("MaxUnpool3d", lambda: nn.MaxUnpool3d(2), _pooled(3)),
    Model("ModuleDict", Containers, _given((5, 3))),
    Model("PairwiseDistance", nn.PairwiseDistance, _given((3, 4), (3, 4))),
    Model("PixelShuffle", lambda: nn.PixelShuffle(2), _image),
    Model("PixelUnshuffle", lambda: nn.PixelUnshuffle(2), _image),
    Model("RReLU", nn.RReLU, _line),
    Model("RNN, packed", lambda: Packed("RNN"), _packed),
    Model("GRU, packed", lambda: Packed("GRU"), _packed),
    Model("LSTM, packed", lambda: Packed("LSTM"), _packed),
    Model(
        "TransformerDecoder",
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, batch_first=True), 2),
        _masked,
    ),
    Model("TripletMarginLoss", nn.TripletMarginLoss, _triplet),
    Model("TripletMarginWithDistanceLoss", lambda: nn.TripletMarginWithDistanceLoss(swap=True), _triplet),
    Model("Unflatten", lambda: nn.Unflatten(1, (2, 2)), _line),
    Model("Unfold", lambda: nn.Unfold(2), _image),
    Model("Upsample", lambda: nn.Upsample(scale_factor=2, mode="bicubic"), _image),
    Model("UpsamplingBilinear2d", lambda: nn.UpsamplingBilinear2d(scale_factor=2), _image),
    Model("UpsamplingNearest2d", lambda: nn.UpsamplingNearest2d(scale_factor=2), _image),
    Model("weight norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), _line),
    Model("spectral norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)), _line),
]
# These three stand in one module.
TOGETHER = ("ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential")
