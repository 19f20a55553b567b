"""Kernels that `vmap` lacks, or whose requests for gradients it hides: torch's own, once per member."""

from __future__ import annotations

import torch.nn.functional as F

from hfta_nb.engine.rules.member_by_member import torch_kernel_per_member
from hfta_nb.engine.rules.rule_mode import Rule

# New in torch 2.13.
_KERNELS = (F.linear_cross_entropy,) if hasattr(F, "linear_cross_entropy") else ()

RULES: dict[object, Rule] = dict.fromkeys(_KERNELS, torch_kernel_per_member)
