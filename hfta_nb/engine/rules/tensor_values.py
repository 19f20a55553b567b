"""Reading a tensor's value into Python: one value for all members, if they agree."""

from __future__ import annotations

import torch
from torch import Tensor

from hfta_nb.engine.rules.member_by_member import member_by_member
from hfta_nb.engine.rules.rule_mode import Context, Rule


def _value(context: Context, function, args, kwargs):  # type: ignore[no-untyped-def]
    if not context.batched(args[0]):
        return function(*args, **kwargs)
    return member_by_member(context, function, args, kwargs, "read for every member; they must agree")


_READERS = (
    *(Tensor.item, Tensor.__bool__, Tensor.__float__, Tensor.__int__, Tensor.__index__, Tensor.__complex__),
    *(Tensor.tolist, Tensor.numpy, Tensor.is_nonzero, Tensor.__contains__, Tensor.equal, torch.equal, torch.allclose),
    *(Tensor.allclose, Tensor.__array__, torch.is_nonzero),
)

RULES: dict[object, Rule] = dict.fromkeys(_READERS, _value)
