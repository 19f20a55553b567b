"""Constructors with the arguments of torch's class: its names, their order and their defaults, those of the torch that
is installed.

`help` and `inspect.signature` show them, type checkers don't: SGD, Adam and AdamW, which most code has, write theirs
out.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, ClassVar

from hfta_nb.errors import OptimError
from hfta_nb.optim.optimizer_base import ArrayOptimizer


class TorchArguments:
    """The part of a class that takes the arguments of `torch_class`, each one value or one per member."""

    torch_class: ClassVar[Any]
    __signature__: ClassVar[inspect.Signature | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__signature__ = None  # its own constructor's
        elif "torch_class" in vars(cls):
            cls.__signature__ = _signature(cls.torch_class)

    @classmethod
    def arguments(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """By name what was given, and torch's defaults of the others.

        Raises:
            TypeError: torch's class takes no such arguments, or one is missing.
        """
        try:
            given = _signature(cls.torch_class).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{cls.__name__}: {error}") from None
        given.apply_defaults()
        return given.arguments


@functools.cache
def _signature(torch_class: Any) -> inspect.Signature:
    """With no types: an argument is also a list, or an array, with one value per member."""
    found = inspect.signature(torch_class)
    untyped = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    return inspect.Signature(untyped)


class TorchOptimizer(TorchArguments, ArrayOptimizer):
    """An optimizer with torch's arguments; those that are no hyperparameters (`foreach`, `capturable`) change nothing.

    Raises:
        OptimError: as `ArrayOptimizer`.
    """

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        given = self.arguments(params, *args, **kwargs)
        not_differentiable(given.get("differentiable", False), type(self).__name__)
        super().__init__(params, {name: given[name] for name in self.kinds})


def not_differentiable(differentiable: bool, where: str) -> None:
    """Raise OptimError if an optimizer was asked to be differentiable."""
    if differentiable:
        raise OptimError("can't be differentiated through", where=where, got="differentiable=True", accepted="False")
