"""PointNet: classification and segmentation of point clouds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hfta_nb.models import losses, metrics
from hfta_nb.models.recipes import from_function
from hfta_nb.search.grid import Size

REGULARISER = 1e-3
"""Weight of the feature transform's distance from a rotation in the loss (the paper's)."""


def _points(channels: int, out: int, relu: bool = True) -> nn.Sequential:
    """The same linear layer for every point; no bias, as batch norm follows."""
    layers = [nn.Conv1d(channels, out, 1, bias=False), nn.BatchNorm1d(out)]
    return nn.Sequential(*layers, *([nn.ReLU()] if relu else []))


def _dense(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(channels, out, bias=False), nn.BatchNorm1d(out), nn.ReLU())


class Transform(nn.Module):
    """A matrix ``[N, size, size]`` for each cloud, from its points ``[N, channels, P]``: the identity at first."""

    def __init__(self, channels: int, size: int, width: int) -> None:
        super().__init__()
        self.size = size
        self.points = nn.Sequential(_points(channels, width), _points(width, 2 * width), _points(2 * width, 16 * width))
        self.dense = nn.Sequential(_dense(16 * width, 8 * width), _dense(8 * width, 4 * width))
        self.last = nn.Linear(4 * width, size * size)
        nn.init.zeros_(self.last.weight)
        with torch.no_grad():
            self.last.bias.copy_(torch.eye(size).flatten())

    def forward(self, x: Tensor) -> Tensor:
        whole = self.points(x).amax(2)
        return self.last(self.dense(whole)).view(-1, self.size, self.size)


class Features(nn.Module):
    """Of points ``[N, P, in_channels]``, xyz first: each point's ``[N, width, P]``, the cloud's ``[N, 16 width]``, and
    the feature transform, if there is one."""

    def __init__(self, in_channels: int, width: int, input_transform: bool, feature_transform: bool) -> None:
        super().__init__()
        self.input_transform = Transform(in_channels, 3, width) if input_transform else None
        self.first = _points(in_channels, width)
        self.feature_transform = Transform(width, width, width) if feature_transform else None
        self.rest = nn.Sequential(_points(width, 2 * width), _points(2 * width, 16 * width, relu=False))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.input_transform is not None:
            turn = self.input_transform(x.transpose(1, 2))
            # Normals, where there are any, turn with the points.
            x = torch.cat([part @ turn for part in torch.split(x, 3, dim=2)], 2)
        points, transform = self.first(x.transpose(1, 2)), None
        if self.feature_transform is not None:
            transform = self.feature_transform(points)
            points = (points.transpose(1, 2) @ transform).transpose(1, 2)
        return points, self.rest(points).amax(2), transform


class Classifier(nn.Module):
    """Points ``[N, P, in_channels]`` to logits ``[N, num_classes]``; with a feature transform ``(logits, it)``."""

    def __init__(self, features: Features, width: int, dropout: float, num_classes: int) -> None:
        super().__init__()
        self.features = features
        second = [nn.Linear(8 * width, 4 * width, bias=False), nn.Dropout(dropout), nn.BatchNorm1d(4 * width)]
        layers = [_dense(16 * width, 8 * width), *second, nn.ReLU(), nn.Linear(4 * width, num_classes)]
        self.head = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        _, whole, transform = self.features(x)
        logits = self.head(whole)
        return logits if transform is None else (logits, transform)


class Segmenter(nn.Module):
    """Points ``[N, P, in_channels]`` to logits ``[N, P, num_classes]``; with a feature transform ``(logits, it)``."""

    def __init__(self, features: Features, width: int, num_classes: int) -> None:
        super().__init__()
        self.features = features
        layers = [_points(17 * width, 8 * width), _points(8 * width, 4 * width), _points(4 * width, 2 * width)]
        self.head = nn.Sequential(*layers, nn.Conv1d(2 * width, num_classes, 1))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        points, whole, transform = self.features(x)
        beside = whole.unsqueeze(2).expand(-1, -1, points.shape[2])
        logits = self.head(torch.cat([points, beside], 1)).transpose(1, 2)
        return logits if transform is None else (logits, transform)


def _regularised(task: str) -> losses.Loss:
    plain = losses.for_task(task)

    def loss(output: Tensor | tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        if isinstance(output, Tensor):
            return plain(output, target)
        logits, transform = output
        distance = torch.eye(transform.shape[-1]).to(transform) - transform @ transform.transpose(1, 2)
        # The Frobenius norm; its gradient at zero, where training begins, is to be zero and not NaN.
        squared = distance.square().sum((1, 2))
        norm = torch.where(squared > 0, squared, torch.ones_like(squared)).sqrt() * (squared > 0)
        return plain(logits, target) + REGULARISER * norm.mean()

    return loss


def build_cls(
    width: Size = 64,
    input_transform: bool = True,
    feature_transform: bool = False,
    dropout: float = 0.3,
    in_channels: int = 3,
    num_classes: int = 10,
) -> nn.Module:
    """PointNet for the class of a point cloud.

    Source: Qi et al. 2017 (arXiv 1612.00593), with the dropout and the norm (not squared) of the regulariser as in the
    PyTorch implementation that HFTA took. Linear layers before batch norm have no bias: it would do nothing.
    """
    features = Features(in_channels, width, input_transform, feature_transform)
    return Classifier(features, width, dropout, num_classes)


def build_seg(
    width: Size = 64,
    input_transform: bool = True,
    feature_transform: bool = False,
    in_channels: int = 3,
    num_classes: int = 4,
) -> nn.Module:
    """PointNet for the part that each point belongs to.

    Source: as for classification, the segmentation network of figure 2.
    """
    return Segmenter(Features(in_channels, width, input_transform, feature_transform), width, num_classes)


pointnet_cls = from_function(
    build_cls,
    name="pointnet_cls",
    data="shapes",
    loss=_regularised("classification"),
    metrics=metrics.BY_TASK["classification"],
    inputs="point clouds",
)
pointnet_seg = from_function(
    build_seg,
    name="pointnet_seg",
    data="shape_parts",
    loss=_regularised("segmentation"),
    metrics=metrics.BY_TASK["segmentation"],
    inputs="point clouds",
)
