"""Models that freeze their own parameters in `forward`, and for good, as ``self.weight.detach_()`` does.

A call runs on tensors that stand for the members' rows of a parameter: whether those require a gradient is said by the
array's parameter, and forgotten with the call. In the plain module it lasts. So the array's parameter is frozen, and
the call repeated (`freeze_as_alone`): whether a parameter is frozen before a call or in it is the same, as its gradient
is dropped in the backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from torch import Tensor

from hfta_nb.errors import FusionError


class ForwardFreezeError(FusionError):
    """The model freezes or unfreezes a parameter in its forward."""


@contextmanager
def learning_kept(parameters: Mapping[str, Tensor]) -> Iterator[None]:
    """The context of a call that runs on these tensors.

    Raises:
        ForwardFreezeError: the call has frozen or unfrozen one.
    """
    before = {name: p.requires_grad for name, p in parameters.items()}
    yield
    turned = {name for name, learns in before.items() if parameters[name].requires_grad != learns}
    for name in turned:
        with suppress(RuntimeError):  # no leaf; it goes with this call
            parameters[name].requires_grad_(before[name])
    if turned:
        name = min(turned, key=lambda name: (before[name], name))
        raise ForwardFreezeError(
            "the model freezes or unfreezes a parameter in its forward, which an array can keep up where each member "
            "freezes the same ones in the same call",
            where=name,
            got=f"requires_grad={not before[name]}",
            remedy=f"do it between two steps: array.get_parameter(name).requires_grad_({not before[name]})",
        )
