"""Calls that draw random numbers, given the generator of the member whose numbers they draw."""

from __future__ import annotations

from dataclasses import replace

from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.engine.members.own_draws import WITH, takes_generator, with_generator
from hfta_nb.engine.replay.trace import Instruction


def with_stream(call: Instruction, generators: MemberGenerators) -> Instruction:
    """The call with the member's generator among its arguments, so that nothing needs to be entered for it.

    Others are returned as they are: on a GPU, and those of operators that take no generator, such as a user's own.
    """
    if call.member is None or generators.device.type == "cuda":
        return call
    function, kwargs = with_generator(call.function, call.kwargs, generators.on_cpu[call.member])
    return call if kwargs is call.kwargs else replace(call, function=function, kwargs=kwargs, member=None)


def draws_unbound(call: Instruction) -> bool:
    """True if a call draws a member's random numbers, and its operator takes no generator."""
    return call.member is not None and not takes_generator(WITH.get(call.function, call.function))
