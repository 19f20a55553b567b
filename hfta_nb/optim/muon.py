"""Muon."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hfta_nb.errors import OptimError
from hfta_nb.optim.flat import FlatOptimizer
from hfta_nb.optim.flat_state import Numbers
from hfta_nb.optim.groups import BY_SHAPE
from hfta_nb.optim.passes import add_, choose, lerp_
from hfta_nb.optim.values import FLAG, LR, HostColumn, Kind, at_least, uniform

_ADJUSTMENTS = ("original", "match_rms_adamw")


class Muon(FlatOptimizer):
    """Muon, each hyperparameter with one value, or one per member.

    Args:
        params: an array, its parameters, or groups of them; matrices all (of one member).
        lr: learning rate, at least 0.
        weight_decay: apart from the gradient, at least 0.
        momentum: at least 0.
        nesterov: look ahead.
        ns_coefficients: of the Newton-Schulz polynomial: a triple, or a list of triples, one per member.
        eps: the smallest norm divided by.
        ns_steps: of the Newton-Schulz iteration, below 100.
        adjust_lr_fn: None, "original" or "match_rms_adamw".

    Raises:
        OptimError: a value is out of bounds, a list has not one value per member, or a parameter is no matrix.

    Source: Jordan et al., 2024; `torch.optim.Muon`, member for member. As there, the iteration is in bfloat16; on a CPU
    its products are taken member by member, which gives torch's bits; elsewhere they are batched, and may round
    otherwise. Where a member's parameter is
    padded (``array.owned``), the iteration is over the member's own rows and columns.
    """

    how = "batched over members, parameter by parameter; on a CPU the Newton-Schulz products one member at a time"
    shaped = True
    counts_steps = False
    torch_class = torch.optim.Muon
    kinds: ClassVar[Mapping[str, Kind]] = {
        "lr": LR,
        "weight_decay": at_least(0.0),
        "momentum": at_least(0.0),
        "nesterov": FLAG,
        "ns_coefficients": Kind("three numbers", size=3),
        "eps": Kind("a number"),
        "ns_steps": Kind("a whole number below 100", lambda v: 0 <= v < 100 and v == int(v), convert=int),
        "adjust_lr_fn": Kind('None, "original" or "match_rms_adamw"', words=(None, *_ADJUSTMENTS), convert=str),
    }

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        weight_decay: Any = 0.1,
        momentum: Any = 0.95,
        nesterov: Any = True,
        ns_coefficients: Any = (3.4445, -4.7750, 2.0315),
        eps: Any = 1e-7,
        ns_steps: Any = 5,
        adjust_lr_fn: Any = None,
    ) -> None:
        given = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
        more = {"ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn}
        super().__init__(params, given | more)

    def check(self, values: Mapping[str, HostColumn], parameters: Mapping[str, Tensor], where: str) -> None:
        for name, p in parameters.items():
            if p.ndim != 3 or p.is_complex():
                raise OptimError(
                    "not a matrix of real numbers",
                    where=f"{where}, {name}",
                    got=list(p.shape[1:]),
                    accepted="parameters of two axes (of one member)",
                    remedy=f"give the others to another optimizer; {BY_SHAPE}",
                )

    def states(self, values: Numbers) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def numbers(self, values: Numbers, steps: HostColumn, scalars: dict[str, HostColumn]) -> dict[str, HostColumn]:
        lr = values["lr"]
        shapes = [(len(r), len(c)) for r, c in self._own_axes(len(lr))]
        ratios = [_ratio(word, *shape) for word, shape in zip(values["adjust_lr_fn"], shapes, strict=True)]
        self._values = values
        return {
            "momentum": values["momentum"],
            "rest": 1 - values["momentum"],
            "nesterov": values["nesterov"],
            "keep": 1 - lr * values["weight_decay"],
            "down": -(lr * np.array(ratios)),
        }

    def apply(self, p: Tensor, g: Tensor, state: dict[str, Tensor], c: Mapping[str, Any]) -> None:
        c = {k: v.unsqueeze(-1) if isinstance(v, Tensor) else v for k, v in c.items()}
        buffer = lerp_(state["momentum_buffer"], g, c["rest"])
        update = buffer
        if c["nesterov"] is not False:
            update = choose(c["nesterov"], lerp_(g.clone(), buffer, c["momentum"]), buffer)
        whole = torch.zeros_like(update, dtype=torch.bfloat16)
        for rows, r, col, settings in self._batches(p):
            if not r or not col:
                continue  # these members lack the parameter
            if len(rows) == len(p) and (len(r), len(col)) == tuple(p.shape[1:]):
                whole = newton_schulz(update, *settings)
                break
            places = torch.tensor(rows)[:, None, None], torch.tensor(r)[None, :, None], torch.tensor(col)[None, None, :]
            whole[places] = newton_schulz(update[places], *settings)
        p.mul_(c["keep"])
        add_(p, whole, c["down"])

    def _own_axes(self, members: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Per member, its own rows and columns of the parameter."""
        span = self.segment.spans[0]
        own = self.owned().get(span.name)
        if own is None:
            return [(tuple(range(span.shape[0])), tuple(range(span.shape[1])))] * members
        return [tuple(tuple(m.any(1 - a).nonzero().flatten().tolist()) for a in (0, 1)) for m in own.cpu()]  # type: ignore[misc]

    def _batches(self, p: Tensor) -> Iterator[tuple[list[int], Any, Any, tuple[tuple[float, ...], int, float]]]:
        """Members whose iterations are the same but for the numbers in them."""
        v = self._values
        if not self.owned() and all(uniform(v[k]) for k in ("ns_steps", "eps")) and (
            v["ns_coefficients"] == v["ns_coefficients"][0]
        ).all():  # fmt: skip
            axes = self._own_axes(1)[0]
            settings = (tuple(v["ns_coefficients"][0].tolist()), int(v["ns_steps"][0]), float(v["eps"][0]))
            yield list(range(len(p))), *axes, settings
            return
        found: dict[Any, list[int]] = {}
        for i, (r, col) in enumerate(self._own_axes(len(p))):
            settings = (tuple(v["ns_coefficients"][i].tolist()), int(v["ns_steps"][i]), float(v["eps"][i]))
            found.setdefault((r, col, settings), []).append(i)
        for (r, col, settings), rows in found.items():
            yield rows, r, col, settings


def newton_schulz(x: Tensor, coefficients: tuple[float, ...], steps: int, eps: float) -> Tensor:
    """The nearest orthogonal matrices, about; ``[M, A, B]``, in bfloat16.

    On a CPU the products are taken one member at a time: about one batched product in 3000 has another last bit, which
    is a hundredth in bfloat16.

    Source: `torch.optim._muon._zeropower_via_newtonschulz`, batched.
    """
    tall = x.shape[-2] > x.shape[-1]
    y = x.bfloat16()
    y = y.mT if tall else y
    norm = torch.linalg.vector_norm(y.flatten(1), dim=1)
    y = y / norm.clamp(min=eps)[:, None, None]
    if y.device.type == "cpu":
        y = torch.stack([_iterated(one, torch.addmm, coefficients, steps) for one in y])
    else:
        y = _iterated(y, torch.baddbmm, coefficients, steps)
    return y.mT if tall else y


def _iterated(y: Tensor, product: Callable[..., Tensor], coefficients: tuple[float, ...], steps: int) -> Tensor:
    a, b, c = coefficients
    for _ in range(steps):
        gram = y @ y.mT
        y = product(y, product(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return y


def _ratio(word: str | None, a: int, b: int) -> float:
    if word in (None, "original"):
        return math.sqrt(max(1, a / b)) if b else 1.0
    return 0.2 * math.sqrt(max(a, b))
