"""Whether a member's plain module runs where the member does not."""

from __future__ import annotations

import torch
from torch import nn

from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.member_outcome import Computation, copied_leaves
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.cuda_graphs import capturing
from hfta_nb.engine.members.process_streams import streams_kept


def runs_alone(state: ArrayState, plain: nn.Module, member: int, inputs: Inputs, computation: Computation) -> bool:
    """True if a plain module makes a call of the array; the array and its random streams stay unchanged.

    Args:
        state: of the array, before the call.
        plain: the member as a plain module, which is used up.
        member: its number.
        inputs: of the call.
        computation: what the call computes.
    """
    generators = state.generators
    if capturing(generators.device) or generators.device.type == "meta":
        return False
    now = generators.states
    try:
        with (
            streams_kept(),
            generators.member(member),
            state.functions.tracked(state.functions.copied(state.functions.of(member)), {}),
        ):
            result = computation.call(plain, copied_leaves(inputs.member(member)))
            if computation.backward:
                torch.autograd.backward(result[0])
    except Exception:
        return False
    finally:
        generators.states = now
    return True
