"""Kind 9: what a metric or a loss returns, and over what a metric is computed."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.errors import FamilyError, FusionError
from tests.contract.handed_over import Regressor, Situation, numbers

CLASSES = torch.randint(3, (12,), generator=torch.Generator().manual_seed(2))
INPUTS = numbers(12, 4).float().double()
FUSED = ("backward", "losses", "study")


def hits(output: Tensor, y: Tensor) -> Tensor:
    return output.argmax(-1) == y


def f1(output: Tensor, y: Tensor) -> Any:
    from sklearn.metrics import f1_score

    return f1_score(y, output.argmax(-1), average="macro")


def auc(output: Tensor, y: Tensor) -> Any:
    from sklearn.metrics import roc_auc_score

    return roc_auc_score(y.numpy(), output.softmax(-1).numpy(), multi_class="ovr", labels=[0, 1, 2])


def of_kinds() -> dict[str, Callable[[Any, Any], Any]]:
    """Metrics that return numbers of all kinds."""
    return {
        "item": lambda output, y: hits(output, y).double().mean().item(),
        "numpy": lambda output, y: (output.argmax(-1).numpy() == y.numpy()).mean(),
        "whole": lambda output, y: int(hits(output, y).sum()),
        "truth": lambda output, y: bool(hits(output, y).sum() > 4),
        "tensor_of_integers": lambda output, y: hits(output, y).sum(),
        "tensor_of_truth": lambda output, y: hits(output, y).any(),
        "one_entry": lambda output, y: output.std().reshape(1, 1),
        "half": lambda output, y: hits(output, y).sum().half(),
        "array": lambda output, y: output.mean().numpy(),
        "long": lambda output, y: np.longdouble(float(output.std())),
        "f1": f1,
        "auc": auc,
        "branch": lambda output, y: 1.0 if output.mean() > 0 else output.std().item(),
    }


def classified(name: str, loss: Callable[[], Any], **more: Any) -> Situation:
    return Situation(9, name, loss, build=lambda: Regressor(3), x=INPUTS, y=CLASSES, **more)


def not_one(name: str, metric: Callable[[Any, Any], Any], message: str) -> Situation:
    refused = {"study": (FamilyError, message)}
    return classified(
        name, lambda: F.cross_entropy, metrics=lambda: {"made": metric}, forms=("study",), refused=refused
    )


def no_loss(name: str, loss: Callable[[Any, Any], Any], message: str) -> Situation:
    kinds = dict.fromkeys(FUSED, (FusionError, message))
    return classified(name, lambda: loss, metrics=dict, forms=FUSED, refused=kinds)


SITUATIONS = [
    classified("numbers-of-all-kinds", lambda: F.cross_entropy, metrics=of_kinds, forms=("study",)),
    Situation(
        9,
        "spread-of-a-regression",
        lambda: F.mse_loss,
        x=INPUTS,
        y=numbers(12, 1, seed=1).float().double(),
        metrics=lambda: {"spread": lambda output, y: float((output - y).std()), "largest": lambda o, y: (o - y).max()},
        forms=("study",),
    ),
    classified("loss-of-one-entry", lambda: lambda o, y: F.cross_entropy(o, y).reshape(1), metrics=dict, forms=FUSED),
    no_loss("float-as-loss", lambda o, y: F.cross_entropy(o, y).item(), "number without a gradient"),
    no_loss("array-as-loss", lambda o, y: F.cross_entropy(o, y).detach().numpy(), "number without a gradient"),
    no_loss("vector-as-loss", lambda o, y: F.cross_entropy(o, y, reduction="none"), r"a tensor \[12\].*take the mean"),
    no_loss("dict-as-loss", lambda o, y: {"ce": F.cross_entropy(o, y)}, "got 'dict'.*add the parts up"),
    no_loss("pair-as-loss", lambda o, y: (F.cross_entropy(o, y), o.mean()), "got 'tuple'"),
    not_one("dict-as-metric", lambda o, y: {"a": o.mean(), "b": 1.0}, r'"made_a": lambda output, y: made\(output, y\)'),
    not_one("vector-as-metric", lambda o, y: o.mean(0), r"a tensor \[3\].*made_0"),
    not_one("list-as-metric", lambda o, y: o.mean(0).tolist(), "made_0"),
    not_one("array-as-metric", lambda o, y: o.mean(0).numpy(), "made_0"),
    not_one("nothing-as-metric", lambda o, y: None, "got 'NoneType'"),
    not_one("text-as-metric", lambda o, y: "good", "got 'str'"),
    not_one("decimal-as-metric", lambda o, y: Decimal("0.5"), r"got 'Decimal'.*float\(\.\.\.\)"),
    not_one("complex-as-metric", lambda o, y: complex(0, 1), "got 'a complex tensor.*real number"),
    not_one("complex-tensor-as-metric", lambda o, y: torch.fft.fft(o[:, 0])[0], "its real part or its absolute value"),
]
