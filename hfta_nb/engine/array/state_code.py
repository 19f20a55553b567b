"""Models with code of their own for what they save and load: hooks around a `state_dict`, and overridden methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hfta_nb.engine.eager.user_warnings import warn
from hfta_nb.errors import FusionError

_HOOKS = {
    "state_dict": ("_state_dict_hooks", "_state_dict_pre_hooks"),
    "load_state_dict": ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
}
_METHODS = {
    "state_dict": ("state_dict", "_save_to_state_dict"),
    "load_state_dict": ("load_state_dict", "_load_from_state_dict"),
}


def has_code(module: nn.Module, what: str) -> bool:
    """Whether a module, its submodules aside, has code of its own for "state_dict" or "load_state_dict"."""
    methods = (getattr(type(module), name) for name in _METHODS[what])
    return any(getattr(module, name) for name in _HOOKS[what]) or any(
        not str(getattr(method, "__module__", "")).startswith("torch.") for method in methods
    )


def warn_of_code(root: nn.Module, what: str) -> None:
    """Warn where a model has such code, which an array calls for submodules alone, and for all members at once."""
    if has_code(root, what):
        own = "array.load_member(i, state)" if what == "load_state_dict" else "array[i].state_dict()"
        warn(
            f"{type(root).__name__} has code of its own for {what} (hooks, or an overridden method), which an array, "
            f"whose tensors have a member axis, does not call; for a member alone it is called: {own}"
        )


def as_loaded(module: nn.Module, state: Mapping[str, Any], strict: bool, where: str) -> Mapping[str, Any]:
    """What a module's tensors are after it has loaded a state; the state itself where it has no code of its own.

    Args:
        module: a member, which is used up.
        state: what is loaded.
        strict: as torch's.
        where: for the error.

    Raises:
        FusionError: torch's own error, for other keys or shapes.
    """
    if not any(has_code(inner, "load_state_dict") for inner in module.modules()):
        return state
    try:
        module.load_state_dict(state, strict)
    except RuntimeError as error:
        raise FusionError(f"the module does not load it: {error}", where=where) from error
    known = module.state_dict().keys() | state.keys()
    tensors: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    tensors |= dict(module.named_buffers(remove_duplicate=False))
    beside = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
    return beside | {k: v.detach() for k, v in tensors.items() if k in known}
