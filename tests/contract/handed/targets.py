"""Kind 1: a user's function gets what the user's loop would give it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.errors import BroadcastError, FusionError
from tests.contract.handed_over import Regressor, Situation, numbers

FORMS = ("backward", "losses", "forward", "study")
REFUSED = dict.fromkeys(FORMS, (BroadcastError, r"broadcasts \[12, 1\] and \[12\] to \[12, 12\]|\[12\] and \[12, 1\]"))
REFUSED.pop("forward")  # the user's own call of the loss
Y, COLUMN = numbers(12, seed=1), numbers(12, 1, seed=1)


def squared(o: Tensor, y: Tensor) -> Tensor:
    return ((o - y) ** 2).mean()


def weighted(o: Tensor, y: Any) -> Tensor:
    return ((o - y[0]) ** 2 * y[1]).mean()


def likelihood(o: Tensor, y: Tensor) -> Tensor:
    mean, scale = o.chunk(2, -1)
    return -torch.distributions.Normal(mean, F.softplus(scale) + 0.1).log_prob(y).mean()


def ranked(o: Tensor, y: Tensor) -> Tensor:
    """All pairs, as they are written where they are meant."""
    return F.softplus(-(o - o.squeeze(-1)) * torch.sign(y.unsqueeze(1) - y)).mean()


def in_place(o: Tensor, y: Tensor) -> Tensor:
    """Writes into the output and the target."""
    o /= 2
    y = y.clone().sub_(1)
    return F.mse_loss(o, y)


def itself(o: Tensor, y: Tensor) -> Tensor:
    loss = F.mse_loss(o, y)
    loss.backward(retain_graph=True)
    return loss


def refused(name: str, loss: Any, **more: Any) -> Situation:
    return Situation(1, name, lambda: loss, forms=("backward", "losses", "study"), refused=REFUSED, **more)


def only_outputs(what: str) -> dict[str, tuple[type[Exception], str]]:
    return {"losses": (FusionError, what)}


SITUATIONS = [
    Situation(1, "mse", lambda: F.mse_loss),
    Situation(1, "squeezed", lambda: lambda o, y: F.mse_loss(o.squeeze(-1), y), y=Y),
    Situation(1, "unsqueezed", lambda: lambda o, y: F.mse_loss(o, y.unsqueeze(-1)), y=Y),
    Situation(1, "pairs", lambda: ranked, y=Y),
    Situation(1, "all-with-all", lambda: lambda o, y: (o - y[None]).abs().mean(), y=Y),
    Situation(
        1,
        "quantiles",
        lambda: lambda o, y: F.relu(y[:, None] - o).mean(),
        y=Y,
        build=partial(Regressor, 3),
        metrics=lambda: {"range": lambda o, y: (o.amax(1) - o.amin(1)).mean()},
    ),
    Situation(
        1,
        "metrics",
        lambda: F.mse_loss,
        metrics=lambda: {
            "worst": lambda o, y: (o - y).abs().max(),
            "lowest": lambda o, y: o.squeeze(-1).min() - y.min(),
        },
        forms=("study",),
    ),
    Situation(
        1,
        "whole-numbers",
        lambda: lambda o, y: F.poisson_nll_loss(o, y),
        y=torch.arange(12).unsqueeze(1),
        forms=FORMS,
        metrics=lambda: {"off": lambda o, y: (o.exp() - y).abs().mean()},
    ),
    refused("mse-of-columns", F.mse_loss, y=Y),
    refused("module", nn.L1Loss(), y=Y),
    refused("difference", squared, y=Y),
    refused("flat-output", squared, y=COLUMN, build=partial(Regressor, 0)),
    refused("squeezed-output", lambda o, y: F.huber_loss(o.squeeze(-1), y), y=COLUMN),
    refused("flat-weights", weighted, y=(COLUMN, numbers(12, seed=2).abs())),
    refused("likelihood", likelihood, y=Y, build=partial(Regressor, 2)),
    refused("entry-of-a-dict", lambda o, y: F.smooth_l1_loss(o, y["value"]), y={"value": Y}),
    Situation(
        1,
        "metric-of-columns",
        lambda: lambda o, y: F.mse_loss(o.squeeze(-1), y),
        y=Y,
        metrics=lambda: {"off": lambda o, y: (o - y).abs().mean()},
        forms=("study",),
        refused=REFUSED,
    ),
    Situation(
        1,
        "writes",
        lambda: in_place,
        forms=("backward", "losses", "study"),
        refused=only_outputs("writes into the outputs"),
    ),
    Situation(1, "backward", lambda: itself, forms=FORMS[:2], refused=only_outputs("calls backward itself")),
]
