"""Refuses parameters that a model creates or moves in its forward: no array and no optimizer would know them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from hfta_nb.errors import FusionError, HftaError


@contextmanager
def no_new_parameters(root: nn.Module) -> Iterator[None]:
    """Refuse parameters that the model creates within the context, or gives other names, and undo that.

    Raises:
        FusionError: there are some.
    """
    before = [
        (path, m._parameters, dict(m._parameters), m._modules, dict(m._modules))
        for path, m in root.named_modules(remove_duplicate=False)
    ]
    found = moved = ""
    try:
        yield
        if not all(_same_objects(p, own) and _same_objects(m, inner) for _, p, own, m, inner in before):
            had = ((path, name) for path, _, own, *_ in before for name, p in own.items() if p is not None)
            names = {f"{path}.{name}" if path else name for path, name in had}
            now = dict(root.named_parameters(remove_duplicate=False))
            known = {id(p) for name, p in now.items() if name in names}
            found = next((name for name, p in now.items() if name not in names and id(p) not in known), "")
            first: dict[int, str] = {}
            for path, _, own, *_ in before:
                for name, p in own.items():
                    first.setdefault(id(p), f"{path}.{name}" if path else name)
            moved = next((name for name, p in root.named_parameters() if first.get(id(p), name) != name), "")
    except BaseException:
        found = "an error"
        raise
    finally:
        if found or moved:
            for _, parameters, own, children, inner in before:
                for name in [n for n in parameters if n not in own]:
                    del parameters[name]
                children.clear()
                children.update(inner)
    if found:
        raise FusionError(
            "a parameter that the model creates in its forward, so that no optimizer and no array knows it",
            where=found,
            remedy="create it in the constructor, or use torch's lazy modules (nn.LazyLinear), and call the model once",
        )
    if moved:
        raise _moved_error(moved)


@contextmanager
def names_known(root: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Explain an error within the context by parameters that have other names than these, by which they are looked for:
    only calls that learn about the model look for such beforehand.

    Raises:
        FusionError: in place of that error.
    """
    try:
        yield
    except HftaError:
        raise
    except Exception as error:
        moved = next((name for name, _ in root.named_parameters() if name not in names), "")
        if moved:
            raise _moved_error(moved) from error
        raise


def _moved_error(name: str) -> FusionError:
    return FusionError(
        "a parameter that has another name after the model's forward, which puts a submodule in another place",
        where=name,
        remedy="have all submodules in place from the constructor on, and let the forward choose which one is called",
    )


def _same_objects(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return len(now) == len(before) and all(name in now and now[name] is value for name, value in before.items())
