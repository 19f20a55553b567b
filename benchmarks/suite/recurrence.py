"""An LSTM in plain operations, where torch's kernel is not supported."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class WrittenOutLSTM(nn.Module):
    """One layer of `torch.nn.LSTM` in plain operations, with its parameters' names.

    The input's part of the gates is one matrix product over all steps.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight_ih_l0 = nn.Parameter(torch.empty(4 * hidden, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias_ih_l0 = nn.Parameter(torch.empty(4 * hidden))
        self.bias_hh_l0 = nn.Parameter(torch.empty(4 * hidden))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """From ``[T, N, inputs]`` to the states ``[T, N, hidden]``."""
        gates = F.linear(x, self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0)
        state = cell = gates.new_zeros(x.shape[1], self.weight_hh_l0.shape[1])
        states = []
        for part in gates.unbind(0):
            i, f, g, o = (part + state @ self.weight_hh_l0.t()).chunk(4, -1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            state = o.sigmoid() * cell.tanh()
            states.append(state)
        return torch.stack(states), None
