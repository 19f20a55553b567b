"""A whole model under contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from tests.contract.zoo.agree import Sample


@dataclass(frozen=True)
class Model:
    """A public model definition, built small and with random weights.

    Attributes:
        name: package and model.
        build: makes one plain module.
        sample: makes its inputs.
        apart: submodules that `vmap` can't run and that go one member at a time, by path; ``*`` is any part of one.
            All else runs for all members at once.
        core: one of the few that the default tier runs.
        dtype: float32 where the model can't be run in float64.
    """

    name: str
    build: Callable[[], nn.Module]
    sample: Callable[[], Sample]
    apart: tuple[str, ...] = ()
    core: bool = False
    dtype: torch.dtype = torch.float64

    def __str__(self) -> str:
        return self.name
