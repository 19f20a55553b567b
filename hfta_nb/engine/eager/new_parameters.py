"""Refuses parameters that a model creates in its forward, which neither an array nor an optimizer would know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from hfta_nb.errors import FusionError


@contextmanager
def no_new_parameters(root: nn.Module) -> Iterator[None]:
    """Refuse parameters that the model creates within the context, and remove them.

    Raises:
        FusionError: there are some.
    """
    before = [
        (path, m._parameters, dict(m._parameters), m._modules, dict(m._modules))
        for path, m in root.named_modules(remove_duplicate=False)
    ]
    found = ""
    try:
        yield
        if not all(_same_objects(p, own) and _same_objects(m, inner) for _, p, own, m, inner in before):
            had = ((path, name) for path, _, own, *_ in before for name, p in own.items() if p is not None)
            names = {f"{path}.{name}" if path else name for path, name in had}
            now = dict(root.named_parameters(remove_duplicate=False))
            known = {id(p) for name, p in now.items() if name in names}
            found = next((name for name, p in now.items() if name not in names and id(p) not in known), "")
    except BaseException:
        found = "an error"
        raise
    finally:
        if found:
            for _, parameters, own, children, inner in before:
                for held, old in ((parameters, own), (children, inner)):
                    for name in [n for n in held if n not in old]:
                        del held[name]
    if found:
        raise FusionError(
            "a parameter that the model creates in its forward, so that no optimizer and no array knows it",
            where=found,
            remedy="create it in the constructor, or use torch's lazy modules (nn.LazyLinear), and call the model once",
        )


def _same_objects(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return len(now) == len(before) and all(name in now and now[name] is value for name, value in before.items())
