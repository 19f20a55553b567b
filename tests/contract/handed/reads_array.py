"""Kind 4: a loss that reads its model instead of its arguments."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.errors import FusionError
from tests.contract.handed_over import Situation, numbers

X, Y = (numbers(12, n, seed=n).float().double() for n in (4, 1))  # a study keeps data in float32
OUTPUTS_ONLY = {"losses": (FusionError, "the loss of array.losses gets a member's outputs, and not its module")}


class Normed(nn.Module):
    """With a buffer, and a number that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.norm = nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 1)
        self.strength = 0.05

    def penalty(self) -> Tensor:
        return self.strength * self.encoder.weight.abs().sum()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(torch.tanh(self.norm(self.encoder(x))))
        return found


class Fallen(Normed):
    """Members read values, so they run one by one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum().item() < 1e9 and self.head.bias.sum().item() < 1e9 else -x)


def _mse(penalty: Any) -> Any:
    return lambda model, o, y: F.mse_loss(o, y) + penalty(model, o)


def _smoothness(model: Any, o: Tensor) -> Tensor:
    grads = torch.autograd.grad(o.sum(), list(model.parameters()), create_graph=True)
    return 0.01 * torch.stack([g.pow(2).sum() for g in grads]).sum()


READS = {
    "all-parameters": lambda m, o: 0.01 * sum(p.abs().sum() for p in m.parameters()),
    "one-weight": lambda m, o: 0.1 * m.encoder.weight.norm(),
    "by-name": lambda m, o: 0.1 * sum(p.pow(2).sum() for n, p in m.named_parameters() if n.endswith("weight")),
    "spectral": lambda m, o: 0.1 * torch.linalg.matrix_norm(m.get_parameter("encoder.weight"), 2),
    "vector": lambda m, o: 0.1 * nn.utils.parameters_to_vector(m.encoder.parameters()).norm(),
    "modules": lambda m, o: 0.1 * sum(k.weight.abs().mean() for k in m.modules() if isinstance(k, nn.Linear)),
    "detached": lambda m, o: o.mean() * m.head.weight.detach().sum(),
    "no-grad-state": lambda m, o: o.mean() * m.state_dict()["encoder.weight"].sum(),
    "buffer": lambda m, o: o.mean() * m.norm.running_var.mean(),
    "attribute": lambda m, o: m.strength * o.abs().mean(),
    "method": lambda m, o: m.penalty(),
    "called-again": lambda m, o: (m(X).mean() - o.mean()).pow(2),
    "part-called": lambda m, o: m.encoder(X).pow(2).mean(),
    "gradient-penalty": _smoothness,
}

FORMS = {
    "all-parameters": ("backward", "member", "losses", "study"),
    "buffer": ("backward", "member", "losses"),
    "attribute": ("backward", "losses"),
    "called-again": ("backward", "member", "losses"),
}

SITUATIONS = [
    Situation(
        4,
        name,
        reads=_mse(penalty),
        build=Normed,
        x=X,
        y=Y,
        forms=FORMS.get(name, ("backward",)),
        # A number of the model is no member's tensor.
        refused={} if name == "attribute" else OUTPUTS_ONLY,
        metrics=lambda: {"mse": F.mse_loss},
    )
    for name, penalty in READS.items()
] + [
    Situation(4, f"fallen-{name}", reads=_mse(READS[name]), build=Fallen, forms=("backward",))
    for name in ("all-parameters", "called-again")
]
