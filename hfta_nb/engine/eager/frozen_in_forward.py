"""Refuses models that freeze or unfreeze their own parameters in `forward`.

A call runs on tensors that stand for the members' rows of a parameter: whether those require a gradient is said by the
array's parameter, and forgotten with the call. In the plain module it would last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from torch import Tensor

from hfta_nb.engine.rules.rule_mode import Disagreement
from hfta_nb.errors import FusionError


@contextmanager
def learning_kept(parameters: Mapping[str, Tensor], frozen: dict[str, set[str]] | None) -> Iterator[None]:
    """The context of a call that runs on these tensors.

    Args:
        parameters: the tensors.
        frozen: they are those of a member that runs as its plain module does, which may freeze the same ones in every
            call; holds those of the first call, and receives them.

    Raises:
        Disagreement: the call has frozen one, and the member may run as its plain module.
        FusionError: it has unfrozen one, or frozen one that other calls do not.
    """
    before = {name: p.requires_grad for name, p in parameters.items()}
    yield
    turned = {name for name, learns in before.items() if parameters[name].requires_grad != learns}
    learning = {name for name in turned if not before[name]}
    other = learning if frozen is None else learning | (turned ^ frozen.setdefault("", turned))
    if not other and (frozen is not None or not turned):
        return
    for name in turned:
        with suppress(RuntimeError):  # no leaf; it goes with this call
            parameters[name].requires_grad_(before[name])
    if not other:
        raise Disagreement(f"the model freezes {min(turned)} in its forward")
    name = min(other)
    raise FusionError(
        "the model freezes or unfreezes a parameter in its forward, and not in every call, which no array can keep up",
        where=name,
        got=f"requires_grad={not before[name]}",
        remedy=f"do it between two steps: array.get_parameter(name).requires_grad_({not before[name]})",
    )
