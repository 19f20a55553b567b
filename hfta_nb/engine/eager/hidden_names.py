"""Names of a model that the array has methods of: `losses`, `evaluate`, `select`.

Outside of losses, `array.losses` is the array's. Within the loss of a member, the array shows the member, and so its
own `losses`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from hfta_nb.engine.eager.user_warnings import warn

if TYPE_CHECKING:
    from hfta_nb.engine.eager.state import ArrayState


@functools.cache
def names_of(kind: type[nn.Module]) -> frozenset[str]:
    """The public names that a class of arrays defines beyond those of modules."""
    own = kind.__mro__[: kind.__mro__.index(nn.Module)]
    return frozenset(n for k in own for n in vars(k) if not n.startswith("_") and not hasattr(nn.Module, n))


@contextmanager
def shown(face: nn.Module, module: nn.Module, read: Callable[[str], Any]) -> Iterator[None]:
    """The context in which an array has a member's attributes and methods also where it has methods of these names.

    Args:
        face: the array.
        module: the member's, or one like it.
        read: from a name to what the array has under it.
    """
    kind: Any = type(face)
    held = module.__dict__
    places: tuple[dict[str, Any], ...] = (held, held["_parameters"], held["_buffers"], held["_modules"])
    hidden = {n for n in names_of(kind) if hasattr(type(module), n) or any(n in place for place in places)}
    if not hidden:
        yield
        return
    own = {name: property(functools.partial(_read, read, name)) for name in hidden}
    # Properties, which come before what the array has in its `__dict__`.
    face.__class__ = type(kind.__name__, (kind,), {**own, "__module__": kind.__module__})
    try:
        yield
    finally:
        face.__class__ = kind


def _read(read: Callable[[str], Any], name: str, _: nn.Module) -> Any:
    return read(name)


def warn_of_hidden(state: ArrayState) -> None:
    """Warn, once, of attributes that a model sets when it is called and that the array can't show by their names."""
    face = state.face()
    if face is None or not state.engine.attributes.values:
        return
    kind: Any = type(face)
    names = names_of(kind)
    found = sorted(name for path, name in state.engine.attributes.values if not path and name in names)
    if found:
        listed = " and ".join(f"`{name}`" for name in found)
        text = (
            f"the model sets {listed} on itself, and the array has its own of the same name: array.{found[0]} is the "
            f"array's; in a loss or metric, hfta_nb.member().{found[0]} is the member's; to read it elsewhere, give it "
            "another name in the model"
        )
        if state.settings.remark(text):
            warn(text)
