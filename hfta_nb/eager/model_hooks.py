"""The forward hooks of a model, which may keep what they see: features in a list, or in a dict by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import nn

from hfta_nb.eager.reach import Reach
from hfta_nb.errors import FusionError


def hooked(module: nn.Module) -> Iterator[nn.Module]:
    """The submodules, the module itself included, with hooks that a call of them calls."""
    return (inner for inner in module.modules() if inner._forward_pre_hooks or inner._forward_hooks)


def hooks_of(module: nn.Module) -> Iterator[Callable[..., Any]]:
    """The hooks that a call of a module calls before and after its submodules."""
    for inner in hooked(module):
        yield from inner._forward_pre_hooks.values()
        yield from inner._forward_hooks.values()


def check_hooks(modules: Sequence[nn.Module]) -> None:
    """Check that hooks of several modules, of which an array calls the first one's, keep what they see in one place.

    Raises:
        FusionError: each has a list or object of its own.
    """
    kept = [[_kept(hook, module) for hook in hooks_of(module)] for module in modules]
    for others in kept[1:]:
        for first, other in zip(kept[0], others, strict=False):
            if first.keys() != other.keys():
                raise FusionError(
                    "each module has a hook that keeps what it sees in an object of its own; an array has one for all",
                    where=next(iter({**first, **other}.values())),
                    remedy="register the hook on the array after fusing: array.get_submodule(path)"
                    ".register_forward_hook(hook); what it collects from array(x) has the member axis. Or let the hook "
                    "keep it on the module: module.features = output",
                )


def _kept(hook: Callable[..., Any], module: nn.Module) -> dict[int, str]:
    """What a hook of a module may write to beside the module: by id, how a person reaches it."""
    reach = Reach((hook,), module)
    return {id(h.owner): h.label for h in reach.objects()} if reach.writes else {}


def all_hooks(modules: Iterable[nn.Module]) -> tuple[Callable[..., Any], ...]:
    """Those of several modules, each once."""
    return tuple({id(hook): hook for module in modules for hook in hooks_of(module)}.values())
