"""Kind 1: a user's function gets what the user's loop would give it."""

from __future__ import annotations

import torch.nn.functional as F

from tests.contract.handed_over import Situation, numbers

SITUATIONS = [
    Situation(1, "mse", lambda: F.mse_loss, forms=("backward", "losses", "forward")),
    Situation(
        1,
        "squeezed",
        lambda: lambda o, y: F.mse_loss(o.squeeze(-1), y),
        y=numbers(12, seed=1),
        forms=("backward", "losses", "forward"),
    ),
]
