"""The training step of an array."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb import optim
from hfta_nb.array import FusedArray
from hfta_nb.errors import OptimError
from hfta_nb.losses import Loss
from hfta_nb.metrics import Metric
from hfta_nb.optim.lr_scheduler import ArrayLRScheduler
from hfta_nb.step.protocol import Row, Scores, scorer


class ArrayStep:
    """Forward, loss, backward and optimizer of all members at once; see `Step`.

    Args:
        array: the members.
        rows: per member, the values of all training axes.
        loss, metrics: of one member.
        epochs: of the whole run, for lr schedulers that need it.
    """

    def __init__(
        self, array: FusedArray, rows: Sequence[Row], loss: Loss, metrics: Mapping[str, Metric], epochs: int
    ) -> None:
        self.array = array
        self.loss = loss
        self.optimizer = make_optimizer(array, rows)
        self.lr_scheduler = make_lr_scheduler(self.optimizer, rows, epochs)
        self._score = scorer(loss, metrics)

    def __len__(self) -> int:
        return len(self.array)

    def train(self, x: Any, y: Any) -> Scores:
        if not self.array.training:
            self.array.train()
        self.optimizer.zero_grad()
        losses, scores = self.array.backward(self._score, x, y, has_aux=True)
        self.optimizer.step()
        return {"loss": losses, **scores}

    def end_epoch(self) -> None:
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def evaluate(self, x: Any, y: Any) -> Scores:
        self.array.eval()
        losses, scores = self.array.evaluate(self._score, x, y)
        return {"loss": losses, **scores}

    def tune(self, x: Any, y: Any, budget_s: float) -> dict[int, float]:
        """See `FusedArray.tune`."""
        self.array.train()
        return self.array.tune(self.loss, x, y, budget_s=budget_s)

    def select(self, indices: Sequence[int]) -> ArrayStep:
        other = object.__new__(ArrayStep)
        other.__dict__.update(self.__dict__)
        other.array = self.array.select(indices)
        other.optimizer = self.optimizer.select(indices, other.array)
        if self.lr_scheduler is not None:
            other.lr_scheduler = self.lr_scheduler.select(list(indices), other.optimizer)
        return other

    def weights(self) -> dict[str, Tensor]:
        return {k: v.detach() for k, v in self.array.state_dict().items()}

    def narrower(self, index: int) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        return self.array.narrower(index)

    def state(self) -> dict[str, Any]:
        tensors = dict(self.array.named_parameters()) | dict(self.array.named_buffers())
        return {
            "array": {k: v.detach() for k, v in tensors.items()},
            "generators": self.array.generators.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "lr_scheduler": self.lr_scheduler.state_dict() if self.lr_scheduler else None,
            "block_size": self.array.block_size,
        }

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        tensors = dict(self.array.named_parameters()) | dict(self.array.named_buffers())
        for name, value in state["array"].items():
            tensors[name].copy_(value)
        self.array.generators.load_state_dict(state["generators"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.lr_scheduler is not None:
            self.lr_scheduler.load_state_dict(state["lr_scheduler"])
        self.array.block_size = state["block_size"]


def make_optimizer(array: FusedArray, rows: Sequence[Row]) -> optim.ArrayOptimizer:
    """The optimizer that the rows name, with a value per member."""

    def column(name: str) -> list[Any]:
        return [row[name] for row in rows]

    kind = rows[0]["optimizer"]
    common: dict[str, Any] = {"lr": column("lr"), "weight_decay": column("weight_decay")}
    if kind == "sgd":
        return optim.SGD(array, momentum=column("momentum"), nesterov=column("nesterov"), **common)
    betas = list(zip(column("beta1"), column("beta2"), strict=True))
    if kind in ("adam", "adamw"):
        return (optim.Adam if kind == "adam" else optim.AdamW)(array, betas=betas, eps=column("eps"), **common)
    raise OptimError("unknown optimizer", got=kind, accepted="sgd, adam, adamw")


def make_lr_scheduler(optimizer: optim.ArrayOptimizer, rows: Sequence[Row], epochs: int) -> ArrayLRScheduler | None:
    """The lr scheduler that the rows name, with a setting per member; None for "none"."""
    kind = rows[0]["lr_scheduler"]
    if kind == "step":
        sizes, gammas = [r["step_size"] for r in rows], [r["gamma"] for r in rows]
        return optim.lr_scheduler.StepLR(optimizer, step_size=sizes, gamma=gammas)
    if kind == "cosine":
        lengths, lows = [r["t_max"] or epochs for r in rows], [r["eta_min"] for r in rows]
        return optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=lengths, eta_min=lows)
    return None
