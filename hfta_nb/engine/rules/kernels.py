"""Kernels that `vmap` lacks, or whose requests for gradients it hides: torch's own, once per member."""

from __future__ import annotations

import torch.nn.functional as F

from hfta_nb.engine.rules.base import Rule
from hfta_nb.engine.rules.members import torch_kernel_per_member

# New in torch 2.13.
_KERNELS = (F.linear_cross_entropy,) if hasattr(F, "linear_cross_entropy") else ()

RULES: dict[object, Rule] = dict.fromkeys(_KERNELS, torch_kernel_per_member)
