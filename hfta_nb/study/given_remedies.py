"""Remedies for imbalanced classes, written anew for the loop that `Study.check` compares with.

Of `hfta_nb.models.imbalance` nothing but the row's values is used, so that a fault there makes a difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.models.losses import prediction

BETA = 0.999
"""Of the effective number of samples."""


class Remedies:
    """Those of a member.

    Args:
        row: its values of all axes, and the numbers of samples by class.
    """

    def __init__(self, row: Mapping[str, Any]) -> None:
        kind = row.get("class_weight", "none")
        counts = row["class_counts"]
        total, classes = sum(counts), len(counts)
        self.weights = list(kind) if isinstance(kind, tuple) else [1.0] * classes
        if kind == "balanced":
            self.weights = [total / classes / max(n, 1) for n in counts]
        if kind == "effective":
            rare = [(1 - BETA) / (1 - BETA ** max(n, 1)) for n in counts]
            self.weights = [w * classes / sum(rare) for w in rare]
        self.shift = [row.get("tau", 0.0) * math.log(max(n, 1) / total) for n in counts]
        self.gamma, self.smoothing = row.get("focal_gamma", 0.0), row.get("label_smoothing", 0.0)
        smallest, power = min(n for n in counts if n), row.get("weaken_gamma", 1.0)
        self.at, self.target = row.get("weaken_at", "input"), None
        self.kept = [1 - row.get("weaken", 0.0) * (1 - min(1.0, smallest / max(n, 1)) ** power) / 2 for n in counts]

    def loss(self, output: Any, target: Any) -> Tensor:
        """Cross entropy in training."""
        logits, y = prediction(output), _labels(target)
        if not y.is_floating_point() and (y.ndim == 3 or y.shape == logits.shape[:-1]):
            logits = logits.movedim(1, -1) if y.ndim == 3 else logits
            logits, y = logits.reshape(-1, logits.shape[-1]), y.reshape(-1)
        weights = torch.tensor(self.weights, dtype=torch.float64).to(logits)
        logits = logits + torch.tensor(self.shift, dtype=torch.float64).to(logits)
        if not y.is_floating_point():
            logits, y = logits[y != -100], y[y != -100].reshape(-1)
            if not len(y):
                return logits.sum() * 0
        if not self.gamma:
            return F.cross_entropy(logits, y, weight=weights, label_smoothing=self.smoothing)
        shares = y if y.is_floating_point() else F.one_hot(y, logits.shape[1]).to(logits)
        aims = shares * (1 - self.smoothing) + self.smoothing / logits.shape[1]
        chances = logits.softmax(1)
        each = -aims * weights * (1 - chances) ** self.gamma * chances.log()
        total: Tensor = each.sum() / (len(y) if y.is_floating_point() else weights[y].sum())
        return total

    def share_of(self, target: Any) -> Tensor:
        """What a mini-batch counts among those of one optimizer step."""
        y = _labels(target)
        if y.is_floating_point():
            return torch.ones((), dtype=torch.float64)
        weights = torch.tensor([*self.weights, 0.0], dtype=torch.float64)
        return weights[torch.where(y == -100, len(self.weights), y).cpu()].mean()

    def watch(self, module: nn.Module) -> None:
        """Mix the output of a layer in training, where it is not the input that is mixed."""
        if self.at != "input":
            layer = module.get_submodule(self.at)
            layer.register_forward_hook(lambda _, given, h: self._mixed(h, self.target) if layer.training else h)

    def weakened(self, x: Any, target: Any) -> Any:
        """Inputs of large classes mixed with their neighbours."""
        self.target = target
        return self._mixed(x, target) if self.at == "input" else x

    def _mixed(self, x: Any, target: Any) -> Any:
        if all(share == 1 for share in self.kept):
            return x
        mixed, labels = x.clone(), _labels(target).tolist()
        for i, label in enumerate(labels):
            shares = label if isinstance(label, list) else None
            if label == -100:
                continue
            kept = self.kept[label] if shares is None else sum(s * k for s, k in zip(shares, self.kept, strict=True))
            mixed[i] = kept * x[i] + (1 - kept) * x[i - 1]
        return mixed


def _labels(target: Any) -> Tensor:
    """Class numbers, -100 where a mask is 0; or shares of classes."""
    if not isinstance(target, dict):
        return target  # type: ignore[no-any-return]
    y = next(value for name, value in target.items() if name != "mask")
    return torch.where(target["mask"].reshape(y.shape).bool(), y, -100)
