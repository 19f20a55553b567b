"""What a member's plain module does where the member does not: whether it runs, and what it freezes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.contexts import inference
from hfta_nb.engine.eager.frozen_in_forward import ForwardFreezeError
from hfta_nb.engine.eager.member_outcome import Computation, copied_leaves
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.cuda_graphs import capturing
from hfta_nb.engine.members.process_streams import streams_kept
from hfta_nb.errors import HftaError, out_of_memory


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


def freezes(
    state: ArrayState,
    member: Callable[[int], nn.Module],
    error: BaseException,
    inputs: Inputs,
    computation: Computation,
    result: Any,
) -> bool:
    """True if the call freezes parameters, which the array's now are.

    A view, as the row of one, can't be frozen: that is another error, of a member that runs as its plain module.
    """
    if isinstance(error, HftaError) or not isinstance(error, Exception):
        asked = isinstance(error, ForwardFreezeError)
        if asked and computation.backward and result is not None:
            result[0].undo()
    else:
        asked = state.settings.as_plain and not out_of_memory(error)
    return asked and freeze_as_alone(state, member, inputs, computation)


def freeze_as_alone(
    state: ArrayState, member: Callable[[int], nn.Module], inputs: Inputs, computation: Computation
) -> bool:
    """Freeze the array's parameters that a call freezes in every plain module.

    Args:
        state: of the array, before the call.
        member: returns a member as a plain module.
        inputs: of the call.
        computation: what the call computes.

    Returns:
        False if there are none, or if members would come to have others frozen.
    """
    now: dict[str, set[bool]] = {}
    architectures = state.engine.architectures
    for i in range(len(state)):
        plain = member(i)
        with torch.inference_mode(inference.get()):  # in which detach_() does not freeze
            if not runs_alone(state, plain, i, inputs, computation):
                return False
        names = {} if architectures is None else architectures.names(i)
        for name, p in plain.named_parameters():
            now.setdefault(names.get(name, name), set()).add(p.requires_grad)
    parameters = dict(state.tensors.named_parameters())
    turned = {name for name, learning in now.items() if learning != {parameters[name].requires_grad}}
    if not turned or any(now[name] != {False} for name in turned):
        return False
    for name in turned:
        parameters[name].requires_grad_(False)
    return True
