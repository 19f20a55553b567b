"""The training step of one plain module, with torch's own optimizer and lr scheduler: what a member must equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.array import MemberGenerators, PerMember
from hfta_nb.array.gradients import call_module
from hfta_nb.array.tree import flatten, unflatten
from hfta_nb.errors import StudyError
from hfta_nb.losses import Loss
from hfta_nb.metrics import Metric
from hfta_nb.step.protocol import Row, Scores, scorer


class PlainStep:
    """One module trained as anyone would, behind the same face as `ArrayStep`; see `Step`.

    Args:
        module: the plain module.
        row: the values of all training axes.
        loss, metrics: as anywhere.
        epochs: of the whole run, for lr schedulers that need it.
        generators: its random streams (of one member), as `torch.manual_seed` and building the module left them.
    """

    def __init__(
        self,
        module: nn.Module,
        row: Row,
        loss: Loss,
        metrics: Mapping[str, Metric],
        epochs: int,
        generators: MemberGenerators,
    ) -> None:
        self.module = module
        self.generators = generators
        self.optimizer = _make_optimizer(module, row)
        self.lr_scheduler = _make_lr_scheduler(self.optimizer, row, epochs)
        self._score = scorer(loss, metrics)

    def __len__(self) -> int:
        return 1

    def train(self, x: Any, y: Any) -> Scores:
        self.module.train()
        self.optimizer.zero_grad()
        with self.generators.member(0):
            loss, scores = self._score(call_module(self.module, _alone(x)), _alone(y))
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return _with_member_axis({"loss": loss.detach(), **scores})

    def end_epoch(self) -> None:
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    @torch.no_grad()
    def evaluate(self, x: Any, y: Any) -> Scores:
        self.module.eval()
        with self.generators.member(0):
            loss, scores = self._score(call_module(self.module, x), y)
        return _with_member_axis({"loss": loss, **scores})

    def select(self, indices: Sequence[int]) -> PlainStep:
        if list(indices) != [0]:
            raise StudyError("a plain step has one member", got=list(indices))
        return self

    def weights(self) -> dict[str, Tensor]:
        return {k: v.detach().unsqueeze(0) for k, v in self.module.state_dict().items()}

    def narrower(self, index: int) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        return dict

    def state(self) -> dict[str, Any]:
        tensors = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        optimizer = self.optimizer.state_dict()
        return {
            "module": {k: v.detach() for k, v in tensors.items()},
            "generators": self.generators.state_dict(),
            # JSON has no keys that are numbers.
            "optimizer": {
                "state": {str(k): v for k, v in optimizer["state"].items()},
                "groups": optimizer["param_groups"],
            },
            "lr_scheduler": self.lr_scheduler.state_dict() if self.lr_scheduler else None,
        }

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        tensors = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        for name, value in state["module"].items():
            tensors[name].copy_(value)
        self.generators.load_state_dict(state["generators"])
        saved = {int(k): v for k, v in state["optimizer"]["state"].items()}
        self.optimizer.load_state_dict({"state": saved, "param_groups": state["optimizer"]["groups"]})
        if self.lr_scheduler is not None:
            self.lr_scheduler.load_state_dict(state["lr_scheduler"])


def _alone(tree: Any) -> Any:
    leaves, rebuild = flatten(tree)
    return unflatten(rebuild, [v.value[0] if isinstance(v, PerMember) else v for v in leaves])


def _with_member_axis(scores: Scores) -> Scores:
    return {k: v.unsqueeze(0) for k, v in scores.items()}


def _make_optimizer(module: nn.Module, row: Row) -> torch.optim.Optimizer:
    parameters = [p for p in module.parameters() if p.requires_grad]
    common: dict[str, Any] = {"lr": row["lr"], "weight_decay": row["weight_decay"]}
    if row["optimizer"] == "sgd":
        return torch.optim.SGD(parameters, momentum=row["momentum"], nesterov=row["nesterov"], **common)
    kind = torch.optim.AdamW if row["optimizer"] == "adamw" else torch.optim.Adam
    return kind(parameters, betas=(row["beta1"], row["beta2"]), eps=row["eps"], **common)


def _make_lr_scheduler(
    optimizer: torch.optim.Optimizer, row: Row, epochs: int
) -> torch.optim.lr_scheduler.LRScheduler | None:
    if row["lr_scheduler"] == "step":
        return torch.optim.lr_scheduler.StepLR(optimizer, row["step_size"], row["gamma"])
    if row["lr_scheduler"] == "cosine":
        length = row["t_max"] or epochs
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length, row["eta_min"])
    return None
